// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

var both = [2]bool{true, true}

func start(t *testing.T, s Spec) *Rollout {
	t.Helper()
	if len(s.Steps) == 0 {
		s.Steps = []float64{.1, .5, 1}
	}
	if s.Name == "" {
		s.Name = "food-review"
	}
	r, err := New(0, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func user(i int) Key { return Key{Tenant: "t", User: uint64(i) + 1} }

func TestShares(t *testing.T) {
	for _, w := range [][2]float64{{90, 10}, {9, 1}, {900, 100}} {
		share, err := Share(w[0], w[1])
		if err != nil || math.Abs(share-.1) > 1e-12 {
			t.Fatal(share, err)
		}
		r := start(t, Spec{Sticky: StickyUser, Steps: []float64{share, 1}})
		n := 0
		for i := range 10000 {
			n += int(r.Assign(0, user(i), both))
		}
		if n < 900 || n > 1100 {
			t.Errorf("weights %v: the canary got %d of 10000", w, n)
		}
	}
	for _, w := range [][2]float64{{0, 0}, {-1, 2}, {math.NaN(), 1}, {math.Inf(1), 1}} {
		if _, err := Share(w[0], w[1]); err == nil {
			t.Errorf("%v passed", w)
		}
	}
	if s, err := Share(0, 1); s != 1 || err != nil {
		t.Error(s, err)
	}
}

func TestFewKeysMove(t *testing.T) {
	r := start(t, Spec{Sticky: StickyUser, Steps: []float64{.1, .2, 1}})
	var before [10000]Arm
	for i := range before {
		before[i] = r.Assign(0, user(i), both)
		if again := r.Assign(5, user(i), both); again != before[i] {
			t.Fatal("a key changed its version at one weight")
		}
	}
	if err := r.Promote(10, false, "op"); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for i := range before {
		after := r.Assign(11, user(i), both)
		if after != before[i] {
			moved++
		}
		if before[i] == Canary && after == Baseline {
			t.Fatal("a key lost the canary while its weight rose")
		}
	}
	if moved < 800 || moved > 1200 {
		t.Errorf("%d of 10000 keys moved", moved)
	}
}

// A session keeps its version whatever the weights do, except where it is withdrawn.
func TestSessionsKeepTheirVersion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, err := New(0, Spec{Name: "x", Sticky: Sticky(rapid.IntRange(0, 2).Draw(t, "sticky")), Steps: []float64{.1, .3, .6, .9}})
		if err != nil {
			t.Fatal(err)
		}
		began := map[uint64]Arm{}
		now := fleet.Time(1)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				r.Promote(now, rapid.Bool().Draw(t, "full"), "")
			case 1:
				if rapid.IntRange(0, 3).Draw(t, "abort") == 0 {
					r.Abort(now, "")
				}
			default:
				k := Key{Tenant: "t" + strconv.Itoa(rapid.IntRange(0, 3).Draw(t, "tenant")), Session: uint64(rapid.IntRange(1, 20).Draw(t, "session"))}
				arm := r.Assign(now, k, both)
				if old, ok := began[k.Session]; ok && old != arm && !r.State().over() {
					t.Fatalf("session %d went from %s to %s at weight %v", k.Session, old, arm, r.Weight())
				}
				if !r.State().over() {
					began[k.Session] = arm
				}
				if s := r.State(); s == Promoted && arm != Canary || (s == Aborted || s == RolledBack) && arm != Baseline {
					t.Fatalf("%s, and %s was assigned", s, arm)
				}
			}
		}
	})
}

func TestBlockedCanary(t *testing.T) {
	r := start(t, Spec{Sticky: StickyUser, Steps: []float64{.5, 1}})
	for i := range 1000 {
		if r.Assign(1, user(i), [2]bool{true, false}) != Baseline {
			t.Fatal("a request went to a canary without a replica")
		}
	}
	if !r.Tick(1, [2]bool{true, false}) || !r.Blocked() || !r.Steps()[1].Blocked {
		t.Error("nobody says that it is blocked")
	}
	if !r.Tick(2, both) || r.Blocked() {
		t.Error("it stays blocked")
	}
	if n := r.Assign(3, Key{Session: 7}, [2]bool{false, true}); n != Canary {
		t.Error("a baseline without a replica got a request")
	}
}

// traffic plays requests; both versions share bursts of load, as they would live.
type traffic struct {
	rng    *rand.Rand
	load   float64
	ttft   float64 // of the canary over the baseline
	errors [2]float64
}

func (tr *traffic) one(r *Rollout, i int) {
	if i%50 == 0 { // a burst, or its end
		tr.load = .9*tr.load + .3*tr.rng.NormFloat64()
	}
	arm := r.Assign(fleet.Time(i)*1e9, user(i), both)
	s := Sample{TTFT: math.Exp(-1.5 + tr.load + .8*tr.rng.NormFloat64()), ITL: math.Exp(-4 + tr.load/2 + .2*tr.rng.NormFloat64())}
	if arm == Canary {
		s.TTFT *= tr.ttft
	}
	s.Failed = tr.rng.Float64() < tr.errors[arm]
	r.Observe(arm, s)
}

