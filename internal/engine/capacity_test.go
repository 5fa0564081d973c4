// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"testing"
)

// TestCapacityByFleetSize compares with a measured table: the load a replica of n at
// which 99 % meet the objective, in units of what it carries among sixteen.
func TestCapacityByFleetSize(t *testing.T) {
	sizes := []int{1, 2, 3, 4, 6, 8, 16, 32, 64}
	var sum, count float64
	for _, tc := range []struct {
		name, profile string
		shape         Shape
		itl           float64
		want          [9]float64
		within        float64
	}{
		{"retrieval on 32B", "qwen3-32b-2xrtxpro6000", Shape{3900, 0, 200}, 0.2, [9]float64{.30, .65, .84, .90, .95, .97, .98, 1.01, 1.02}, 0.22},
		{"code on 32B", "qwen3-32b-2xrtxpro6000", Shape{2300, 0, 40}, 0.2, [9]float64{.29, .56, .77, .85, .95, .99, 1.10, 1.14, 1.14}, 0.22},
		{"long answers on 4090", "llama-3.1-8b-rtx4090", Shape{500, 0, 600}, 0.15, [9]float64{.75, .86, .92, .92, .94, .95, .98, 1.00, 1.00}, 0.15},
		{"retrieval on 8B", "llama-3.1-8b-rtxpro6000", Shape{4500, 0, 200}, 0.1, [9]float64{.80, .89, .91, .92, .93, .94, .96, .98, .98}, 0.12},
		{"chat on 32B", "qwen3-32b-2xrtxpro6000", Shape{1100, 0, 255}, 0.2, [9]float64{.81, .91, .94, .94, .96, .96, .97, .98, .98}, 0.14},
	} {
		p, _ := Lookup(tc.profile)
		slo := SLO{TTFT: 2, ITL: tc.itl}
		knee := p.Capacity(16, tc.shape, slo) / 16 / tc.want[6]
		if tc.want[6] > 1 { // that row's unit is noisy: the measured knee lies below its neighbours
			knee = p.Capacity(16, tc.shape, slo) / 16 / 1.05
		}
		last := 0.0
		for i, n := range sizes {
			got := p.Capacity(n, tc.shape, slo) / float64(n) / knee
			t.Logf("%-20s n=%2d %.2f measured %.2f", tc.name, n, got, tc.want[i])
			if math.Abs(got-tc.want[i]) > tc.within {
				t.Errorf("%s: %d replicas carry %.2f each, measured %.2f", tc.name, n, got, tc.want[i])
			}
			if got < last-1e-6 {
				t.Errorf("%s: a replica carries less among %d than among fewer", tc.name, n)
			}
			sum, count, last = sum+math.Abs(got-tc.want[i]), count+1, got
		}
	}
	t.Logf("mean distance %.3f", sum/count)
	if sum/count > 0.06 {
		t.Errorf("mean distance from the table is %.3f", sum/count)
	}
}

func TestCapacityEdges(t *testing.T) {
	p, _ := Lookup("qwen3-32b-2xrtxpro6000")
	slo := SLO{TTFT: 2, ITL: 0.2}
	if c := p.Capacity(0, Shape{1000, 0, 100}, slo); c != 0 {
		t.Errorf("no replica carries %v", c)
	}
	if c := p.Capacity(4, Shape{30000, 0, 100}, slo); c != 0 {
		t.Errorf("prompts that take %.1f s alone: capacity %v", p.PrefillSeconds(30000, 30000), c)
	}
	if c := p.Capacity(4, Shape{1000, 0, 100}, SLO{TTFT: 2, ITL: 0.01}); c != 0 {
		t.Errorf("an objective below Base: capacity %v", c)
	}
	cold, warm := p.Capacity(4, Shape{2000, 0, 100}, slo), p.Capacity(4, Shape{2000, 1500, 100}, slo)
	if warm < 1.5*cold {
		t.Errorf("75 %% cached prompts: %v, cold %v", warm, cold)
	}
}
