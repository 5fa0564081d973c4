// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/route"
)

// Input is what is at hand of the routing.
type Input struct {
	Records []*route.Record
	Table   *diagnose.Table
	File    string
	Set     *diagnose.Set // manifests and settings
	// BlockTokens is the size of a block of the index in tokens; 0 unknown.
	BlockTokens float64
}

// Report is what was found. It marshals under the schema of findings.
type Report struct {
	Schema   string             `json:"schema"`
	Checked  int                `json:"checked"`
	Findings []diagnose.Finding `json:"findings"`
	Facts    map[string]any     `json:"facts"`
}

type analysis struct {
	in    *Input
	ds    []decision
	out   []diagnose.Finding
	facts map[string]any
	block float64 // NaN unknown
}

// enough is how many decisions a statement about shares needs.
const enough = 20

// Analyse judges decisions.
func Analyse(in Input) *Report {
	a := &analysis{in: &in, facts: map[string]any{}, block: unknown}
	if in.Set == nil {
		in.Set = &diagnose.Set{}
	}
	if in.BlockTokens > 0 {
		a.block = in.BlockTokens
	} else if v, ok := in.Set.Seen.Setting("index_block_tokens", "block_tokens", "block_size", "block_size_tokens"); ok && v.V > 0 {
		a.block = v.V
	}
	if in.Table != nil {
		a.ds = fromTable(in.Table)
	}
	a.ds = append(a.ds, fromRecords(in.Records)...)
	a.facts["decisions"] = len(a.ds)
	a.facts["replicas"] = fleet(a.ds)
	if in.Table == nil || !a.kvEvents(in.Table) {
		a.blind()
		a.parity()
		a.hotOrHerd()
		a.sessions()
		a.scattered()
		a.stale()
		a.failures()
	}
	for _, f := range diagnose.Lint(in.Set) {
		if r, ok := diagnose.RuleOf(f.Code); ok && r.Area == "routing" {
			a.out = append(a.out, f)
		}
	}
	diagnose.SortByHarm(a.out)
	rep := diagnose.NewReport(len(a.ds)+in.Set.Objects, a.out)
	return &Report{Schema: rep.Schema, Checked: rep.Checked, Findings: rep.Findings, Facts: a.facts}
}

func (a *analysis) new(code, object string, line int) diagnose.Finding {
	return diagnose.New(code, object, a.in.File, line)
}

func (a *analysis) add(f diagnose.Finding) { a.out = append(a.out, f) }

// share is a/b, unknown where b is zero.
func share(a, b float64) float64 {
	if b == 0 {
		return unknown
	}
	return a / b
}
