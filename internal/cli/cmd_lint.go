// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/manifest"
	"github.com/penstock-project/penstock/internal/wholefile"
)

func lintCmd(e *Env) *cobra.Command {
	var observed []string
	var fix, write bool
	var validation, kubeconfig string
	c := grouped(groupAsk, &cobra.Command{
		Use:   "lint FILE|DIR|-...",
		Short: "Find what is wrong in manifests and Envoy configurations",
		Long: `Read manifests (HPA, ScaledObject, Deployment, StatefulSet, InferencePool, HTTPRoute,
InferenceService, PodMonitor, PodDisruptionBudget, Envoy; streams, lists, fragments) and
say what is wrong for model servers: with file and line, the arithmetic of the real
controller, and a patch. Nothing but the files is needed.

What was observed of the running system makes the answers exact: start-up times
(start_seconds: [298, 312]), nodes with their GPUs, running streams, ranges of metrics,
answers of Prometheus, events. Files of a folder that hold such notes are used as well.`,
		Example: `  penstock lint hpa.yaml
  helm template ./chart | penstock lint -
  penstock lint deploy/ --observed measured.yaml -o sarif
  penstock lint hpa.yaml --fix | patch -p0      # validated where a cluster is reachable`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("example: penstock lint hpa.yaml", "give files, folders, or - for standard input")
			}
			return nil
		},
	})
	f := c.Flags()
	f.StringArrayVar(&observed, "observed", nil, "a `file` or folder with what was observed of the running system; repeat")
	f.BoolVar(&fix, "fix", false, "print a patch that makes findings go away")
	f.BoolVar(&write, "write", false, "with --fix: change the files instead of printing a patch")
	f.StringVar(&validation, "validate", validateAuto, "with --fix: ask an API server, by a dry run, whether it takes the result: auto (where one is reachable), server or off")
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file` for --validate (default: $KUBECONFIG, ~/.kube/config or the service account)")
	out := outputFlag(c, "table", "json", "sarif", "github")
	c.RunE = func(c *cobra.Command, args []string) error {
		if write && !fix {
			return usagef("add --fix", "--write has no meaning without --fix")
		}
		switch validation {
		case validateAuto, validateServer, validateOff:
		default:
			return usagef("", "--validate %q is unknown; use auto, server or off", validation)
		}
		l := &linter{env: e, validation: validation, kubeconfig: kubeconfig}
		if err := l.load(args, observed); err != nil {
			return err
		}
		return l.run(c.Context(), *out, fix, write)
	}
	return c
}

// linter is one run of lint.
type linter struct {
	env *Env
	// validation and kubeconfig say how a fix is held against an API server.
	validation, kubeconfig string

	inputs    []manifest.Input // manifests first, observations after
	manifests int
	explicit  map[string]bool // named on the command line, so problems are errors
}

func (l *linter) load(args, observed []string) error {
	l.explicit = map[string]bool{}
	for _, a := range args {
		if err := l.add(a, false); err != nil {
			return err
		}
	}
	l.manifests = len(l.inputs)
	for _, a := range observed {
		if err := l.add(a, true); err != nil {
			return err
		}
	}
	return nil
}

func (l *linter) add(arg string, observed bool) error {
	if arg == "-" {
		b, err := io.ReadAll(l.env.Stdin)
		if err != nil {
			return failf("", "standard input: %w", err)
		}
		l.explicit["-"] = true
		l.inputs = append(l.inputs, manifest.Input{Name: "-", Data: b, Observed: observed})
		return nil
	}
	files, err := filesUnder(arg, lintable)
	if err != nil {
		return usagef("give files, folders, or - for standard input", "%w", err)
	}
	for _, p := range files {
		b, err := os.ReadFile(p)
		if err != nil {
			return usagef("", "%w", err)
		}
		l.explicit[p] = l.explicit[p] || p == arg
		l.inputs = append(l.inputs, manifest.Input{Name: p, Data: b, Observed: observed})
	}
	return nil
}

// lintable says which files of a folder may hold manifests or observations.
func lintable(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json", ".csv", ".txt":
		return true
	}
	return false
}

// filesUnder returns the file itself, or the files of a folder that keep accepts,
// sorted. Hidden folders and dependencies are left out.
func filesUnder(arg string, keep func(string) bool) ([]string, error) {
	info, err := os.Stat(arg)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return []string{arg}, nil
	}
	var out []string
	err = filepath.WalkDir(arg, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != arg && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "vendor") {
				return filepath.SkipDir
			}
			return nil
		}
		if keep(name) && d.Type().IsRegular() {
			out = append(out, p)
		}
		return nil
	})
	slices.Sort(out)
	return out, err
}

func (l *linter) run(ctx context.Context, format string, fix, write bool) error {
	set, problems := manifest.Read(l.inputs)
	if err := l.problems(problems, set.Empty()); err != nil {
		return err
	}
	found := diagnose.Lint(set)
	if fix {
		return l.fix(ctx, found, write)
	}
	if err := l.print(format, set.Objects, found); err != nil {
		return err
	}
	if len(found) > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

// problems reports what could not be read. A file that was named is an error;
// what lies in a folder is passed over and said.
func (l *linter) problems(ps []*manifest.Problem, empty bool) error {
	templates := 0
	for _, p := range ps {
		if l.explicit[p.File] {
			hint := "it is not YAML"
			if p.Template {
				hint = "this looks like a Helm template; render it: helm template CHART | penstock lint -"
			}
			return usagef(hint, "%v", p)
		}
		if p.Template {
			templates++
			continue
		}
		fmt.Fprintf(l.env.Stderr, "penstock: passed over: %v\n", p)
	}
	if templates > 0 {
		fmt.Fprintf(l.env.Stderr, "penstock: passed over %s that need rendering; try: helm template CHART | penstock lint -\n", diagnose.Plural(templates, "Helm template"))
	}
	if empty && len(ps) == 0 {
		fmt.Fprintln(l.env.Stderr, "penstock: no manifest was recognised in the input")
	}
	return nil
}

func (l *linter) print(format string, objects int, found []diagnose.Finding) error {
	switch format {
	case "json":
		return printJSON(l.env.Stdout, diagnose.NewReport(objects, found))
	case "sarif":
		return printJSON(l.env.Stdout, sarifOf(found))
	case "github":
		return printGitHub(l.env.Stdout, found)
	}
	printFindings(l.env.Stdout, found)
	_, err := fmt.Fprintln(l.env.Stdout, lintSummary(objects, found))
	return err
}

func lintSummary(objects int, found []diagnose.Finding) string {
	if len(found) == 0 {
		return "nothing found in " + diagnose.Plural(objects, "object")
	}
	var n [3]int
	fixable := 0
	for i := range found {
		n[found[i].Severity]++
		if len(found[i].Edits) > 0 {
			fixable++
		}
	}
	s := fmt.Sprintf("%s, %s, %s in %s", diagnose.Plural(n[diagnose.Error], "error"), diagnose.Plural(n[diagnose.Warning], "warning"),
		diagnose.Plural(n[diagnose.Note], "note"), diagnose.Plural(objects, "object"))
	if fixable > 0 {
		s += fmt.Sprintf("; --fix prints a patch for %d of them", fixable)
	}
	return s
}

// maxRounds bounds how often edits are applied and the result is judged anew:
// one edit can make room for another.
const maxRounds = 6

// fix applies the edits of all findings until none is left that helps.
func (l *linter) fix(ctx context.Context, found []diagnose.Finding, write bool) error {
	before := make([]string, len(l.inputs))
	for i := range l.inputs {
		before[i] = string(l.inputs[i].Data)
	}
	for range maxRounds {
		changed := false
		var edits []diagnose.Edit
		for i := range found {
			edits = append(edits, found[i].Edits...)
		}
		for i := range l.inputs {
			after := diagnose.Apply(l.inputs[i].Name, string(l.inputs[i].Data), edits)
			if after != string(l.inputs[i].Data) {
				l.inputs[i].Data, changed = []byte(after), true
			}
		}
		if !changed {
			break
		}
		set, _ := manifest.Read(l.inputs)
		found = diagnose.Lint(set)
	}
	if err := l.validate(ctx, before); err != nil {
		return err
	}
	for i := range l.inputs {
		name, after := l.inputs[i].Name, string(l.inputs[i].Data)
		if after == before[i] {
			continue
		}
		if !write || name == "-" {
			fmt.Fprint(l.env.Stdout, diagnose.Diff(name, before[i], after))
			continue
		}
		if err := rewrite(name, after); err != nil {
			return failf("", "%w", err)
		}
		fmt.Fprintf(l.env.Stderr, "penstock: wrote %s\n", name)
	}
	for i := range found {
		f := &found[i]
		fmt.Fprintf(l.env.Stderr, "penstock: left to do: %s:%d %s: %s\n", f.File, f.Line, f.Code, firstLine(f.Remedy))
	}
	if len(found) > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

// rewrite replaces a file that somebody keeps, with the permissions that it has. What a
// symbolic link names is replaced, not the link.
func rewrite(name, text string) error {
	path, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	return wholefile.Write(path, []byte(text), st.Mode().Perm())
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}
