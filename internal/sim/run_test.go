// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// chatTraffic is a small open workload of conversations.
func chatTraffic(t testing.TB, spec workload.Spec, n int) *Traffic {
	t.Helper()
	if spec.Kind == "" {
		spec.Kind = workload.KindChat
	}
	g, err := workload.NewGenerator(spec)
	if err != nil {
		t.Fatal(err)
	}
	return NewTraffic(g, n, blockTokens)
}

func smallFleet(replicas int) Config {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.BlockTokens = blockTokens
	return Config{Profile: p, Replicas: replicas, Seed: 3}
}

func contender(t testing.TB, name string) Contender {
	t.Helper()
	c, err := Select([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return c[0]
}

// Whatever happens to the fleet, no request is lost and the same seed gives the
// same bytes.
func TestRunsAreRepeatableAndLoseNothing(t *testing.T) {
	names := []string{}
	for _, c := range Contenders() {
		names = append(names, c.Name)
	}
	rapid.Check(t, func(rt *rapid.T) {
		c := smallFleet(rapid.IntRange(1, 5).Draw(rt, "replicas"))
		c.Index = IndexKind(rapid.IntRange(0, 3).Draw(rt, "index"))
		c.Routers = rapid.IntRange(1, 3).Draw(rt, "routers")
		c.Signals = Signals{
			Interval: rapid.SampledFrom([]float64{0.25, 1, 15}).Draw(rt, "interval"),
			Delay:    rapid.SampledFrom([]float64{0, 0.1}).Draw(rt, "delay"),
			Noise:    rapid.SampledFrom([]float64{0, 0.3}).Draw(rt, "noise"),
			Missing:  rapid.SampledFrom([]float64{0, 0.5}).Draw(rt, "missing"),
		}
		at, deaths := fleet.Time(5e9), 0
		for range rapid.IntRange(0, 3).Draw(rt, "changes") {
			i := rapid.IntRange(0, c.Replicas-1).Draw(rt, "replica")
			kind := rapid.SampledFrom([]ChangeKind{ChangeDie, ChangeDrain}).Draw(rt, "kind")
			if kind == ChangeDie {
				deaths++
			}
			c.Changes = append(c.Changes, Change{At: at, Replica: i, Kind: kind}, Change{At: at + 4e9, Replica: i, Kind: ChangeStart})
			at += 10e9
		}
		kind := rapid.SampledFrom(workload.Kinds()).Draw(rt, "kind")
		tr := chatTraffic(t, workload.Spec{
			Kind: kind, Seed: rapid.Uint64Range(1, 50).Draw(rt, "seed"), Rate: 8, Tenants: 2, MaxContext: 16000,
		}, 150)
		p := contender(t, rapid.SampledFrom(names).Draw(rt, "policy"))
		a, b := RunContender(c, p, tr), RunContender(c, p, tr)
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if string(x) != string(y) {
			rt.Fatalf("two runs of the same seed differ:\n%s\n%s", x, y)
		}
		// A request whose only other replicas died under it too is lost for good.
		if a.Requests+a.Failed+a.Abandoned != tr.requests || deaths == 0 && a.Failed > 0 {
			rt.Fatalf("%d requests ended well, %d failed, %d were not sent, of %d", a.Requests, a.Failed, a.Abandoned, tr.requests)
		}
	})
}

func TestRouterViewAndTruthAgree(t *testing.T) {
	tr := chatTraffic(t, workload.Spec{Seed: 1, Rate: 15}, 1500)
	for _, k := range []IndexKind{IndexOwn, IndexEvents} {
		c := smallFleet(3)
		c.Index = k
		r := RunContender(c, contender(t, OursDirect), tr)
		if r.InFlightError != 0 {
			t.Errorf("%v: own accounting is off by %v requests a replica", k, r.InFlightError)
		}
		if k == IndexEvents && math.Abs(r.PredictedHit-r.HitRatio) > 0.005 {
			t.Errorf("exact events: predicted %v, found %v", r.PredictedHit, r.HitRatio)
		}
		// The index of prompts alone does not know that answers are cached too.
		if k == IndexOwn && (r.PredictedHit > r.HitRatio+0.01 || r.PredictedHit < 0.5*r.HitRatio) {
			t.Errorf("own index: predicted %v, found %v", r.PredictedHit, r.HitRatio)
		}
	}
}

func TestEmptyFleetWaitsForAReplica(t *testing.T) {
	c := smallFleet(2)
	c.Absent = []int{0, 1}
	c.Changes = []Change{{At: 20e9, Replica: 1, Kind: ChangeStart}}
	tr := chatTraffic(t, workload.Spec{Seed: 1, Rate: 4}, 60)
	r := RunContender(c, contender(t, Ours), tr)
	if r.Requests != tr.requests || r.MaxHeld < 10_000 {
		t.Errorf("%d of %d requests ended well, the longest hold was %.0f ms", r.Requests, tr.requests, r.MaxHeld)
	}
}

func TestTooLongRequestsFailAlone(t *testing.T) {
	c := smallFleet(2)
	c.Profile.KVTokens = 2048
	tr := chatTraffic(t, workload.Spec{Kind: workload.KindRAG, Seed: 1, Rate: 4}, 50)
	r := RunContender(c, contender(t, Ours), tr)
	if r.Failed != tr.requests || r.Requests != 0 {
		t.Errorf("%d failed and %d ended well; no prompt of 4,000 tokens fits into 2,048", r.Failed, r.Requests)
	}
}

func TestClosedLoopKeepsItsUsers(t *testing.T) {
	c := smallFleet(1)
	c.Users, c.NoThink = 3, true
	r := RunContender(c, contender(t, Ours), chatTraffic(t, workload.Spec{Seed: 2}, 200))
	// Three users, so by Little's law three requests at any time.
	if l := r.Throughput * r.E2EMean / 1e3; l < 2.5 || l > 3.01 {
		t.Errorf("%.2f requests in flight in the mean, want 3 but for the end", l)
	}
}

// A prefix that everybody shares: at low load its requests stay where it is warm;
// beyond one replica's capacity it becomes resident on more and load is even.
func TestHotPrefixSpreadsUnderLoad(t *testing.T) {
	p := engine.Profile{
		Name: "slots", Model: "m", Accelerator: "none", TensorParallel: 1,
		Base: 0.025, PTok: 1.0 / 8000, KVTokens: 200_000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 16, MaxModelLen: 32_768,
	}
	sessions := func(n int, gap time.Duration) *Traffic {
		var ss []*workload.Session
		r := workload.NewRand(1, "hot", 0)
		for i := range n {
			u := r.Between(50, 400)
			at := time.Duration(i) * gap
			ss = append(ss, &workload.Session{ID: uint64(i), Start: at, Turns: []workload.Turn{{
				At: at, PromptTokens: 2000 + u, OutputTokens: 120,
				Prompt: []workload.Segment{{ID: 1, Tokens: 2000}, {ID: uint64(1000 + i), Tokens: int32(u)}},
			}}})
		}
		return NewTraffic(workload.NewList(ss), 0, p.BlockTokens)
	}
	c := Config{Profile: p, Replicas: 4, Seed: 1}
	for _, name := range []string{Ours, OursDirect} {
		low, lowTokens := sessions(40, 10*time.Second), 40*2000.0
		r := RunContender(c, contender(t, name), low)
		if hit := r.HitRatio * float64(low.tokens) / lowTokens; hit < 0.9 {
			t.Errorf("%s at low load: %.3f of the shareable tokens hit, want 0.9", name, hit)
		}
		burst := sessions(400, 50*time.Millisecond)
		r = RunContender(c, contender(t, name), burst)
		if r.Crowding > 1.5 {
			t.Errorf("%s in the burst: the fullest replica has %.2f times the mean in flight, want at most 1.5", name, r.Crowding)
		}
		if hit := r.HitRatio * float64(burst.tokens) / (400 * 2000); hit < 0.9 || hit > 0.9975 {
			t.Errorf("%s in the burst: %.4f of the shareable tokens hit, want the prefix on two to four replicas", name, hit)
		}
	}
}

func TestWhatIf(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	w, err := AskWhatIf(p, WhatIfAsk{Replicas: 8, Shared: 0.7, Requests: 2000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if f := w.Formula; math.Abs(f.Random-0.0875) > 1e-9 || math.Abs(f.Aware-0.56) > 1e-9 || math.Abs(f.ComputeSaved-0.28) > 1e-9 {
		t.Errorf("formula %+v", w.Formula)
	}
	if math.Abs(w.Ceiling-0.7) > 0.05 || w.Measured.Aware > w.Ceiling || w.Measured.Random > w.Measured.Aware/1.5 {
		t.Errorf("ceiling %v, measured %+v", w.Ceiling, w.Measured)
	}
	one, err := AskWhatIf(p, WhatIfAsk{Replicas: 1, Shared: 0.7, Requests: 2000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if one.Measured.Random != one.Measured.Aware || len(one.Notes) == 0 {
		t.Errorf("one replica leaves nothing to choose: %+v, notes %q", one.Measured, one.Notes)
	}
}

// Parting caches costs hits, by user more than by tenant; what parts nothing costs
// nothing.
func TestIsolation(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	w, err := AskWhatIf(p, WhatIfAsk{Replicas: 4, Shared: 0.7, Requests: 2000, Seed: 1, Tenants: 10, Users: 50})
	if err != nil {
		t.Fatal(err)
	}
	i := w.Isolation
	if i == nil || len(i.Runs) != 3 || i.Tenants != 10 || i.Users != 50 || i.Draws != 5 {
		t.Fatalf("%+v", i)
	}
	shared, tenant, user := i.Runs[0], i.Runs[1], i.Runs[2]
	if shared.CacheSalt != "shared" || shared.Lost != 0 || shared.Computed != 1 {
		t.Errorf("shared %+v", shared)
	}
	if !(shared.Ceiling > tenant.Ceiling && tenant.Ceiling > user.Ceiling) {
		t.Errorf("ceilings %v, %v, %v", shared.Ceiling, tenant.Ceiling, user.Ceiling)
	}
	for _, r := range []IsolationRun{tenant, user} {
		if r.Lost-r.Lost95 <= 0 || r.Computed <= 1 || r.Hit > r.Ceiling {
			t.Errorf("%+v", r)
		}
	}
	if user.Lost <= tenant.Lost {
		t.Errorf("by tenant %v are lost, by user %v", tenant.Lost, user.Lost)
	}
	w, err = AskWhatIf(p, WhatIfAsk{Replicas: 4, Shared: 0.7, Requests: 2000, Seed: 1, Tenants: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range w.Isolation.Runs {
		if r.Lost != 0 || r.Lost95 != 0 {
			t.Errorf("one user in all: %+v", r)
		}
	}
}

// Shares that the simulator reports count what the replicas did, not what the
// router hoped for.
func TestTextIndexUnderestimates(t *testing.T) {
	tr := chatTraffic(t, workload.Spec{Seed: 4, Rate: 10, Prefix: 2000}, 800)
	c := smallFleet(2)
	c.Index = IndexText
	r := RunContender(c, contender(t, route.PolicyLMetric), tr)
	if r.PredictedHit > 0.95*r.HitRatio {
		t.Errorf("half of the prompts are recognised in part only: predicted %v, found %v", r.PredictedHit, r.HitRatio)
	}
}
