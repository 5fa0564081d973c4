// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// Input is what is at hand: a history, manifests and observations, the log of the
// controller. All of it is optional.
type Input struct {
	Histories []History
	Set       *diagnose.Set
	Log       string // lines of the controller
	LogFile   string
	// ColdStart is the start-up time of a replica in seconds; 0 unknown. What the
	// observations say is used where it is not given.
	ColdStart float64
	// Target is how many waiting requests a replica may have in the proposal;
	// 0: five.
	Target float64
}

// Step is one moment of a replay.
type Step struct {
	T        float64 `json:"t_s"`
	Replicas int     `json:"replicas"`
}

// History is one table of replicas and signals over time.
type History struct {
	File  string
	Table *diagnose.Table
}

// Replay is what a rule would have done with the recorded signals.
type Replay struct {
	Rule        string   `json:"rule"`
	Steps       []Step   `json:"steps"` // changes only
	MaxReplicas int      `json:"max_replicas"`
	Changes     int      `json:"changes"`
	FirstUp     *float64 `json:"first_scale_up_s"` // nil: never
	HelpsFrom   *float64 `json:"helps_from_s"`     // first step plus the start-up time
	Limited     string   `json:"limited,omitempty"`
}

// Report is what was found. It marshals under the schema of findings.
type Report struct {
	Schema   string             `json:"schema"`
	Checked  int                `json:"checked"`
	Findings []diagnose.Finding `json:"findings"`
	Replays  []Replay           `json:"replays"`
}

type analysis struct {
	in    *Input
	set   *diagnose.Set
	h     *history // the one that is judged now, nil where there is none
	file  string   // of h
	cold  float64  // NaN unknown
	coldS string   // where it comes from
	out   []diagnose.Finding
	rep   []Replay
}

// Analyse judges a history.
func Analyse(in Input) *Report {
	a := &analysis{in: &in, set: in.Set, cold: unknown}
	if a.set == nil {
		a.set = &diagnose.Set{}
	}
	if in.ColdStart > 0 {
		a.cold, a.coldS = in.ColdStart, "given"
	} else if s, ok := a.set.Seen.SlowestStart(""); ok {
		a.cold, a.coldS = s, "observed"
	}
	checked := len(a.set.Seen.Events) + a.set.Objects
	list := slices.Clone(in.Histories)
	if t := FromDecisions(in.Log); t != nil {
		list = append(list, History{in.LogFile, t})
	}
	if t := FromEvents(a.set.Seen.Events); t != nil && len(list) == 0 {
		list = append(list, History{a.set.Seen.File, t})
	}
	for _, x := range list {
		h, ok := read(x.Table)
		if !ok {
			continue
		}
		a.h, a.file = h, x.File
		checked += len(h.rows)
		a.history()
		a.echo()
	}
	a.h, a.file = nil, ""
	if f, ok := a.noMatch(); ok {
		a.add(f)
	}
	a.rest()
	diagnose.SortByHarm(a.out)
	r := &Report{Schema: diagnose.Schema, Checked: checked, Findings: a.out, Replays: a.rep}
	if r.Findings == nil {
		r.Findings = []diagnose.Finding{}
	}
	if r.Replays == nil {
		r.Replays = []Replay{}
	}
	return r
}

func (a *analysis) add(f diagnose.Finding) { a.out = append(a.out, f) }

func (a *analysis) new(code string, line int) diagnose.Finding {
	obj := "history"
	switch {
	case len(a.set.HPAs) > 0:
		obj = a.set.HPAs[0].Ref()
	case len(a.set.Scaled) > 0:
		obj = a.set.Scaled[0].Ref()
	}
	return diagnose.New(code, obj, a.file, line)
}

// history judges one history.
func (a *analysis) history() {
	a.pending()
	a.lostSignal()
	if a.flapping() {
		return
	}
	if a.runaway() || a.cascade() {
		return
	}
	if a.neverScaled() {
		return
	}
	a.late()
}

// rest adds what the manifests and events say of scaling, unless a finding of the
// history says it already.
func (a *analysis) rest() {
	said := func(code string) bool {
		return slices.ContainsFunc(a.out, func(f diagnose.Finding) bool {
			cause, _ := f.Lookup("cause")
			return f.Code == code || cause == code
		})
	}
	for _, f := range diagnose.Lint(a.set) {
		r, ok := diagnose.RuleOf(f.Code)
		if !ok || r.Area != "scaling" || said(f.Code) {
			continue
		}
		if f.Code == "window-below-start" && said("flapping") {
			continue
		}
		a.add(f)
	}
}

// coldEvidence says what is known of the start-up time.
func (a *analysis) coldEvidence() diagnose.Evidence {
	if !known(a.cold) {
		return diagnose.Evidence{Name: "cold_start", Unit: "s"}
	}
	return diagnose.Ev("cold_start", a.cold, "s").From(a.coldS)
}

// setting returns a named number of the policy or of the manifests.
func (a *analysis) setting(names ...string) (float64, bool) {
	f, ok := a.set.Seen.Setting(names...)
	return f.V, ok
}

