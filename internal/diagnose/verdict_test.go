// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"math"
	"strings"
	"testing"
)

func TestVerdict(t *testing.T) {
	nan := math.NaN()
	calm := Glance{Pool: "chat", Ready: 8, Replicas: 8, Requests: 500, TTFTP95MS: 240, SLOTTFTMS: 2000, Hit: 0.54, Random: 0.09, KVMax: 0.4, Waiting: 0}
	with := func(change func(*Glance)) Glance {
		g := calm
		change(&g)
		return g
	}
	stale := New("signals-stale", "replica chat/r1", "", 0)
	stale.Message = "its metrics are 40 s old"
	stale.Severity = Warning
	for _, c := range []struct {
		g       Glance
		state   State
		binding string
		want    string
	}{
		{calm, StateGood, "", "Users are fine: TTFT p95 240 ms, promised 2.0 s. 54 % of prompt tokens came from a cache; a random replica would have had 9 %."},
		{with(func(g *Glance) { g.TTFTP95MS, g.Waiting = 3100, 34 }), StateDegraded, "queue", "Users wait: TTFT p95 3.1 s, promised 2.0 s. Queue time binds: 34 requests wait at 8 ready replicas."},
		{with(func(g *Glance) { g.TTFTP95MS, g.Waiting, g.KVMax = 3100, 4, 0.97 }), StateDegraded, "kv_cache", "the fullest replica is at 97 %, and 4 requests wait"},
		{with(func(g *Glance) { g.TTFTP95MS = 3100 }), StateDegraded, "prefill", "the prompts themselves"},
		{with(func(g *Glance) { g.Held = 12 }), StateStrained, "queue", "12 requests wait"},
		{with(func(g *Glance) { g.Failed = 10 }), StateDegraded, "errors", "2.0 % of requests fail: 10 of 500"},
		{with(func(g *Glance) { g.Findings = []Finding{stale, stale} }), StateStrained, "", "signals-stale (r1): its metrics are 40 s old; and 1 more."},
		{with(func(g *Glance) { g.Requests, g.TTFTP95MS = 0, nan }), StateIdle, "", "No requests in the last minute; 8 replicas are ready."},
		{with(func(g *Glance) { g.Ready, g.Coming, g.Held = 0, 1, 3 }), StateStarting, "replicas", "1 replica is on the way, 3 requests wait."},
		{with(func(g *Glance) { g.Ready = 0 }), StateDown, "replicas", "None of 8 replicas is ready"},
		{with(func(g *Glance) { g.Ready, g.Replicas = 0, 0 }), StateDown, "replicas", "has no replica"},
		// Unknown signals make nobody wait.
		{with(func(g *Glance) { g.Waiting, g.KVMax, g.Hit, g.TTFTP95MS, g.InFlight = nan, nan, nan, nan, 2 }), StateGood, "", "Nothing is known to be wrong"},
	} {
		v := c.g.Verdict()
		if v.State != c.state || v.Binding != c.binding || !strings.Contains(v.Sentence, c.want) || v.Command == "" {
			t.Errorf("%+v\n want %s, %q, %q", v, c.state, c.binding, c.want)
		}
	}
}
