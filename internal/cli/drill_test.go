// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAlertsThatShipCanBeEvaluated(t *testing.T) {
	rules, err := envoyAlerts()
	if err != nil {
		t.Fatal(err)
	}
	before := `envoy_http_ext_proc_streams_failed{envoy_http_conn_manager_prefix="inference"} 3
envoy_http_ext_proc_failure_mode_allowed{envoy_http_conn_manager_prefix="inference"} 0
envoy_cluster_membership_healthy{envoy_cluster_name="pool"} 3
envoy_cluster_membership_healthy{envoy_cluster_name="picker"} 1
`
	after := strings.NewReplacer("prefix=\"inference\"} 3", "prefix=\"inference\"} 5", "\"picker\"} 1", "\"picker\"} 0").Replace(before)
	firing := func(a, b string) (out []string) {
		for _, r := range rules {
			if r.fires(a, b) {
				out = append(out, r.Name)
			}
		}
		return out
	}
	if got := firing(before, before); len(got) != 0 {
		t.Errorf("%v fire although nothing happened", got)
	}
	if got := firing(before, after); !slices.Equal(got, []string{"PickerStreamsFail", "PickerUnhealthy"}) {
		t.Errorf("fires %v", got)
	}
	if got := firing("", after); !slices.Equal(got, []string{"PickerUnhealthy"}) {
		t.Errorf("a counter without a value before fires: %v", got)
	}
}

func TestDrillJudges(t *testing.T) {
	all := []string{"PickerUnhealthy", "PickerStreamsFail", "PickerBypassed"}
	open := &drillEnvoy{name: "fail-open", failOpen: true, idle: 4 * time.Second}
	closed := &drillEnvoy{name: "fail-close", idle: 4 * time.Second}
	good := map[string]int{"200": 10}
	bad := map[string]int{"500": 10}
	for _, c := range []struct {
		name    string
		e       *drillEnvoy
		s       DrillStep
		noticed bool
		spoofed int
		why     string // "" holds
	}{
		{"kill, open", open, DrillStep{Step: "kill", Before: map[string]int{"200": 1, "500": 2}, After: good, Stream: "cut"}, true, 0, ""},
		{"kill, closed", closed, DrillStep{Step: "kill", Before: bad, After: bad, Stream: "cut"}, true, 0, ""},
		{"kill, open that is void", open, DrillStep{Step: "kill", After: bad}, true, 0, "fail-open does not hold"},
		{"kill, closed that is open", closed, DrillStep{Step: "kill", After: good}, true, 0, "fail-close does not hold"},
		{"never noticed", open, DrillStep{Step: "kill", After: good}, false, 0, "healthy_panic_threshold"},
		{"stop", open, DrillStep{Step: "stop", Before: good, After: good, Stream: "whole"}, true, 0, ""},
		{"stop that loses", open, DrillStep{Step: "stop", Before: bad, After: good, Stream: "whole"}, true, 0, "loses requests"},
		{"stop that cuts", open, DrillStep{Step: "stop", Before: good, After: good, Stream: "cut"}, true, 0, "cut a running stream"},
		{"freeze", closed, DrillStep{Step: "freeze", Before: map[string]int{"504": 3}, After: bad, SlowestMS: 8300}, true, 0, ""},
		{"freeze, too long", closed, DrillStep{Step: "freeze", After: bad, SlowestMS: 60000}, true, 0, "longer than twice the stream idle time-out"},
		{"freeze without a time-out", &drillEnvoy{}, DrillStep{Step: "freeze", After: bad}, true, 0, "for ever"},
		{"spoofed", open, DrillStep{Step: "kill", After: good}, true, 2, "an address that the client named"},
	} {
		s := c.s
		s.Mode, s.Alerts = mode(c.e.failOpen), all
		s.judge(c.e, c.noticed, c.spoofed)
		if s.Holds != (c.why == "") || !strings.Contains(s.Why, c.why) {
			t.Errorf("%s: holds %v, why %q", c.name, s.Holds, s.Why)
		}
	}
	s := DrillStep{Step: "kill", Mode: "fail-open", After: good, Alerts: all[:2]}
	if s.judge(open, true, 0); s.Holds || !strings.Contains(s.Why, "PickerBypassed") {
		t.Errorf("an alert that does not fire: %q", s.Why)
	}
	var b strings.Builder
	printDrill(&b, &DrillReport{Steps: []DrillStep{s}, Failed: 1})
	if !strings.Contains(b.String(), "DOES NOT HOLD") {
		t.Error(b.String())
	}
}
