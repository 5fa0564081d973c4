// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
)

// quick is how long an answer may take that is owed at once, in ms.
const quick = 5000

// judge says whether the promise of a step held.
func (s *DrillStep) judge(e *drillEnvoy, noticed bool, spoofed int) {
	s.Promise = s.promise()
	var why []string
	if !noticed {
		why = append(why, "Envoy never noticed that the picker is gone: its cluster needs a gRPC health check and healthy_panic_threshold 0")
	}
	only := func(seen map[string]int, ok func(string) bool) bool {
		for what := range seen {
			if !ok(what) {
				return false
			}
		}
		return len(seen) > 0
	}
	good := func(what string) bool { return what == "200" }
	refused := func(what string) bool { n, err := strconv.Atoi(what); return err == nil && n >= 500 }
	switch {
	case e.failOpen && !only(s.After, good):
		why = append(why, "fail-open does not hold: with the picker gone requests end in "+counts(s.After))
	case !e.failOpen && !only(s.After, refused):
		why = append(why, "fail-close does not hold: with the picker gone requests end in "+counts(s.After))
	}
	if s.Step == "stop" && !only(s.Before, good) && !(noticed && !e.failOpen && only(s.Before, func(w string) bool { return good(w) || refused(w) })) {
		why = append(why, "a picker that drains loses requests: "+counts(s.Before))
	}
	if s.Step == "stop" && s.Stream != "whole" {
		why = append(why, "a picker that drains cut a running stream")
	}
	why = append(why, s.hanging(e)...)
	if spoofed > 0 {
		why = append(why, fmt.Sprintf("%d requests reached an address that the client named: strip the destination header before ext_proc", spoofed))
	}
	for _, name := range s.wantAlerts(e) {
		if !slices.Contains(s.Alerts, name) {
			why = append(why, "alert "+name+" does not fire")
		}
	}
	s.Holds, s.Why = len(why) == 0, strings.Join(why, "; ")
}

// hanging says what waited for longer than it may.
func (s *DrillStep) hanging(e *drillEnvoy) []string {
	switch {
	case s.Step != "freeze" && s.SlowestMS > quick:
		return []string{fmt.Sprintf("a request hung for %.1f s", s.SlowestMS/1e3)}
	case s.Step == "freeze" && e.idle == 0:
		return []string{"Envoy has no stream_idle_timeout: what hangs at a frozen picker hangs for ever"}
	case s.Step == "freeze" && s.SlowestMS > quick+2*float64(e.idle.Milliseconds()):
		// The answer that ends it passes by the frozen picker, too: twice the time.
		return []string{fmt.Sprintf("a request hung for %.1f s, longer than twice the stream idle time-out of %s", s.SlowestMS/1e3, e.idle)}
	}
	return nil
}

func (s *DrillStep) promise() string {
	switch {
	case s.Step == "stop" && s.Mode == "fail-open":
		return "no request lost, the running stream is finished"
	case s.Step == "stop":
		return "picks until Envoy has noticed, then 5xx at once; the running stream is finished"
	case s.Mode == "fail-open":
		return "200 once Envoy has noticed, nothing hangs for longer than twice its idle time-out"
	}
	return "5xx once Envoy has noticed, nothing hangs for longer than twice its idle time-out"
}

// wantAlerts are the alerts that a step has to fire.
func (s *DrillStep) wantAlerts(e *drillEnvoy) []string {
	want := []string{"PickerUnhealthy", "PickerStreamsFail"}
	if e.failOpen {
		want = append(want, "PickerBypassed")
	}
	return want
}

func counts(seen map[string]int) string {
	var out []string
	for what, n := range seen {
		out = append(out, fmt.Sprintf("%d x %s", n, what))
	}
	sort.Strings(out)
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

func printDrill(w io.Writer, rep *DrillReport) {
	t := newTable("STEP", "ENVOY", ">NOTICED", "UNTIL THEN", "AFTER", ">SLOWEST", "STREAM", ">BACK", "ALERTS", "")
	for i := range rep.Steps {
		s := &rep.Steps[i]
		verdict, noticed := "holds", "never"
		if !s.Holds {
			verdict = "DOES NOT HOLD"
		}
		if s.NoticedMS >= 0 {
			noticed = span(time.Duration(s.NoticedMS * 1e6))
		}
		t.add(s.Step, s.Envoy, noticed, counts(s.Before), counts(s.After), span(time.Duration(s.SlowestMS*1e6)), s.Stream,
			span(time.Duration(s.RecoveredMS*1e6)), strings.Join(s.Alerts, " "), verdict)
	}
	t.write(w)
	for i := range rep.Steps {
		if s := &rep.Steps[i]; !s.Holds {
			fmt.Fprintf(w, "%s, %s: promised: %s\n  %s\n", s.Step, s.Envoy, s.Promise, s.Why)
		}
	}
	if rep.Failed == 0 {
		fmt.Fprintf(w, "every promise holds in %s\n", plural(len(rep.Steps), "step"))
	}
}
