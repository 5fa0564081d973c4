// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
)

// checkSchema names the form of `penstock check -o json`.
const checkSchema = "penstock/check/v1"

// CheckReport is what `penstock check -o json` prints.
type CheckReport struct {
	Schema  string      `json:"schema"` // penstock/check/v1
	Checks  []CheckLine `json:"checks"`
	Passed  int         `json:"passed"`
	Warned  int         `json:"warned"`
	Failed  int         `json:"failed"`
	Skipped int         `json:"skipped"`
}

// CheckLine is one check of one thing.
type CheckLine struct {
	Name   string `json:"name"`
	On     string `json:"on"`     // pool, object or file
	Result string `json:"result"` // pass, warn, fail, skip
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Results of a check.
const (
	checkPass = "pass"
	checkWarn = "warn"
	checkFail = "fail"
	checkSkip = "skip"
)

func (r *CheckReport) add(name, on, result, detail, remedy string) {
	if result == checkPass || result == checkSkip {
		remedy = ""
	}
	r.Checks = append(r.Checks, CheckLine{name, on, result, detail, remedy})
	switch result {
	case checkPass:
		r.Passed++
	case checkWarn:
		r.Warned++
	case checkFail:
		r.Failed++
	default:
		r.Skipped++
	}
}

// when adds a pass where ok holds, and the result bad otherwise.
func (r *CheckReport) when(ok bool, name, on, good, bad, badDetail, remedy string) {
	if ok {
		r.add(name, on, checkPass, good, "")
		return
	}
	r.add(name, on, bad, badDetail, remedy)
}

// print writes the report for people.
func (r *CheckReport) print(w io.Writer) {
	marks := map[string]string{checkPass: "ok  ", checkWarn: "warn", checkFail: "FAIL", checkSkip: "skip"}
	for _, c := range r.Checks {
		fmt.Fprintf(w, "%s  %-18s %-24s %s\n", marks[c.Result], c.Name, c.On, oneLine(c.Detail))
		if c.Remedy != "" {
			fmt.Fprintf(w, "      -> %s\n", c.Remedy)
		}
	}
	fmt.Fprintf(w, "%d passed, %d warned, %d failed, %d skipped\n", r.Passed, r.Warned, r.Failed, r.Skipped)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
