// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		a, b Order
		want bool
	}{
		{Order{0, 9}, Order{1, 0}, true},
		{Order{1, 0}, Order{0, 9}, false},
		{Order{1, 1}, Order{1, 2}, true},
		{Order{1, 2}, Order{1, 2}, false},
	} {
		if got := c.a.Less(c.b); got != c.want {
			t.Errorf("%v before %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

// While all tenants are backlogged, their service per weight differs by no more
// than one request of each: the bound of start-time fair queueing.
func TestFairShares(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}
		var f Fair
		served := make([]float64, len(names))
		weight := make([]float64, len(names))
		largest := 0.0
		for i, n := range names {
			weight[i] = rapid.Float64Range(0.1, 8).Draw(t, "weight")
			f.SetWeight(n, weight[i])
		}
		for range rapid.IntRange(1, 300).Draw(t, "requests") {
			next := 0
			for i := range names {
				if f.Start(int32(i)) < f.Start(int32(next)) {
					next = i
				}
			}
			w := rapid.Float64Range(0.001, 5).Draw(t, "work")
			largest = max(largest, w)
			f.Serve(int32(next), w)
			served[next] += w
		}
		for i := range names {
			for j := range names {
				d := math.Abs(served[i]/weight[i] - served[j]/weight[j])
				if most := largest/weight[i] + largest/weight[j]; d > most+1e-9 {
					t.Fatalf("service per weight differs by %v, at most %v: %v of %v", d, most, served, weight)
				}
			}
		}
	})
}

// Idle time is no credit.
func TestFairIdle(t *testing.T) {
	var f Fair
	busy, idle := f.Tenant("busy"), f.Tenant("idle")
	for range 100 {
		f.Serve(busy, 1)
	}
	if lag := f.Start(busy) - f.Start(idle); lag > 1+1e-9 {
		t.Errorf("a tenant that was idle may take %v s of work before its peer, at most 1", lag)
	}
}
