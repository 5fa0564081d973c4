// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/policyfile"
	"github.com/penstock-project/penstock/internal/route"
)

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
	var files []*policyfile.File
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
			o := runPolicyTest(f, i)
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

// readPolicyFile reads and checks a file; - is standard input.
func readPolicyFile(e *Env, name string) (*policyfile.File, error) {
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
	return policyfile.Parse(name, src, loadProfile)
}

func runPolicyTest(f *policyfile.File, i int) policyOutcome {
	t := &f.Tests[i]
	res := t.Run(f.Engine)
	o := policyOutcome{
		File: f.Name, Line: f.Lines[i], Name: t.Name, Policy: res.Decision.Policy, Passed: len(res.Failures) == 0,
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
