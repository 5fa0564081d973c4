// SPDX-License-Identifier: Apache-2.0

// Package diagnose says what is wrong, how one knows and what to do: named rules
// over plain values (manifests, start-up logs, events, histories, records of
// decisions) that return findings with computed evidence.
//
// Everything here is a pure function of its arguments. Package manifest reads the
// files; sub-packages hold the parts with a language of their own: coldstart
// (start-up logs and events), scaling (histories of replicas and signals) and
// routing (records of decisions).
package diagnose

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Severity orders findings by the harm that they do.
type Severity uint8

// Severities. An error does harm as it stands, a warning does harm under load or
// failure, a note is something that its author probably believes otherwise.
const (
	Note Severity = iota
	Warning
	Error
)

var severityNames = [...]string{"note", "warning", "error"}

func (s Severity) String() string {
	if int(s) < len(severityNames) {
		return severityNames[s]
	}
	return "unknown"
}

// MarshalText writes the severity as a word.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (s *Severity) UnmarshalText(b []byte) error {
	for i, n := range severityNames {
		if n == string(b) {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("severity %q is unknown; it is one of note, warning, error", b)
}

// Evidence is one number or word that a finding rests on. Value is a float64, an
// int, a string, a bool, a list or a table of these; nil means unknown, which is
// not the same as zero.
type Evidence struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
	Unit  string `json:"unit,omitempty"`
	Age   string `json:"age,omitempty"` // how old the value is, or where it comes from
}

// Finding is one thing that is wrong, with what it rests on and what to do.
type Finding struct {
	Code     string     `json:"code"`
	Severity Severity   `json:"severity"`
	Object   string     `json:"object"`
	File     string     `json:"file"`
	Line     int        `json:"line"` // 1-based; 0 where the finding has no line
	Message  string     `json:"message"`
	Evidence []Evidence `json:"evidence"`
	Remedy   string     `json:"remedy"`
	Docs     string     `json:"docs"`

	// Edits change the file so that the finding goes away. Empty where no edit
	// can be derived from the file alone.
	Edits []Edit `json:"-"`
}

// Schema is the schema of a list of findings.
const Schema = "penstock/findings/v1"

// Report is what the commands print with -o json.
type Report struct {
	Schema   string    `json:"schema"`
	Checked  int       `json:"checked"` // objects or records that were read
	Findings []Finding `json:"findings"`
}

// NewReport returns a report that marshals to a list even where it is empty.
func NewReport(checked int, fs []Finding) Report {
	if fs == nil {
		fs = []Finding{}
	}
	for i := range fs {
		if fs[i].Evidence == nil {
			fs[i].Evidence = []Evidence{}
		}
	}
	return Report{Schema: Schema, Checked: checked, Findings: fs}
}

// Ev is short for an Evidence.
func Ev(name string, value any, unit string) Evidence {
	if f, ok := value.(float64); ok {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			value = nil
		} else {
			value = Round(f, 4)
		}
	}
	return Evidence{Name: name, Value: value, Unit: unit}
}

// Assumed marks an evidence as an assumption and says where it comes from.
func (e Evidence) Assumed(from string) Evidence {
	e.Age = "assumed: " + from
	return e
}

// From says where a measured evidence comes from.
func (e Evidence) From(source string) Evidence {
	e.Age = source
	return e
}

// Lookup returns the evidence called name, and whether there is one.
func (f *Finding) Lookup(name string) (any, bool) {
	for _, e := range f.Evidence {
		if e.Name == name {
			return e.Value, true
		}
	}
	return nil, false
}

// Sort orders findings by file, then line, then harm, then code, so that the same
// input always gives the same output.
func Sort(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(b.Severity, a.Severity),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Object, b.Object),
		)
	})
}

// SortByHarm orders findings by severity first: the order in which a person should
// act.
func SortByHarm(fs []Finding) {
	slices.SortStableFunc(fs, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(b.Severity, a.Severity),
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Code, b.Code),
		)
	})
}

// DocsOf returns the page that explains a code.
func DocsOf(code string) string { return "docs/reference/findings/" + code + ".md" }

// Round rounds v to digits significant decimals after the point.
func Round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	r := math.Round(v*p) / p
	if r == 0 {
		return 0 // no negative zero in output
	}
	return r
}

// Num writes a number the way a person would: no exponent, no trailing zeros, at
// most four decimals.
func Num(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "unknown"
	}
	return strconv.FormatFloat(Round(v, 4), 'f', -1, 64)
}

// Seconds writes a duration in seconds the way a person would say it: "8 s",
// "4m47s", "9m10s", "2h05m".
func Seconds(s float64) string {
	switch {
	case math.IsNaN(s) || math.IsInf(s, 0):
		return "unknown"
	case s < 0:
		return "-" + Seconds(-s)
	case s < 10:
		return Num(Round(s, 2)) + " s"
	case s < 120:
		return Num(Round(s, 1)) + " s"
	}
	t := int64(math.Round(s))
	if t < 3600 {
		return fmt.Sprintf("%dm%02ds", t/60, t%60)
	}
	return fmt.Sprintf("%dh%02dm", t/3600, t%3600/60)
}

// Plural returns "1 pod", "2 pods".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "y") {
		return strconv.Itoa(n) + " " + strings.TrimSuffix(noun, "y") + "ies"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
