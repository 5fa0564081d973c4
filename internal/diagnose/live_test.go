// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"math"
	"slices"
	"testing"
)

// TestLiveRules has, for every rule on the running system, a state where it fires;
// the healthy state must give none.
func TestLiveRules(t *testing.T) {
	healthy := func() *Live {
		return &Live{Ready: true, Pools: []LivePool{{Name: "chat", Arrived: 1000, Ended: 1000, Replicas: []LiveReplica{
			{ID: "r0", Phase: "ready", SignalAge: 1, Running: 3, Waiting: 0, KV: 0.5, Sent: 500},
			{ID: "r1", Phase: "ready", SignalAge: 1, Running: 3, Waiting: 2, KV: 0.6, Sent: 500},
			{ID: "r2", Phase: "loading", PhaseS: 60, SignalAge: math.NaN()},
		}}}}
	}
	if got := healthy().Judge(); len(got) != 0 {
		t.Fatalf("a healthy fleet gives %+v", got)
	}
	for _, c := range []struct {
		code string
		harm func(*Live)
	}{
		{"no-ready-replica", func(l *Live) { l.Pools[0].Replicas = l.Pools[0].Replicas[2:] }},
		{"no-ready-replica", func(l *Live) { l.Pools[0].Replicas = nil }},
		{"replica-failed", func(l *Live) { l.Pools[0].Replicas[0].Phase = "failed" }},
		{"replica-overdue", func(l *Live) { l.Pools[0].Replicas[2].PhaseS = 3000 }},
		{"replica-errors", func(l *Live) { l.Pools[0].Replicas[0].Failed = 100 }},
		{"fleet-full", func(l *Live) {
			for i := range 2 {
				l.Pools[0].Replicas[i].KV, l.Pools[0].Replicas[i].Waiting = 0.97, 4
			}
		}},
		{"signals-stale", func(l *Live) { l.Pools[0].Replicas[0].SignalAge = 40 }},
		{"index-disagrees", func(l *Live) { l.Pools[0].Replicas[0].Disagrees = true }},
		{"rank-pins-ignored", func(l *Live) { l.Pools[0].Replicas[0].PinsIgnored = true }},
		{"queue-harms", func(l *Live) {
			l.Pools[0].Off = []LiveGuard{{Name: "queue", TTFT: 900, WithoutIt: 300, Requests: 60, Times: 1}}
		}},
		{"affinity-harms", func(l *Live) {
			l.Pools[0].Off = []LiveGuard{{Name: "adapter", TTFT: 900, WithoutIt: 300, Requests: 120, Times: 2}}
		}},
		{"requests-refused", func(l *Live) { l.Pools[0].Refused = 100 }},
		{"accounting-healed", func(l *Live) { l.Pools[0].Leaked = 1 }},
		{"config-rejected", func(l *Live) { l.ConfigError = "penstock.yaml:3:1: unknown field" }},
		{"journal-loses-records", func(l *Live) { l.JournalLost = 4 }},
	} {
		l := healthy()
		c.harm(l)
		got := l.Judge()
		if !slices.ContainsFunc(got, func(f Finding) bool { return f.Code == c.code }) || len(got) != 1 {
			t.Errorf("%s: %+v", c.code, got)
		}
		for _, f := range got {
			if _, ok := RuleOf(f.Code); !ok || f.Remedy == "" {
				t.Errorf("%s is in no table or has no remedy", f.Code)
			}
		}
	}
}
