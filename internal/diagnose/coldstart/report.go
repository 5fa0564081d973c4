// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// Input is what is at hand of one start.
type Input struct {
	Logs   []Log
	Events []diagnose.Event
	// Total is the length of the start in seconds as somebody measured it, from the
	// start of the container to the first answer; 0 unknown.
	Total float64
	// EventsFile names the file that the events come from.
	EventsFile string
}

// Log is one container log.
type Log struct {
	Name string
	Text string
}

// Stage is one part of a start.
type Stage struct {
	Name string `json:"name"`
	// Seconds is nil where the length is unknown, which is not the same as zero.
	Seconds *float64 `json:"seconds"`
	// In names the stage that contains this one. Stages without In are bars: they
	// add up to the total.
	In       string              `json:"in,omitempty"`
	Evidence []diagnose.Evidence `json:"evidence"`
}

// Lever is one way to make the start shorter.
type Lever struct {
	Stage  string  `json:"stage"`
	Saves  float64 `json:"saves_s"`
	Basis  string  `json:"basis"` // measured, or what is assumed
	Remedy string  `json:"remedy"`
	Price  string  `json:"price,omitempty"`
}

// WhatIf is the length of the start with some levers pulled.
type WhatIf struct {
	Levers string  `json:"levers"`
	Total  float64 `json:"total_s"`
}

// Report is the breakdown of one start. It marshals under the schema of findings.
type Report struct {
	Schema   string             `json:"schema"`
	Checked  int                `json:"checked"` // lines and events that were read
	Engine   string             `json:"engine,omitempty"`
	Version  string             `json:"version,omitempty"`
	Total    *float64           `json:"total_s"` // nil unknown
	Ready    bool               `json:"ready"`   // the start is complete
	Dominant string             `json:"dominant,omitempty"`
	Stages   []Stage            `json:"stages"`
	Facts    Facts              `json:"facts"`
	Levers   []Lever            `json:"levers"`
	WhatIf   []WhatIf           `json:"what_if"`
	Findings []diagnose.Finding `json:"findings"`
}

// Facts are named numbers of a start; nil means unknown.
type Facts []diagnose.Evidence

// MarshalJSON writes the facts as one object in the order in which they were found.
func (f Facts) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, e := range f {
		if i > 0 {
			out = append(out, ',')
		}
		k, err := json.Marshal(e.Name)
		if err != nil {
			return nil, err
		}
		v, err := json.Marshal(e.Value)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, k...), ':'), v...)
	}
	return append(out, '}'), nil
}

// Get returns a fact as a number, and false where it is absent or unknown.
func (f Facts) Get(name string) (float64, bool) {
	for _, e := range f {
		if e.Name == name {
			switch v := e.Value.(type) {
			case float64:
				return v, true
			case int:
				return float64(v), true
			}
		}
	}
	return 0, false
}

// Stage returns the stage of a name, nil where there is none.
func (r *Report) Stage(name string) *Stage {
	for i := range r.Stages {
		if r.Stages[i].Name == name {
			return &r.Stages[i]
		}
	}
	return nil
}

// Bars returns the stages that add up to the total.
func (r *Report) Bars() []Stage {
	var out []Stage
	for _, s := range r.Stages {
		if s.In == "" && s.Seconds != nil {
			out = append(out, s)
		}
	}
	return out
}

func (r *Report) fact(name string, v any, unit string) {
	for i := range r.Facts {
		if r.Facts[i].Name == name {
			return
		}
	}
	r.Facts = append(r.Facts, diagnose.Ev(name, v, unit))
}

func (r *Report) add(name string, s float64, in string, ev ...diagnose.Evidence) {
	v := diagnose.Round(s, 3)
	if ev == nil {
		ev = []diagnose.Evidence{}
	}
	r.Stages = append(r.Stages, Stage{Name: name, Seconds: &v, In: in, Evidence: ev})
}

func (r *Report) unknown(name, in string, ev ...diagnose.Evidence) {
	if ev == nil {
		ev = []diagnose.Evidence{}
	}
	r.Stages = append(r.Stages, Stage{Name: name, In: in, Evidence: ev})
}