// downWindow is the scale-down window in seconds, and whether somebody set it.
func (a *analysis) downWindow() (float64, bool) {
	if v, ok := a.setting("scale_down_window_s", "scale_down_window", "scale_down_stabilization_window_s", "down_window_s", "stabilization_window_s", "stabilization_window_seconds", "scale_down_delay_s"); ok {
		return v, true
	}
	for i := range a.set.HPAs {
		if w := a.set.HPAs[i].Behavior.Down.Window; w.Set {
			return float64(w.V), true
		}
	}
	for i := range a.set.Scaled {
		if w := a.set.Scaled[i].Behavior.Down.Window; w.Set {
			return float64(w.V), true
		}
	}
	if len(a.set.HPAs)+len(a.set.Scaled) > 0 {
		return 300, false
	}
	return unknown, false
}

// bounds returns minimum and maximum of the scaler; NaN unknown.
func (a *analysis) bounds() (low, high float64) {
	low, high = unknown, unknown
	num := func(f diagnose.Field[int], def float64) float64 {
		if f.Set {
			return float64(f.V)
		}
		return def
	}
	switch {
	case len(a.set.HPAs) > 0:
		return num(a.set.HPAs[0].Min, 1), num(a.set.HPAs[0].Max, unknown)
	case len(a.set.Scaled) > 0:
		return num(a.set.Scaled[0].Min, 0), num(a.set.Scaled[0].Max, 100)
	}
	return num(a.set.Seen.Min, low), num(a.set.Seen.Max, high)
}

// echo finds scalers that only repeat the current count.
func (a *analysis) echo() {
	if !a.h.has["desired"] || len(a.h.rows) < 5 {
		return
	}
	low, high := math.Inf(1), 0.0
	for i := range a.h.rows {
		r := &a.h.rows[i]
		if !known(r.desired) || !known(r.replicas) || r.desired != r.replicas {
			return
		}
		if known(r.waiting) {
			low, high = min(low, r.waiting), max(high, r.waiting)
		}
	}
	if ch := a.h.changes(replicasOf); len(ch) > 0 || high < 2*low+10 {
		return
	}
	f := a.new("inert-autoscaler", a.h.rows[0].line)
	f.Evidence = []diagnose.Evidence{
		{Name: "condition", Value: "DesiredEqualsCurrent"}, diagnose.Ev("rows", len(a.h.rows), ""), diagnose.Ev("waiting_min", low, "requests"), diagnose.Ev("waiting_max", high, "requests"),
		{Name: "published_desired", Value: nil},
	}
	f.Message = "the autoscaler repeats the current count in every row while the queue changes: it has no input, and what it publishes is an echo"
	f.Remedy = "Check that its query selects a series: model name, namespace, labels. Without data it must publish no opinion, not the current count."
	a.add(f)
}

// noMatch finds a policy whose model name no replica reports.
func (a *analysis) noMatch() (diagnose.Finding, bool) {
	seen := &a.set.Seen
	want, line, skipped := seen.PolicyModel.V, seen.PolicyModel.At.Line, false
	for l := range strings.Lines(a.in.Log) {
		low := strings.ToLower(l)
		if !strings.Contains(low, "no saturation metrics") && !strings.Contains(low, "no metrics available") && !strings.Contains(low, "skipping analysis") {
			continue
		}
		skipped = true
		if want == "" {
			want = valueIn(l, "modelID", "model_id", "model")
		}
	}
	if want == "" || slices.Contains(seen.Models, want) || len(seen.Models) == 0 && !skipped {
		return diagnose.Finding{}, false
	}
	f := diagnose.New("inert-autoscaler", "policy", seen.File, line)
	near := nearestModel(want, seen.Models)
	f.Evidence = []diagnose.Evidence{
		{Name: "condition", Value: "NoMatchingReplicas"}, {Name: "policy_model", Value: want}, {Name: "replicas_report", Value: seen.Models},
		{Name: "suggest", Value: nilIfEmpty(near)}, {Name: "published_desired", Value: nil, Age: "no opinion"},
	}
	if skipped {
		f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "controller_log", Value: "analysis skipped for lack of metrics"})
	}
	f.Message = "the policy names the model " + want + " and no replica reports it: the autoscaler has no input and repeats the current count, while every condition is green"
	f.Remedy = "Use the name that the replicas report."
	if near != "" {
		f.Message = "policy says " + want + "; replicas report " + near + ": no series matches, the autoscaler has no input and repeats the current count, while every condition is green"
		f.Remedy = "Set the policy's model to " + near + " (the match is exact)."
	}
	return f, true
}

func nilIfEmpty(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// valueIn reads "key": "value" or key=value out of a line.
func valueIn(line string, keys ...string) string {
	for _, k := range keys {
		for _, sep := range [...]string{`"` + k + `": "`, `"` + k + `":"`, k + `="`, k + "="} {
			_, rest, ok := strings.Cut(line, sep)
			if !ok {
				continue
			}
			end := strings.IndexAny(rest, "\" ,}\n")
			if end < 0 {
				end = len(rest)
			}
			return rest[:end]
		}
	}
	return ""
}

// nearestModel returns the reported model that the policy probably means: the same
// last part of the path, or the same letters in another case.
func nearestModel(want string, have []string) string {
	base := func(s string) string {
		return strings.ToLower(s[strings.LastIndexByte(s, '/')+1:])
	}
	for _, h := range have {
		if base(h) == base(want) {
			return h
		}
	}
	for _, h := range have {
		if strings.Contains(base(h), base(want)) || strings.Contains(base(want), base(h)) {
			return h
		}
	}
	return ""
}
