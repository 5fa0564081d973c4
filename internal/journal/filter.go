// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/route"
)

// Filter chooses records. The zero Filter passes all.
type Filter struct{ terms []term }

type term struct {
	field string // "" looks everywhere
	op    string // = != > < >= <=
	value string
	num   float64
}

// fields of a filter: texts and numbers, by name. A number that is unknown passes
// no comparison.
var textFields = map[string]func(*route.Record) string{
	"id":      func(r *route.Record) string { return r.ID },
	"pool":    func(r *route.Record) string { return r.Pool },
	"model":   func(r *route.Record) string { return r.Request.Model },
	"adapter": func(r *route.Record) string { return r.Request.Adapter },
	"tenant":  func(r *route.Record) string { return r.Request.Tenant },
	"surface": func(r *route.Record) string { return r.Request.Surface },
	"policy":  func(r *route.Record) string { return r.Policy },
	"replica": func(r *route.Record) string { return r.Chosen },
	"why":     func(r *route.Record) string { return r.Why },
	"kind": func(r *route.Record) string {
		if r.Outcome == nil {
			return ""
		}
		return r.Outcome.Kind
	},
}

var numFields = map[string]func(*route.Record) *float64{
	"status": outcome(func(o *route.Result) *float64 { return whole(&o.Status) }),
	"ttft":   outcome(func(o *route.Result) *float64 { return o.TTFTMS }),
	"e2e":    outcome(func(o *route.Result) *float64 { return o.E2EMS }),
	"queue":  outcome(func(o *route.Result) *float64 { return &o.QueueMS }),
	"cached": outcome(func(o *route.Result) *float64 { return whole(o.CachedTokens) }),
	"output": outcome(func(o *route.Result) *float64 { return whole(o.OutputTokens) }),
	"prompt": func(r *route.Record) *float64 { return whole(&r.Request.PromptTokens) },
	"margin": func(r *route.Record) *float64 { return r.MarginMS },
}

func outcome(get func(*route.Result) *float64) func(*route.Record) *float64 {
	return func(r *route.Record) *float64 {
		if r.Outcome == nil {
			return nil
		}
		return get(r.Outcome)
	}
}

func whole(n *int) *float64 {
	if n == nil {
		return nil
	}
	v := float64(*n)
	return &v
}

// ParseFilter reads terms that are separated by spaces and must all hold:
// field=value, field!=value, field>number and the like, or a word that must occur
// in the id, the model, the adapter, the tenant, the replica or the reason.
// Numbers of time are in milliseconds or carry a unit (ttft>1.5s).
func ParseFilter(s string) (Filter, error) {
	var f Filter
	for _, w := range strings.Fields(s) {
		t, err := parseTerm(w)
		if err != nil {
			return Filter{}, err
		}
		f.terms = append(f.terms, t)
	}
	return f, nil
}

func parseTerm(w string) (term, error) {
	i := strings.IndexAny(w, "=<>!")
	if i < 0 {
		return term{value: strings.ToLower(w)}, nil
	}
	t := term{field: w[:i]}
	for _, op := range []string{">=", "<=", "!=", "=", ">", "<"} {
		if rest, ok := strings.CutPrefix(w[i:], op); ok {
			t.op, t.value = op, rest
			break
		}
	}
	if t.op == "" {
		return t, fmt.Errorf("filter: %q has no comparison; write %s!=value", w, t.field)
	}
	if _, ok := textFields[t.field]; ok {
		if t.op != "=" && t.op != "!=" {
			return t, fmt.Errorf("filter: %s is a text; use = or !=", t.field)
		}
		return t, nil
	}
	if _, ok := numFields[t.field]; !ok {
		return t, fmt.Errorf("filter: unknown field %q; known are %s", t.field, strings.Join(filterFields(), ", "))
	}
	v, err := strconv.ParseFloat(t.value, 64)
	if err != nil {
		d, derr := time.ParseDuration(t.value)
		if derr != nil {
			return t, fmt.Errorf("filter: %s needs a number, not %q", t.field, t.value)
		}
		v = float64(d) / 1e6
	}
	t.num = v
	return t, nil
}

func filterFields() []string {
	var out []string
	for k := range textFields {
		out = append(out, k)
	}
	for k := range numFields {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// ByID is the filter that passes one request.
func ByID(id string) Filter { return Filter{[]term{{field: "id", op: "=", value: id}}} }

// Match reports whether a record passes.
func (f Filter) Match(r *route.Record) bool {
	for i := range f.terms {
		if !f.terms[i].match(r) {
			return false
		}
	}
	return true
}

func (t *term) match(r *route.Record) bool {
	if t.field == "" {
		for _, name := range []string{"id", "model", "adapter", "tenant", "replica", "why"} {
			if strings.Contains(strings.ToLower(textFields[name](r)), t.value) {
				return true
			}
		}
		return false
	}
	if get, ok := textFields[t.field]; ok {
		same := get(r) == t.value
		if t.field == "replica" && !same { // a replica is all of its data-parallel ranks
			rank, ok := strings.CutPrefix(get(r), t.value+"@")
			same = ok && rank != "" && strings.Trim(rank, "0123456789") == ""
		}
		return same == (t.op == "=")
	}
	v := numFields[t.field](r)
	if v == nil {
		return false
	}
	switch t.op {
	case "=":
		return *v == t.num
	case "!=":
		return *v != t.num
	case ">":
		return *v > t.num
	case "<":
		return *v < t.num
	case ">=":
		return *v >= t.num
	}
	return *v <= t.num
}