// Analyse breaks a start down.
func Analyse(in Input) *Report {
	r := &Report{Schema: diagnose.Schema, Stages: []Stage{}, Levers: []Lever{}, WhatIf: []WhatIf{}, Findings: []diagnose.Finding{}, Facts: Facts{}}
	ev := readEvents(in.Events)
	lg := readLogs(in.Logs, ev)
	r.Checked = lg.count + len(in.Events)
	r.Engine, r.Version = lg.engine, lg.version
	ev.stages(r)
	lg.stages(r, ev)
	r.total(&in, ev, lg)
	r.pull()
	r.findings(&in, ev, lg)
	r.order()
	return r
}

// total decides what the bars add up to and calls the rest unexplained.
func (r *Report) total(in *Input, ev *pod, lg *logInfo) {
	total, from := 0.0, ""
	switch {
	case ev.hasBegin && ev.hasReady:
		total, from, r.Ready = ev.ready-ev.begin, "events", true
	case ev.hasBegin && lg.comparable && lg.hasReady:
		total, from, r.Ready = lg.ready-ev.begin, "events and log", true
	case in.Total > 0:
		total, from, r.Ready = in.Total, "given", true
	case ev.hasBegin && ev.relative && ev.hasStarted && lg.hasReady && lg.hasSpan:
		// The two clocks cannot be compared: what lies between the start of the
		// container and the first line is not in the total.
		total, from, r.Ready = ev.started-ev.begin+lg.ready-lg.first, "events, then first line to ready", true
	case ev.hasBegin && ev.relative:
		total, from = -ev.begin, "events, so far"
	case lg.hasSpan && lg.span > 0:
		total, from, r.Ready = lg.span, "first to last line of the log", lg.hasReady
	case ev.hasBegin && ev.hasEnd && ev.end > ev.begin:
		total, from = ev.end-ev.begin, "events, so far"
	}
	sum := 0.0
	for _, s := range r.Bars() {
		sum += *s.Seconds
	}
	if from == "" {
		r.fact("total_s", nil, "s")
		return
	}
	if from == "first to last line of the log" {
		total = max(total, sum) // what ended at the first line began before it
	}
	v := diagnose.Round(total, 3)
	r.Total = &v
	r.fact("total_s", v, "s")
	rest := total - sum
	r.fact("unexplained_s", diagnose.Round(max(0, rest), 3), "s")
	if rest < 0.05 {
		return
	}
	pieces := []diagnose.Evidence{diagnose.Ev("total", v, "s").From(from)}
	for _, s := range r.Stages {
		if s.In == "unexplained" && s.Seconds != nil {
			pieces = append(pieces, diagnose.Ev(s.Name, *s.Seconds, "s"))
		}
	}
	pieces = append(pieces, lg.gaps...)
	r.add("unexplained", rest, "", pieces...)
}

// order puts the bars in the order of a start and what they contain after them.
func (r *Report) order() {
	rank := map[string]int{}
	for i, n := range stageOrder {
		rank[n] = i
	}
	key := func(s Stage) (bar, own int) { // a part stands below the bar that contains it
		if outer, ok := rank[s.In]; ok {
			return outer, 1 + rank[s.Name]
		}
		return rank[s.Name], 0
	}
	slices.SortStableFunc(r.Stages, func(a, b Stage) int {
		abar, aown := key(a)
		bbar, bown := key(b)
		return cmp.Or(abar-bbar, aown-bown)
	})
}

// stageOrder is the order in which stages are shown.
var stageOrder = [...]string{
	"node_wait", "schedule", "volume_attach", "image_pull", "image_transfer", "image_queue", "init_containers", "starting", "process_start", "distributed_init", "p2p_check",
	"download", "model_loading", "weights", "shard", "init_engine", "profiling", "compile", "dynamo", "compile_cache_load", "kernel_warmup",
	"graph_capture", "init_other", "warmup", "readiness", "unexplained", "schedule_to_pull", "container_start",
}
