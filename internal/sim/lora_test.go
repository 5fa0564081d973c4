// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"

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

// Placement finds most of what any placement could, evenly, and far ahead of random.
func TestLoRAPlacement(t *testing.T) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	r, err := AskLoRA(LoRASpec{Profile: p, Replicas: 16, Slots: 4, Adapters: 874, Zipf: 1.18, Use: 0.3, Requests: 8000, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	ours, random := r.Policies[0], r.Policies[len(r.Policies)-1]
	t.Logf("best %.3f, ours %+v, random %+v", r.Best, ours, random)
	if ours.Resident < 0.82*r.Best || ours.Imbalance > 1.10 {
		t.Errorf("resident %.3f of at most %.3f, imbalance %.3f", ours.Resident, r.Best, ours.Imbalance)
	}
	if ours.TTFTMean > random.TTFTMean/4 || ours.Loads > random.Loads/2 {
		t.Errorf("mean TTFT %.0f ms, random %.0f ms; loads %.1f and %.1f a replica and minute", ours.TTFTMean, random.TTFTMean, ours.Loads, random.Loads)
	}
}
