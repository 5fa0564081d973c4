// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
)

// 64 slots hold at most 78 % of what 874 adapters of this popularity are asked for;
// copies of the two most popular, which one replica cannot carry, take a little more.
func TestLoRABest(t *testing.T) {
	if b := LoRABest(874, 16, 4, 1.18); math.Abs(b-0.775) > 0.005 {
		t.Errorf("best possible share %.3f, want about 0.775", b)
	}
	if b := LoRABest(10, 16, 4, 1.18); b != 1 {
		t.Errorf("10 adapters in 64 slots: %.3f, want 1", b)
	}
	if b := LoRABest(874, 16, 16, 1.18); b < 0.86 {
		t.Errorf("256 slots: %.3f", b)
	}
}

// Caches of two slots by hand.
func TestCeilingOf(t *testing.T) {
	asked := []string{"a", "b", "c", "a", "b", "a", "", "d", "a"}
	c := CeilingOf(asked, 2)
	// In the future's knowledge: a and b load, c takes b's place, a is there, b takes c's, a
	// is there, d takes b's, a is there. The base model needs no slot.
	if want := 4.0 / 9; math.Abs(c.Clairvoyant-want) > 1e-9 {
		t.Errorf("clairvoyant %.3f, want %.3f", c.Clairvoyant, want)
	}
	// LRU: only the third and the last a, and the base model, meet what they need.
	if want := 3.0 / 9; math.Abs(c.SharedLRU-want) > 1e-9 {
		t.Errorf("LRU %.3f, want %.3f", c.SharedLRU, want)
	}
	// a four times, b twice, and the base model.
	if want := 7.0 / 9; math.Abs(c.StaticTop-want) > 1e-9 {
		t.Errorf("static %.3f, want %.3f", c.StaticTop, want)
	}
	if c := CeilingOf(nil, 2); c != (LoRACeiling{}) {
		t.Errorf("nothing asked: %+v", c)
	}
}

// Placement finds most of what any placement could, evenly, and far ahead of random.
func TestLoRAPlacement(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	r, err := AskLoRA(LoRASpec{Profile: p, Replicas: 16, Slots: 4, Adapters: 874, Zipf: 1.18, Use: 0.3, Requests: 8000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	ours, random := r.Policies[0], r.Policies[len(r.Policies)-1]
	t.Logf("best %.3f, ceiling %+v, ours %+v, random %+v", r.Best, r.Ceiling, ours, random)
	if ours.Thrash || !random.Thrash || ours.Loads > r.Bound || ours.Evictions > ours.Loads {
		t.Errorf("the bound is %.1f loads a replica and minute; ours %+v, random %+v", r.Bound, ours, random)
	}
	if ours.Resident <= r.Ceiling.SharedLRU || ours.Resident > r.Ceiling.Clairvoyant {
		t.Errorf("resident %.3f; one LRU over all slots has %.3f, one that knows the future %.3f", ours.Resident, r.Ceiling.SharedLRU, r.Ceiling.Clairvoyant)
	}
	for _, p := range r.Policies {
		if len(p.Switched) > 0 {
			t.Errorf("%s: switched off %v", p.Policy, p.Switched)
		}
	}
	if without := r.Policies[2]; without.Resident >= ours.Resident-0.2 {
		t.Errorf("without the adapter's term %.3f are resident, with it %.3f", without.Resident, ours.Resident)
	}
	if ours.Resident < 0.88*r.Best || ours.Imbalance > 1.10 {
		t.Errorf("resident %.3f of at most %.3f, imbalance %.3f", ours.Resident, r.Best, ours.Imbalance)
	}
	if ours.TTFTMean > random.TTFTMean/4 || ours.Loads > random.Loads/2 {
		t.Errorf("mean TTFT %.0f ms, random %.0f ms; loads %.1f and %.1f a replica and minute", ours.TTFTMean, random.TTFTMean, ours.Loads, random.Loads)
	}
}

// Affinity that helps is never switched off, however long loads take.
func TestLoRAAffinityStaysOn(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	ours := LoRAContenders()[:2]
	for _, s := range []LoRASpec{
		{Slots: 4, Use: 0.3, Load: 0.01},
		{Slots: 4, Use: 0.6, Load: 0.05},
		{Slots: 8, Use: 0.8, Load: 0.05},
		{Slots: 8, Use: 0.3, Load: 0.3},
	} {
		s.Profile, s.Replicas, s.Adapters, s.Zipf, s.Requests, s.Seed, s.Policies = p, 8, 400, 1.1, 3000, 5, ours
		r, err := AskLoRA(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Policies {
			t.Logf("%d slots, use %g, load %g s, %s: resident %.3f, mean TTFT %.0f ms", s.Slots, s.Use, s.Load, p.Policy, p.Resident, p.TTFTMean)
			if p.Switched[dispatch.GuardAdapter.String()] > 0 {
				t.Errorf("%d slots, use %g, load %g s, %s: switched off %v", s.Slots, s.Use, s.Load, p.Policy, p.Switched)
			}
		}
	}
}

// Where adapters want more places than there are, the queue leaves the order to the
// engine, which lets those pass whose adapter runs.
func TestLoRAQueueDoesNotStarve(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	r, err := AskLoRA(LoRASpec{Profile: p, Replicas: 4, Slots: 2, Adapters: 30, Zipf: 1.18, Use: 0.5, Requests: 6000, Seed: 1, Policies: LoRAContenders()[:2]})
	if err != nil {
		t.Fatal(err)
	}
	queue, direct := r.Policies[0], r.Policies[1]
	t.Logf("with the queue %+v, without %+v", queue, direct)
	if queue.TTFTMean > 1.1*direct.TTFTMean {
		t.Errorf("mean TTFT %.0f ms with the queue, %.0f ms without", queue.TTFTMean, direct.TTFTMean)
	}
}
