// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/scaling"
	"github.com/penstock-project/penstock/internal/manifest"
)

func diagnoseCmd(e *Env) *cobra.Command {
	var bundle string
	c := grouped(groupAsk, &cobra.Command{
		Use:   "diagnose",
		Short: "Say what is wrong, how one knows, and what to do",
		Long: `Say what is wrong, how one knows, and what to do. Without a subcommand: the running
system, findings ordered by harm. The subcommands work on files alone, without Penstock
in the path of the traffic:

  start     break a slow start down from a container log and pod events
  scaling   why a fleet did not scale, flapped, ran away or cannot be placed
  routing   scattered caches and sessions, hot prefixes, herds, blind indexes
  request   one request of the journal
  bundle    an archive that is safe to share`,
		Example: `  penstock diagnose
  penstock diagnose start engine.log --events events.txt
  penstock diagnose scaling --history timeline.csv hpa.yaml --cold-start 240s
  penstock diagnose routing --journal /var/lib/penstock/journal`,
		Args: noArgs,
	})
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.Flags().StringVar(&bundle, "bundle", "", "judge this `file` of `penstock diagnose bundle` instead of a server")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var rep diagnose.Report
		var err error
		if bundle != "" {
			rep, err = diagnoseBundle(bundle)
		} else {
			rep, err = e.diagnoseLive(c.Context(), *server)
		}
		if err != nil {
			return err
		}
		return e.printReport(*out, rep)
	}
	c.AddCommand(diagnoseStartCmd(e), diagnoseScalingCmd(e), diagnoseRoutingCmd(e), diagnoseRequestCmd(e), diagnoseBundleCmd(e))
	return c
}

// diagnoseLive judges the running system: its state and its last decisions.
func (e *Env) diagnoseLive(ctx context.Context, server string) (diagnose.Report, error) {
	cl, err := e.client(server)
	if err != nil {
		return diagnose.Report{}, err
	}
	var st console.Status
	if err := cl.get(ctx, "/api/v1/status", &st); err != nil {
		return diagnose.Report{}, err
	}
	var list console.Decisions
	if err := cl.get(ctx, "/api/v1/decisions?limit=1000", &list); err != nil {
		return diagnose.Report{}, err
	}
	return console.Judge(&st, list.Decisions), nil
}

// printReport writes findings and ends with the exit code that they mean.
func (e *Env) printReport(format string, rep diagnose.Report) error {
	if format == "json" {
		if err := printJSON(e.Stdout, rep); err != nil {
			return err
		}
	} else {
		printFindings(e.Stdout, rep.Findings)
		fmt.Fprintln(e.Stdout, summary(rep.Checked, "thing", rep.Findings))
	}
	return foundCode(rep.Findings)
}

// foundCode is the error that a command ends with: none without findings.
func foundCode(found []diagnose.Finding) error {
	if len(found) > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

func summary(checked int, noun string, found []diagnose.Finding) string {
	if len(found) == 0 {
		return "nothing found in " + diagnose.Plural(checked, noun)
	}
	var n [3]int
	for i := range found {
		n[found[i].Severity]++
	}
	return fmt.Sprintf("%s, %s, %s in %s", diagnose.Plural(n[diagnose.Error], "error"), diagnose.Plural(n[diagnose.Warning], "warning"),
		diagnose.Plural(n[diagnose.Note], "note"), diagnose.Plural(checked, noun))
}

// given is what a subcommand was given, sorted by what it is.
type given struct {
	tables    []namedTable
	texts     []namedText // logs and other text
	manifests []manifest.Input
}

type namedTable struct {
	name  string
	table *diagnose.Table
}

type namedText struct{ name, text string }

// gather reads files and folders and sorts them: tables, manifests and
// observations, text.
func (e *Env) gather(args []string) (*given, error) {
	g := &given{}
	for _, a := range args {
		if a == "-" {
			b, err := e.readInput("-")
			if err != nil {
				return nil, err
			}
			g.sort("-", b)
			continue
		}
		files, err := filesUnder(a, diagnosable)
		if err != nil {
			return nil, usagef("give files, folders, or - for standard input", "%w", err)
		}
		for _, p := range files {
			b, err := os.ReadFile(p)
			if err != nil {
				return nil, usagef("", "%w", err)
			}
			g.sort(p, b)
		}
	}
	return g, nil
}

// diagnosable says which files of a folder may be inputs of a diagnosis.
func diagnosable(name string) bool {
	return lintable(name) || strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".jsonl") || strings.HasSuffix(name, ".tsv")
}

func (g *given) sort(name string, b []byte) {
	text := strings.TrimPrefix(string(b), "\ufeff")
	switch strings.ToLower(filepath.Ext(name)) {
	case ".csv", ".tsv", ".jsonl", ".ndjson":
		if t, err := diagnose.ParseTable(text); err == nil {
			g.tables = append(g.tables, namedTable{name, t})
			return
		}
	case ".yaml", ".yml":
		g.manifests = append(g.manifests, manifest.Input{Name: name, Data: b})
		return
	case ".json":
		if t, ok := jsonHistory(text); ok {
			g.tables = append(g.tables, namedTable{name, t})
			return
		}
		g.manifests = append(g.manifests, manifest.Input{Name: name, Data: b})
		return
	}
	if first, _, _ := strings.Cut(strings.TrimSpace(text), "\n"); strings.Count(first, ",") >= 2 && !strings.Contains(first, " ") {
		if t, err := diagnose.ParseTable(text); err == nil {
			g.tables = append(g.tables, namedTable{name, t})
			return
		}
	}
	g.texts = append(g.texts, namedText{name, text})
}

// jsonHistory reads a JSON file that is a table over time, which needs a column of
// times.
func jsonHistory(text string) (*diagnose.Table, bool) {
	if t := scaling.FromMatrix(text); t != nil {
		return t, true
	}
	t, err := diagnose.ParseTable(text)
	if err != nil || len(t.Rows) < 2 || t.TimeColumn() == "" {
		return nil, false
	}
	return t, true
}

// oneTable reads the file of a flag as a table.
func (e *Env) oneTable(name string) (*diagnose.Table, error) {
	b, err := e.readInput(name)
	if err != nil {
		return nil, err
	}
	if t := scaling.FromMatrix(string(b)); t != nil {
		return t, nil
	}
	t, err := diagnose.ParseTable(string(b))
	if err != nil {
		return nil, usagef("a table has a header: t_s,replicas,waiting_total", "%s: %v", name, err)
	}
	if len(t.Rows) == 0 {
		return nil, usagef("", "%s has a header and no rows", name)
	}
	return t, nil
}

// set reads the manifests and text files of a given into one set.
func (g *given) set(stderr func(string)) *diagnose.Set {
	inputs := g.manifests
	for _, t := range g.texts {
		name := t.name
		if filepath.Ext(name) != ".txt" {
			name += ".txt" // read it as text: events, a description
		}
		inputs = append(inputs, manifest.Input{Name: name, Data: []byte(t.text)})
	}
	set, problems := manifest.Read(inputs)
	for _, p := range problems {
		stderr(fmt.Sprintf("penstock: passed over: %v\n", p))
	}
	return set
}

var errNothing = errors.New("nothing was given to diagnose")