// run plays n requests with a look after each and returns when it was rolled back, -1
// for never, and whether it was ever held.
func (tr *traffic) run(t *testing.T, seed uint64, n int) (back int, held bool) {
	t.Helper()
	tr.rng = rand.New(rand.NewPCG(seed, 7))
	r := start(t, Spec{Sticky: StickyUser, Steps: []float64{.1, 1}})
	for i := range n {
		if tr.one(r, i); i%5 == 0 {
			r.Tick(fleet.Time(i)*1e9, both)
		}
		switch r.State() {
		case RolledBack:
			return i, held
		case Held:
			held = true
		}
	}
	return -1, held
}

// An equal canary is hardly ever sent back, though the guard looks after each request.
func TestEqualCanaryStays(t *testing.T) {
	wrong, held := 0, 0
	for seed := range uint64(60) {
		tr := traffic{ttft: 1, errors: [2]float64{.002, .002}}
		back, h := tr.run(t, seed, 15000)
		if back >= 0 {
			wrong++
		}
		if h {
			held++
		}
	}
	if wrong > 1 || held > 3 { // 1 % and at most 3 tests of a third of it each
		t.Errorf("of 60 equal canaries %d were rolled back, %d held", wrong, held)
	}
}

func TestWorseCanaryGoes(t *testing.T) {
	for _, c := range []struct {
		name string
		tr   traffic
		by   int // requests, a tenth of them to the canary
	}{
		{"errors of 2 % against 0.1 %", traffic{ttft: 1, errors: [2]float64{.001, .02}}, 40000},
		{"half of all fail", traffic{ttft: 1, errors: [2]float64{.001, .5}}, 1500},
		{"TTFT 2 times", traffic{ttft: 2, errors: [2]float64{.001, .001}}, 6000},
		{"TTFT 1.5 times", traffic{ttft: 1.5, errors: [2]float64{.001, .001}}, 25000},
	} {
		for seed := range uint64(5) {
			back, _ := c.tr.run(t, seed, c.by)
			if back < 0 {
				t.Errorf("%s, seed %d: still there after %d requests", c.name, seed, c.by)
			} else if seed == 0 {
				t.Logf("%s: rolled back after %d requests", c.name, back)
			}
		}
	}
}

func TestOneErrorOfThreeIsNotEnough(t *testing.T) {
	r := start(t, Spec{})
	for range 27 {
		r.Observe(Baseline, Sample{TTFT: .1})
	}
	r.Observe(Canary, Sample{TTFT: .1})
	r.Observe(Canary, Sample{TTFT: .1})
	r.Observe(Canary, Sample{Failed: true})
	if r.Tick(1, both); r.State() != Running {
		t.Errorf("%s after 1 error of 3", r.State())
	}
}

func TestStepsFollow(t *testing.T) {
	tr := traffic{rng: rand.New(rand.NewPCG(1, 2)), ttft: 1, errors: [2]float64{0, 0}}
	r := start(t, Spec{Sticky: StickyUser, Steps: []float64{.2, .5, 1}, Auto: true, Every: time.Minute})
	for i := 0; i < 60000 && r.State() == Running; i++ {
		tr.one(r, i)
		if i%20 == 0 {
			r.Tick(fleet.Time(i)*1e9, both)
		}
	}
	if r.State() != Promoted || r.Weight() != 1 {
		t.Fatalf("%s at %v: %+v", r.State(), r.Weight(), r.Evidence())
	}
	steps := r.Steps()
	for i := range steps {
		if s := &steps[i]; s.Why == "" || len(s.Evidence) != 3 || i > 0 && s.At.Sub(steps[i-1].At) < time.Minute {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if err := r.Promote(1, false, ""); err == nil {
		t.Error("promoted twice")
	}
	if err := r.Abort(1, "op"); err != nil || r.Assign(1, user(1), both) != Baseline {
		t.Error("a promoted rollout cannot be undone")
	}
}

func TestOperators(t *testing.T) {
	r := start(t, Spec{Auto: true})
	if r.Hold(1, "ann") != nil || r.State() != Held || r.Steps()[1].By != "ann" {
		t.Error("not held")
	}
	if r.Promote(2, false, "ann") != nil || r.State() != Running || r.Weight() != .5 {
		t.Error("not promoted by a step")
	}
	if r.Promote(3, false, "ann") != nil || r.State() != Promoted {
		t.Error("the last step is the end")
	}
	n := start(t, Spec{})
	n.Restore(4, RolledBack, 0)
	if n.State() != RolledBack || n.Assign(5, user(1), both) != Baseline {
		t.Error("a restart forgot a rollback")
	}
	for _, s := range []Spec{{}, {Steps: []float64{.5, .1}}, {Steps: []float64{0}}, {Steps: []float64{2}}, {Steps: []float64{.1}, Guard: Guard{TTFT: .5}}, {Steps: []float64{math.NaN()}}} {
		if _, err := New(0, s); err == nil {
			t.Errorf("%+v passed", s)
		}
	}
}

// The sequence of a probability covers it at every moment, but for alpha.
func TestRateCovers(t *testing.T) {
	for _, p := range []float64{.001, .02, .3} {
		missed := 0
		for seed := range uint64(200) {
			rng := rand.New(rand.NewPCG(seed, 3))
			var r rate
			for i := range 3000 {
				if r.add(rng.Float64() < p); i%10 == 0 || r.n < 20 {
					if iv := r.interval(.05); p < iv.Low || p > iv.High {
						missed++
						break
					}
				}
			}
		}
		if missed > 16 { // 10 are expected at most; three deviations above
			t.Errorf("p %v was missed in %d of 200 sequences", p, missed)
		}
	}
}
