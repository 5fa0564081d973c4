// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// sharing makes a loop of one pool among several that share accelerators.
func sharing(a *Accelerators, pool string, p scale.Policy) *loop {
	f := New(Options{Pool: pool, Dispatch: dispatch.New(dispatch.Options{Pool: pool, Profile: profile()})})
	l := &loop{st: &stage{f: f, start: 20 * time.Second}, f: f}
	l.Scaler = NewScaler(ScalerOptions{
		Pool: pool, Flow: f, Profile: profile(), SLO: engine.SLO{TTFT: 2, ITL: 0.1}, Policy: p, Mode: ModeAct, Hand: l.st, Models: []string{"m"},
		Hold: dispatch.Hold{Most: 1000}, Accelerators: a,
	})
	return l
}

func sharedBound(x *ScaleRecord) *ScaleConstraint {
	i := slices.IndexFunc(x.Constraints, func(c ScaleConstraint) bool { return c.Name == "shared-accelerators" })
	if i < 0 {
		return nil
	}
	return &x.Constraints[i]
}

// Two pools share ten accelerators. The one of lower priority takes what it can while
// the other is small, gives it up when the other wants it, and never do both hold more
// than there is, draining replicas included; the bound stands in the record.
func TestTwoPoolsShareAccelerators(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := NewAccelerators(10)
		// Two accelerators a replica of big, one of small.
		big := sharing(a, "big", scale.Policy{Min: 1, Max: 8, StartUp: 20, AcceleratorsPerReplica: 2, Priority: 1})
		small := sharing(a, "small", scale.Policy{Min: 1, Max: 8, StartUp: 20, AcceleratorsPerReplica: 1})
		big.run(t)
		small.run(t)
		over := 0
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			for pause(ctx, 50*time.Millisecond) {
				over = max(over, 2*big.st.ids()+small.st.ids()-10)
			}
		})
		time.Sleep(time.Minute)
		if err := small.Pin(8); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if small.st.ids() != 8 || big.st.ids() != 1 || sharedBound(small.Last()) != nil {
			t.Errorf("there is room for 8 and 1: %d and %d: %s", small.st.ids(), big.st.ids(), small.Last().Sentence)
		}
		if err := big.Pin(4); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if c := sharedBound(big.Last()); big.st.ids() != 1 || c == nil || c.Before != 4 || c.After != 1 || !strings.Contains(c.Detail, "free of other pools") {
			t.Errorf("nothing is free yet: %d replicas, %+v", big.st.ids(), c)
		}
		time.Sleep(5 * time.Minute)
		c := sharedBound(small.Last())
		if big.st.ids() != 4 || small.st.ids() != 2 || c == nil || c.Before != 8 || c.After != 2 || small.Last().Binding != "shared-accelerators" ||
			!strings.Contains(c.Detail, "2 of 10 accelerators are its share, at 1 a replica and priority 0") {
			t.Errorf("by priority: %d and %d, %+v", big.st.ids(), small.st.ids(), c)
		}
		cancel()
		if wg.Wait(); over > 0 {
			t.Errorf("%d accelerators too many", over)
		}
		a.SetTotal(0)
		time.Sleep(time.Minute)
		if small.st.ids() != 8 {
			t.Errorf("without a budget: %d", small.st.ids())
		}
	})
}

// Whatever pools want in whatever order, what they hold and were granted never exceeds
// the total, once it did not.
func TestSharesNeverExceedTotal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		total := rapid.IntRange(1, 24).Draw(rt, "total")
		a := NewAccelerators(total)
		names := []string{"a", "b", "c"}
		size, holds := make([]int, len(names)), make([]int, len(names))
		for i, n := range names {
			a.join(n)
			size[i] = rapid.IntRange(1, 4).Draw(rt, "size")
		}
		now := fleet.Time(1e18)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(rt, "dt")) * time.Second)
			i := rapid.IntRange(0, len(names)-1).Draw(rt, "pool")
			c := scale.Claim{Pool: names[i], PerReplica: size[i], Min: rapid.IntRange(0, 3).Draw(rt, "min"), Want: rapid.IntRange(0, 12).Draw(rt, "want"),
				Priority: rapid.IntRange(0, 2).Draw(rt, "priority"), StartUp: 60}
			c.Min = min(c.Min, c.Want)
			acts := rapid.Bool().Draw(rt, "acts")
			most, why := a.ask(now, c, holds[i], acts)
			got := min(c.Want, most)
			if got < c.Want && why == "" || got < 0 {
				rt.Fatalf("%d of %d without a reason", got, c.Want)
			}
			if acts {
				holds[i] = got // a replica that drains holds longer: then less is free
			}
			used := 0
			for k := range holds {
				used += holds[k] * size[k]
			}
			if used > total {
				rt.Fatalf("%v of %v are %d of %d", holds, size, used, total)
			}
		}
	})
}

// A pool that only recommends says what it would get and keeps nothing from others.
func TestShareOfRecommendingPool(t *testing.T) {
	a := NewAccelerators(8)
	a.join("acts")
	a.join("recommends")
	claim := func(pool string, want int) scale.Claim {
		return scale.Claim{Pool: pool, PerReplica: 1, Want: want, Priority: len(pool)}
	}
	if n, why := a.ask(1e18, claim("acts", 6), 1, true); n != 1 || !strings.Contains(why, "pool recommends") {
		t.Errorf("before all are known: %d, %s", n, why)
	}
	if n, why := a.ask(1e18, claim("recommends", 9), 2, false); n != 7 || why == "" {
		t.Errorf("it is told %d, %s", n, why)
	}
	if n, why := a.ask(1e18, claim("acts", 6), 1, true); n != 6 || why != "" {
		t.Errorf("%d, %s", n, why)
	}
}
