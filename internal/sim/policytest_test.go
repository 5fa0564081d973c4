// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
)

func of[T any](v T) *T { return &v }

func policyCase(rs ...PolicyReplica) *PolicyTest {
	return &PolicyTest{
		Name: "t", Request: PolicyRequest{Model: "m", PromptTokens: 3200}, Replicas: rs,
		Averages: PolicyAverages{Pressure: of(0.5), OutputTokens: of(100.0), Exchange: of(0.25), HitShare: of(0.5)},
		Expect:   PolicyExpect{Pick: "a"},
	}
}

// The cost of one state, each term computed by hand from the profile.
func TestPolicyTestCost(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	tc := policyCase(PolicyReplica{
		Name: "a", InFlight: of(5), Streams: of(4), PendingMS: 100, ContextTokens: 8000, CachedTokens: 1205, CacheFull: true,
	})
	if errs := tc.Check(&p); len(errs) > 0 {
		t.Fatal(errs)
	}
	res := tc.Run(p)
	if len(res.Failures) > 0 || res.Why != route.WhyOnly {
		t.Errorf("%v, %s", res.Failures, res.Why)
	}
	c := res.Candidate("a")
	work := 1e3 * p.PrefillSeconds(2000, 3200) // 75 whole blocks of 16 are cached
	step := 1e3 * p.DecodeStepSeconds(4, 8000)
	k := 1 + step/(1e3*p.PTok*float64(p.ChunkTokens))
	for term, want := range map[route.Term]float64{
		route.TermPending: 100 * k, route.TermPrefill: work, route.TermSteps: 1.5 * step,
		route.TermToCome: work / 2, route.TermStreams: work * 0.25 * 4, route.TermEvicted: work,
		route.TermDecode: 0.25 * 100 * (step - 1e3*p.Base),
	} {
		if got := float64(c.Terms[term]); math.Abs(got/want-1) > 1e-4 {
			t.Errorf("%s is %v ms, want %v ms", term, got, want)
		}
	}
}

func TestPolicyTestDefaults(t *testing.T) {
	for _, tc := range []struct {
		r                 PolicyReplica
		inFlight, streams int
	}{
		{PolicyReplica{}, 0, 0},
		{PolicyReplica{PendingMS: 5}, 1, 0},
		{PolicyReplica{Streams: of(3)}, 3, 3},
		{PolicyReplica{Streams: of(3), PendingTokens: 9}, 4, 3},
		{PolicyReplica{InFlight: of(3)}, 3, 3},
		{PolicyReplica{InFlight: of(3), PendingMS: 5}, 3, 2},
		{PolicyReplica{InFlight: of(7), Streams: of(2), PendingMS: 5}, 7, 2},
	} {
		if n, s := tc.r.requests(); n != tc.inFlight || s != tc.streams {
			t.Errorf("%+v: %d in flight, %d streams, want %d and %d", tc.r, n, s, tc.inFlight, tc.streams)
		}
	}
}

// Every policy answers every legal test, and what is illegal is named.
func TestPolicyTestCheck(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	for _, name := range route.Names() {
		tc := policyCase(PolicyReplica{Name: "a", Waiting: of(1.0), KVUsage: of(0.2)}, PolicyReplica{Name: "b", Phase: "failed"})
		tc.Policy = name
		if errs := tc.Check(&p); len(errs) > 0 {
			t.Fatal(errs)
		}
		if res := tc.Run(p); res.Pick != "a" || len(res.Failures) > 0 {
			t.Errorf("%s picks %s of one: %v", name, res.Pick, res.Failures)
		}
	}
	for want, r := range map[string]PolicyReplica{
		"replicas[0].streams: is 4, must be 0 to in_flight, 3":  {Name: "a", InFlight: of(3), Streams: of(4)},
		"replicas[0].context_tokens: there is no stream":        {Name: "a", ContextTokens: 5},
		"replicas[0].kv_usage: is NaN, must be 0 to 1":          {Name: "a", KVUsage: of(math.NaN())},
		"replicas[0].cached_tokens: is 3201, must be 0 to 3200": {Name: "a", CachedTokens: 3201},
		"replicas[0].dropped: \"lost\" is unknown":              {Name: "a", Dropped: "lost"},
		"replicas[0].name: a replica needs a name":              {},
	} {
		got := ""
		for _, e := range policyCase(r).Check(&p) {
			got += e.Error() + "\n"
		}
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
}
