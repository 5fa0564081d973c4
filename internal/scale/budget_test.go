// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

func replicasOf(s []Share) []int {
	out := make([]int, len(s))
	for i := range s {
		out[i] = s[i].Replicas
	}
	return out
}

func TestDivide(t *testing.T) {
	small := []float64{0, .3, 1.3, 2.5, 3.6, 4.7, 5.8, 6.9, 8} // one replica alone carries little
	for _, c := range []struct {
		name   string
		budget int
		claims []Claim
		want   []int
	}{
		{"enough for all", 20, []Claim{{Pool: "a", Want: 4}, {Pool: "b", Want: 6}}, []int{4, 6}},
		{"priority first, minima before it", 8, []Claim{{Pool: "a", Min: 1, Want: 6, Priority: 1}, {Pool: "b", Min: 2, Want: 6, Priority: 2}}, []int{2, 6}},
		{"minima by priority where even they do not fit", 3, []Claim{{Pool: "a", Min: 3, Want: 3, Priority: 1}, {Pool: "b", Min: 2, Want: 2, Priority: 2}}, []int{1, 2}},
		{"where it saves most", 6, []Claim{{Pool: "a", Want: 6, Offered: 6, Capacity: linear(2)}, {Pool: "b", Want: 6, Offered: 6, Capacity: linear(1)}}, []int{3, 3}},
		{"per accelerator, not per replica", 8, []Claim{{Pool: "a", Want: 4, PerReplica: 4, Offered: 8, Capacity: linear(2)}, {Pool: "b", Want: 4, Offered: 4, Capacity: linear(1)}}, []int{1, 4}},
		{"a first replica that carries little is no reason against the second", 3, []Claim{{Pool: "a", Want: 3, Offered: 2.4, Capacity: small}, {Pool: "b", Want: 3, Offered: 2, Capacity: linear(.7)}}, []int{3, 0}},
		{"eight of sixteen by quota", 8, []Claim{{Pool: "chat", Min: 1, Want: 8, PerReplica: 2}}, []int{4}},
		{"nothing", 0, []Claim{{Pool: "a", Min: 1, Want: 3}}, []int{0}},
		{"a budget below zero", -4, []Claim{{Pool: "a", Want: 3}}, []int{0}},
	} {
		if got := replicasOf(Divide(c.budget, c.claims)); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func drawClaims(rt *rapid.T, sizes bool) []Claim {
	var out []Claim
	for i := range rapid.IntRange(1, 5).Draw(rt, "pools") {
		c := Claim{Pool: string(rune('a' + i)), PerReplica: 1, Priority: rapid.IntRange(0, 2).Draw(rt, "priority")}
		if sizes {
			c.PerReplica = rapid.IntRange(1, 8).Draw(rt, "size")
		}
		c.Want = rapid.IntRange(0, 12).Draw(rt, "want")
		c.Min = rapid.IntRange(0, c.Want).Draw(rt, "min")
		c.Offered = rapid.Float64Range(0, 12).Draw(rt, "offered")
		c.Capacity = []float64{0}
		for range 13 {
			c.Capacity = append(c.Capacity, c.Capacity[len(c.Capacity)-1]+rapid.Float64Range(0.1, 2).Draw(rt, "more"))
		}
		out = append(out, c)
	}
	return out
}

// Whatever is claimed: the sum stays inside the budget, nobody gets more than he
// wants, nothing is kept back that would fit, and with replicas of one size a larger
// budget takes nothing from anybody.
func TestDivideProperties(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		same := rapid.Bool().Draw(rt, "one size")
		claims := drawClaims(rt, !same)
		budget := rapid.IntRange(0, 60).Draw(rt, "budget")
		got := Divide(budget, claims)
		used := 0
		for i, s := range got {
			used += s.Accelerators
			if s.Replicas < 0 || s.Replicas > claims[i].Want || s.Accelerators != s.Replicas*claims[i].PerReplica {
				rt.Fatalf("%+v for %+v", s, claims[i])
			}
		}
		if used > budget {
			rt.Fatalf("%d accelerators of %d", used, budget)
		}
		for i, s := range got {
			if s.Short && claims[i].PerReplica <= budget-used {
				rt.Fatalf("%s is short of replicas while %d accelerators are free", s.Pool, budget-used)
			}
		}
		if !same {
			return
		}
		for i, s := range Divide(budget+1, claims) {
			if s.Replicas < got[i].Replicas {
				rt.Fatalf("one accelerator more takes %s from %d to %d", s.Pool, got[i].Replicas, s.Replicas)
			}
		}
	})
}

// Two pools share ten accelerators and their queues are noisy: the share does not
// follow every reading, and no change is taken back before a replica has started.
func TestBudgetHoldsAgainstNoise(t *testing.T) {
	var b Budget
	now := fleet.Time(time.Hour)
	changes, last := 0, -1
	for k, queue := range [][2]float64{{52, 48}, {71, 29}, {61, 39}, {74, 26}, {64, 36}, {81, 19}, {69, 31}} {
		claims := make([]Claim, 2)
		for i := range claims {
			claims[i] = Claim{Pool: string(rune('a' + i)), Min: 1, Want: int(queue[i]/10) + 1, Offered: queue[i] / 10, Capacity: linear(1), StartUp: 180}
		}
		s := b.Divide(now.AddSeconds(15*float64(k)), 10, claims)
		if s[0].Replicas+s[1].Replicas > 10 {
			t.Fatalf("%+v", s)
		}
		if last >= 0 && s[0].Replicas != last {
			changes++
		}
		last = s[0].Replicas
	}
	if changes > 2 {
		t.Errorf("%d changes in 90 s, want at most 2", changes)
	}
	// A lasting shift is followed once the replicas have started.
	claims := []Claim{{Pool: "a", Min: 1, Want: 9, Offered: 9, Capacity: linear(1), StartUp: 180}, {Pool: "b", Min: 1, Want: 1, Offered: 1, Capacity: linear(1), StartUp: 180}}
	if s := b.Divide(now.AddSeconds(600), 10, claims); s[0].Replicas != 9 {
		t.Errorf("after ten minutes %+v", s)
	}
}
