// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// recorded lets a policy decide in a drawn state and returns the record.
func recorded(t *testing.T, r *workload.Rand, policy string) *route.Record {
	t.Helper()
	p, _ := engine.Lookup(engine.DefaultProfile)
	tc := &PolicyTest{Name: "t", Policy: policy, Request: PolicyRequest{PromptTokens: r.Between(500, 8000)}, Expect: PolicyExpect{Pick: NoPick}}
	for i := range 6 {
		n := r.Between(0, 30)
		x := PolicyReplica{
			Name: fmt.Sprintf("r%d", i), InFlight: of(n), CachedTokens: r.Between(0, tc.Request.PromptTokens-1),
			Waiting: of(float64(r.Between(0, 9))), KVUsage: of(r.Float64()),
		}
		if n > 0 && r.Float64() < 0.5 {
			x.Streams, x.PendingMS = of(n-1), float64(r.Between(1, 900))
		}
		if _, streams := x.requests(); streams > 0 {
			x.ContextTokens = float64(r.Between(100, 30000))
		}
		tc.Replicas = append(tc.Replicas, x)
	}
	if errs := tc.Check(&p); len(errs) > 0 {
		t.Fatal(errs)
	}
	res := tc.Run(p)
	var c route.Capture
	c.Decision.CopyFrom(&res.Decision, route.MaxCaptured)
	return c.Record()
}

// A policy that is replayed on its own records picks what it picked: in all draws, or
// among ties in some.
func TestReplayOfItself(t *testing.T) {
	for policy := range Replayable() {
		t.Run(policy, func(t *testing.T) {
			rep, err := NewReplay(policy)
			if err != nil {
				t.Fatal(err)
			}
			r := workload.NewRand(7, "replay", 0)
			never := 0
			for range 200 {
				before := rep.Differ
				rep.Add(recorded(t, r, policy))
				if rep.Differ-before == 1 {
					never++
				}
			}
			if rep.Records != 200 || rep.Differ > 20 || never > 0 {
				t.Errorf("%v of %d differ, %d in all draws", rep.Differ, rep.Records, never)
			}
		})
	}
}

// By the price of the penstock policy its own picks are the cheapest.
func TestReplayCosts(t *testing.T) {
	worse, _ := NewReplay(route.PolicyLeastRequests)
	better, _ := NewReplay(route.PolicyPenstock)
	r := workload.NewRand(8, "replay", 0)
	for range 200 {
		worse.Add(recorded(t, r, route.PolicyPenstock))
		better.Add(recorded(t, r, route.PolicyLeastRequests))
	}
	if mean, half := worse.MeanMS(); mean-half <= 0 || worse.Differ < 20 {
		t.Errorf("least requests in the states of penstock: %v differ, %v +- %v ms", worse.Differ, mean, half)
	}
	if mean, half := better.MeanMS(); mean+half >= 0 || better.Differ < 20 {
		t.Errorf("penstock in the states of least requests: %v differ, %v +- %v ms", better.Differ, mean, half)
	}
	worse.Add(&route.Record{})
	worse.Add(&route.Record{Chosen: "a", Candidates: []route.PricedEndpoint{{Endpoint: "a"}}})
	if worse.Records != 200 || worse.Skipped["nothing was chosen"] != 1 || worse.Skipped["without prices"] != 1 {
		t.Errorf("%d records, left out: %v", worse.Records, worse.Skipped)
	}
	if mean, n := worse.PredictionMS(); n != 0 || math.IsNaN(mean) {
		t.Errorf("prediction error %v of %d outcomes", mean, n)
	}
}

func TestReplayRefuses(t *testing.T) {
	for policy, want := range map[string]string{
		route.PolicyRandom: "cannot be replayed", route.PolicySGLang: "those that can are gaie-111", "magic": "no policy",
	} {
		if _, err := NewReplay(policy); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", policy, err)
		}
	}
}
