// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// text reads plain text: events in any of the forms that kubectl prints, and what
// kubectl describe says of an HPA. It returns how much of it was understood.
func (r *reader) text(file, text string) int {
	n := 0
	if h, ok := diagnose.ParseDescribeHPA(text); ok {
		h.File = file
		r.set.Seen.HPA = append(r.set.Seen.HPA, h)
		n++
	}
	evs := diagnose.ParseEvents(text)
	r.set.Seen.Events = append(r.set.Seen.Events, evs...)
	return n + len(evs)
}

// event reads one Event object of the API.
func (r *reader) event(n node) {
	if e, ok := readEvent(n); ok {
		r.set.Seen.Events = append(r.set.Seen.Events, e)
	}
}

func readEvent(n node) (diagnose.Event, bool) {
	e := diagnose.Event{
		Type: n.str("type"), Reason: n.str("reason"), Message: strings.TrimSpace(n.str("message")), Line: n.line(), Count: 1,
		From: firstStr(n, "reportingComponent", "reportingController"),
	}
	if e.Message == "" {
		e.Message = strings.TrimSpace(n.str("note"))
	}
	if e.From == "" {
		e.From = n.str("source", "component")
	}
	obj := n.get("involvedObject")
	if !obj.ok() {
		obj = n.get("regarding")
	}
	if k := obj.str("kind"); k != "" {
		e.Object = strings.ToLower(k) + "/" + obj.str("name")
	}
	for _, key := range [...]string{"count", "deprecatedCount"} {
		if c := n.intField(key); c.Set && c.V > 0 {
			e.Count = c.V
		}
	}
	if c := n.get("series").intField("count"); c.Set && c.V > 0 {
		e.Count = c.V
	}
	for _, path := range [...][]string{{"series", "lastObservedTime"}, {"lastTimestamp"}, {"deprecatedLastTimestamp"}, {"eventTime"}, {"metadata", "creationTimestamp"}} {
		if t, ok := diagnose.ParseTime(n.str(path...)); ok && !e.HasTime {
			e.At, e.HasTime = t, true
		}
	}
	for _, path := range [...][]string{{"firstTimestamp"}, {"deprecatedFirstTimestamp"}, {"eventTime"}, {"metadata", "creationTimestamp"}} {
		if t, ok := diagnose.ParseTime(n.str(path...)); ok && !e.HasFirst {
			e.First, e.HasFirst = t, true
		}
	}
	return e, e.Reason != ""
}

// Events reads events from any form: text as kubectl prints it, or JSON or YAML
// as the API gives it, a pod with its status included.
func Events(name string, data []byte) []diagnose.Event {
	r := &reader{set: &diagnose.Set{}}
	text := strings.TrimPrefix(string(data), "\ufeff")
	if evs := diagnose.ParseEvents(text); len(evs) > 0 {
		return evs
	}
	trimmed := strings.TrimSpace(text)
	if !strings.HasPrefix(trimmed, "{") && !strings.HasPrefix(trimmed, "[") && !strings.Contains(text, "kind:") {
		return nil
	}
	r.podStatus = true
	r.yaml(&Input{Name: name}, text)
	return r.set.Seen.Events
}

// statusEvents makes events of the status of a pod: the conditions and the states
// of its containers have the times that its own events may have lost.
func (r *reader) statusEvents(n node) {
	obj := "pod/" + n.str("metadata", "name")
	add := func(reason, at, msg string) {
		if t, ok := diagnose.ParseTime(at); ok {
			r.set.Seen.Events = append(r.set.Seen.Events, diagnose.Event{
				Type: "Normal", Reason: reason, Object: obj, Message: msg, Count: 1, At: t, HasTime: true, Line: n.line(),
			})
		}
	}
	add("Created-pod", n.str("metadata", "creationTimestamp"), "the pod was created")
	for _, c := range n.get("status", "conditions").items() {
		if c.str("status") != "True" {
			continue
		}
		switch c.str("type") {
		case "PodScheduled":
			add("Scheduled", c.str("lastTransitionTime"), "condition PodScheduled=True")
		case "Ready":
			add("Ready", c.str("lastTransitionTime"), "condition Ready=True")
		}
	}
	for _, c := range n.get("status", "containerStatuses").items() {
		add("Started", c.str("state", "running", "startedAt"), "Started container "+c.str("name"))
	}
}

// csv reads a history of signals as what was observed of each: the smallest, the
// middle and the largest value of every column of numbers.
func (r *reader) csv(text string) {
	t, err := diagnose.ParseTable(text)
	if err != nil {
		return
	}
	for _, c := range t.Columns {
		vals := t.Numbers(c)
		if len(vals) == 0 || c == t.TimeColumn() {
			continue
		}
		slices.Sort(vals)
		num := func(v float64) diagnose.Field[float64] { return diagnose.Field[float64]{V: v, Set: true} }
		r.set.Seen.Metrics = append(r.set.Seen.Metrics, diagnose.SeenMetric{
			Name: c, Min: num(vals[0]), P50: num(vals[len(vals)/2]), Max: num(vals[len(vals)-1]),
		})
	}
}
