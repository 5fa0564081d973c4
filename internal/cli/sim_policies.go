// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/sim"
)

// policyFile is a file of policy tests.
type policyFile struct {
	Profile string           `yaml:"profile"` // "": the default profile
	Policy  string           `yaml:"policy"`  // of tests that name none
	Tests   []sim.PolicyTest `yaml:"tests"`

	name   string
	lines  []int // of each test
	engine engine.Profile
}

// policyReport is what `penstock sim test -o json` prints.
type policyReport struct {
	Schema string          `json:"schema"` // penstock/policy-tests/v1
	Passed int             `json:"passed"`
	Failed int             `json:"failed"`
	Tests  []policyOutcome `json:"tests"`
}

type policyOutcome struct {
	File       string            `json:"file"`
	Line       int               `json:"line"`
	Name       string            `json:"name"`
	Policy     string            `json:"policy"`
	Passed     bool              `json:"passed"`
	Pick       string            `json:"pick"` // none: no replica
	Why        string            `json:"why"`
	Failures   []string          `json:"failures"`
	Candidates []policyCandidate `json:"candidates"`

	shown []*route.Candidate // of the diff
}

type policyCandidate struct {
	Replica string             `json:"replica"`
	Dropped string             `json:"dropped,omitempty"`
	CostMS  *float64           `json:"cost_ms"` // null where it was dropped
	Terms   map[string]float64 `json:"terms_ms,omitempty"`
}

func simTestCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "test FILE...",
		Short: "Run policy tests: a state of the fleet, a request, the expected pick",
		Long: `Run policy tests from YAML files: the state of each replica as the router sees
it, a request, and the pick, the order of costs or the drop reasons that are
expected. The production filter and price decide. docs/reference/policy-tests.md
describes the file.

The exit code is 3 when a test fails, 2 when a file is wrong.`,
		Example: `  penstock sim test policies.yaml
  penstock sim test tests/*.yaml -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("for instance: penstock sim test policies.yaml", "name at least one file")
			}
			return nil
		},
	}
	out := outputFlag(c, "table", "json")
	c.RunE = func(_ *cobra.Command, args []string) error { return runPolicyTests(e, args, *out) }
	return c
}

func runPolicyTests(e *Env, names []string, output string) error {
	var files []*policyFile
	var wrong []error
	for _, n := range names {
		f, err := readPolicyFile(e, n)
		if err != nil {
			wrong = append(wrong, err)
			continue
		}
		files = append(files, f)
	}
	if len(wrong) > 0 {
		return &Fault{Code: ExitUsage, Err: errors.Join(wrong...), Hint: "docs/reference/policy-tests.md describes the file"}
	}
	r := policyReport{Schema: "penstock/policy-tests/v1", Tests: []policyOutcome{}}
	for _, f := range files {
		for i := range f.Tests {
			o := f.run(i)
			if o.Passed {
				r.Passed++
			} else {
				r.Failed++
			}
			r.Tests = append(r.Tests, o)
		}
	}
	if output == "json" {
		if err := printJSON(e.Stdout, r); err != nil {
			return err
		}
	} else {
		printPolicyTests(e.Stdout, &r)
	}
	if r.Failed > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

// readPolicyFile reads and checks a file. The error lists all that is wrong, each
// with file and line.
func readPolicyFile(e *Env, name string) (*policyFile, error) {
	var src []byte
	var err error
	if name == "-" {
		name = "stdin"
		src, err = io.ReadAll(e.Stdin)
	} else {
		src, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	f := &policyFile{name: name}
	var doc yaml.Node
	if err := yaml.Unmarshal(src, &doc); err != nil {
		return nil, yamlFault(name, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	dec.KnownFields(true)
	if err := dec.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, yamlFault(name, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a second document; one file holds one list of tests", name)
	}
	return f, f.check(&doc)
}

func (f *policyFile) check(doc *yaml.Node) error {
	var errs []error
	bad := func(path, msg string) {
		errs = append(errs, fmt.Errorf("%s:%d: %s: %s", f.name, lineOf(doc, path), path, msg))
	}
	if f.Profile == "" {
		f.Profile = engine.DefaultProfile
	}
	var err error
	if f.engine, err = loadProfile(f.Profile); err != nil {
		bad("profile", err.Error())
		return errors.Join(errs...)
	}
	if len(f.Tests) == 0 {
		bad("tests", "the file holds no test")
	}
	for i := range f.Tests {
		t, path := &f.Tests[i], fmt.Sprintf("tests[%d]", i)
		f.lines = append(f.lines, lineOf(doc, path))
		if t.Policy == "" {
			t.Policy = f.Policy
		}
		if t.Name == "" {
			bad(path+".name", "is missing")
		}
		for _, err := range t.Check(&f.engine) {
			bad(path+"."+err.Path, err.Msg)
		}
	}
	return errors.Join(errs...)
}

var (
	pathStep    = regexp.MustCompile(`([^.\[\]]+)|\[(\d+)\]`)
	yamlAt      = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)
	yamlUnknown = regexp.MustCompile(`^field (\S+) not found in type \w+\.(\w+)$`)
	yamlWrong   = regexp.MustCompile("^cannot unmarshal (!!\\w+) (?:`(.*)` )?into (.+)$")
)

// lineOf returns the line of the node at a path such as "tests[2].replicas[0].phase",
// or of its nearest parent that is there.
func lineOf(doc *yaml.Node, path string) int {
	n, line := doc, 1
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, m := range pathStep.FindAllStringSubmatch(path, -1) {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var next *yaml.Node
		if m[2] != "" {
			if i, _ := strconv.Atoi(m[2]); n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		} else if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == m[1] {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		}
		if next == nil {
			return line
		}
		n = next
	}
	return line
}

// yamlFault puts file and line before each error of the YAML decoder, and names the
// fields where one is unknown.
func yamlFault(name string, err error) error {
	msgs := []string{err.Error()}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		msgs = te.Errors
	}
	var errs []error
	for _, s := range msgs {
		m := yamlAt.FindStringSubmatch(s)
		at, msg := name, strings.ReplaceAll(s, "\n", " ")
		if m != nil {
			msg = m[2]
			if m[1] != "" {
				at += ":" + m[1]
			}
		}
		if u := yamlUnknown.FindStringSubmatch(msg); u != nil {
			msg = fmt.Sprintf("unknown field %q; known are %s", u[1], strings.Join(policyFields(u[2]), ", "))
		} else if u := yamlWrong.FindStringSubmatch(msg); u != nil {
			msg = fmt.Sprintf("%s cannot stand here, want %s", strings.TrimSpace(u[2]+" ("+strings.TrimPrefix(u[1], "!!")+")"), yamlKind(u[3]))
		}
		errs = append(errs, fmt.Errorf("%s: %s", at, msg))
	}
	return errors.Join(errs...)
}

// yamlKind says in words what a Go type wants.
func yamlKind(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "map["), strings.Contains(goType, "."):
		return "a mapping"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case goType == "bool":
		return "true or false"
	}
	return "a text"
}

// policyFields lists the keys of a type of the file.
func policyFields(typeName string) []string {
	for _, v := range []any{
		policyFile{}, sim.PolicyTest{}, sim.PolicyAverages{}, sim.PolicyRequest{}, sim.PolicyReplica{}, sim.PolicyExpect{},
	} {
		t := reflect.TypeOf(v)
		if t.Name() != typeName {
			continue
		}
		var out []string
		for i := range t.NumField() {
			if k := t.Field(i).Tag.Get("yaml"); k != "" {
				out = append(out, k)
			}
		}
		return out
	}
	return nil
}

func (f *policyFile) run(i int) policyOutcome {
	t := &f.Tests[i]
	res := t.Run(f.engine)
	o := policyOutcome{
		File: f.name, Line: f.lines[i], Name: t.Name, Policy: res.Decision.Policy, Passed: len(res.Failures) == 0,
		Pick: res.Pick, Why: res.Why, Failures: append([]string{}, res.Failures...),
	}
	for k := range res.Decision.Candidates {
		c := &res.Decision.Candidates[k]
		p := policyCandidate{Replica: c.Endpoint, Dropped: c.Drop.String()}
		if c.Drop == route.DropNone {
			cost := sixDigits(c.CostMS)
			p.CostMS, p.Terms = &cost, map[string]float64{}
			for term := range route.Term(route.NumTerms) {
				if v := float64(c.Terms[term]); v != 0 {
					p.Terms[term.String()] = sixDigits(v)
				}
			}
		}
		o.Candidates = append(o.Candidates, p)
	}
	if !o.Passed {
		for _, n := range append(slices.Clone(t.Expect.Order), t.Expect.Pick, res.Pick) {
			if c := res.Candidate(n); c != nil && c.Drop == route.DropNone && !slices.Contains(o.shown, c) {
				o.shown = append(o.shown, c)
			}
		}
	}
	return o
}

func printPolicyTests(w io.Writer, r *policyReport) {
	for i := range r.Tests {
		o := &r.Tests[i]
		if o.Passed {
			continue
		}
		fmt.Fprintf(w, "FAIL  %s:%d  %s\n", o.File, o.Line, o.Name)
		for _, s := range o.Failures {
			fmt.Fprintf(w, "  %s\n", s)
		}
		printCostDiff(w, o)
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%d passed, %d failed\n", r.Passed, r.Failed)
}

// printCostDiff shows the costs of the replicas that a failed test is about, term by
// term, and the difference where there are two.
func printCostDiff(w io.Writer, o *policyOutcome) {
	cs := o.shown
	if len(cs) == 0 {
		return
	}
	if o.Policy != route.PolicyPenstock {
		fmt.Fprintf(w, "  for comparison only, since %s does not choose by cost:\n", o.Policy)
	}
	head := []string{"ms"}
	for _, c := range cs {
		head = append(head, ">"+c.Endpoint)
	}
	if len(cs) == 2 {
		head = append(head, ">"+cs[0].Endpoint+" - "+cs[1].Endpoint)
	}
	t := newTable(head...)
	t.indent = "  "
	row := func(name string, value func(*route.Candidate) float64) {
		cells, any := []string{name}, false
		for _, c := range cs {
			v := value(c)
			any = any || v != 0
			cells = append(cells, fmt.Sprintf("%.1f", v))
		}
		if len(cs) == 2 {
			cells = append(cells, fmt.Sprintf("%+.1f", value(cs[0])-value(cs[1])))
		}
		if any {
			t.add(cells...)
		}
	}
	for term := range route.Term(route.NumTerms) {
		row(term.String(), func(c *route.Candidate) float64 { return float64(c.Terms[term]) })
	}
	row("cost", func(c *route.Candidate) float64 { return c.CostMS })
	t.write(w)
}
