// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// Random histories: within the bounds, never down on what is unknown, never down while
// requests are too late, and the clock may jump.
func TestLoopIsSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := fleet.Time(1e18)
		var at atomic.Int64 // now, for the loop and the callers
		at.Store(int64(now))
		clock := func() fleet.Time { return fleet.Time(at.Load()) }
		f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", Profile: profile()}), Clock: clock})
		defer f.Close()
		least := rapid.IntRange(0, 2).Draw(rt, "min")
		st := &fixedHand{}
		s := NewScaler(ScalerOptions{Pool: "p", Flow: f, Profile: profile(), SLO: engine.SLO{TTFT: 2, ITL: 0.1}, Mode: ModeAct, Hand: st,
			Policy: scale.Policy{Min: least, Max: 6, StartUp: 30, IdleAfter: 60}, Clock: clock})
		ctx := context.Background()
		type held struct {
			g   *Grant
			end fleet.Time
		}
		var flying []held
		waiting := 0
		results := make(chan *Grant, 1000)
		version := uint64(0)
		for range rapid.IntRange(5, 25).Draw(rt, "steps") {
			jump := rapid.SampledFrom([]time.Duration{time.Second, 5 * time.Second, 20 * time.Second, time.Minute, -time.Hour, 10 * time.Minute}).Draw(rt, "dt")
			now = now.Add(jump)
			at.Store(int64(now))
			ready := rapid.IntRange(0, st.want).Draw(rt, "ready")
			phases := make([]fleet.Phase, st.want)
			for i := range phases {
				phases[i] = rapid.SampledFrom([]fleet.Phase{fleet.PhasePending, fleet.PhaseLoading, fleet.PhaseFailed, fleet.PhaseDraining}).Draw(rt, "phase")
				if i < ready {
					phases[i] = fleet.PhaseReady
				}
			}
			if rapid.Bool().Draw(rt, "seen") {
				version++
				sn := snapshot(version, phases...)
				sn.At = now
				f.Observe(sn)
			}
			for range rapid.IntRange(0, 10).Draw(rt, "requests") {
				r := &fleet.Request{Model: "m", PromptTokens: rapid.SampledFrom([]int{4000, 4100, 4200}).Draw(rt, "tokens"), BlockTokens: 128, Stream: true}
				waiting++
				go func() {
					g, err := f.Acquire(ctx, r)
					if err != nil {
						g = nil
					}
					results <- g
				}()
			}
			for { // those that are answered by now
				time.Sleep(0)
				select {
				case g := <-results:
					waiting--
					if g != nil {
						flying = append(flying, held{g, now.Add(3 * time.Second)})
					}
					continue
				default:
				}
				break
			}
			kept := flying[:0]
			for _, h := range flying {
				if now > h.end {
					h.g.Done(fleet.Outcome{Kind: fleet.OutcomeOK, OutputTokens: 20, PromptTokens: -1, CachedTokens: -1})
					continue
				}
				kept = append(kept, h)
			}
			flying = kept
			st.fail = nil
			if rapid.IntRange(0, 5).Draw(rt, "fails") == 0 {
				st.fail = errors.New("away")
			}
			before := st.want
			s.refresh(ctx)
			x := s.Evaluate(ctx)
			after := st.want
			late := f.Waiting(2 * time.Second).Late
			switch {
			case after > 6 || after < 0:
				rt.Fatalf("%d replicas outside of 0..6: %s", after, x.Sentence)
			case st.fail != nil && after != before:
				rt.Fatalf("%d -> %d although the hand did not answer", before, after)
			case after < before && late > 0 && x.Desired != nil && *x.Desired < x.Current:
				rt.Fatalf("%d -> %d while %d requests are too late: %s", before, after, late, x.Sentence)
			}
		}
		f.Close()
		for ; waiting > 0; waiting-- {
			<-results
		}
	})
}

// fixedHand has what was asked for.
type fixedHand struct {
	want int
	fail error
}

func (h *fixedHand) Name() string { return "process" }
func (h *fixedHand) State(context.Context) (HandState, error) {
	return HandState{Replicas: h.want, Wanted: h.want}, h.fail
}
func (h *fixedHand) Apply(_ context.Context, n int, _ []string) error {
	h.want = n
	return nil
}

// A clock that leaps three hours, and one that goes back, change nothing by themselves.
func TestClockLeaps(t *testing.T) {
	now := fleet.Time(1e18)
	clock := func() fleet.Time { return now }
	f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", Profile: profile()}), Clock: clock})
	defer f.Close()
	st := &fixedHand{want: 3}
	s := NewScaler(ScalerOptions{Pool: "p", Flow: f, Profile: profile(), SLO: engine.SLO{TTFT: 2, ITL: 0.1}, Mode: ModeAct, Hand: st,
		Policy: scale.Policy{Min: 3, Max: 6, StartUp: 30}, Clock: clock})
	for _, d := range []time.Duration{5 * time.Second, 3 * time.Hour, 5 * time.Second, -2 * time.Hour, 5 * time.Second} {
		now = now.Add(d)
		sn := snapshot(1, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady)
		sn.At = now
		f.Observe(sn)
		s.refresh(t.Context())
		if x := s.Evaluate(t.Context()); st.want != 3 || x.Desired == nil {
			t.Errorf("after %v: %d, %+v", d, st.want, x)
		}
	}
}

// Replicas that used to tell and all fail to are not taken away, idle as the pool is; a
// pool whose replicas never told goes to zero as ever.
func TestSilenceTakesNothingAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 0, Max: 4, StartUp: 1, IdleAfter: 30}, ModeAct, time.Second)
		l.run(t)
		time.Sleep(time.Second)
		if err := l.ask(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		l.st.mu.Lock()
		l.st.scraped, l.st.mute = fleet.At(time.Now()), "connection refused"
		l.st.mu.Unlock()
		time.Sleep(2 * time.Minute)
		kept := slices.ContainsFunc(l.History(100), func(x *ScaleRecord) bool { return x.Binding == "silent" && *x.Desired == 1 })
		if l.st.ids() != 1 || !kept {
			t.Errorf("%d replicas: %s", l.st.ids(), l.Last().Sentence)
		}
		l.st.mu.Lock()
		l.st.scraped, l.st.mute = 0, "no known metric"
		l.st.mu.Unlock()
		time.Sleep(time.Minute)
		if l.st.ids() != 0 {
			t.Errorf("%d replicas: %s", l.st.ids(), l.Last().Sentence)
		}
	})
}

// A replica that starts when a question begins is ready once its start-up is over, and one
// that failed never is.
func TestAskedFleetBegins(t *testing.T) {
	at := fleet.Time(1e12)
	p := &asked{change: func(*scale.Policy) {}}
	for i, want := range []int{1, 1, 2} {
		tick := &ScaleTick{
			Time: at.AddSeconds(float64(20 * i)), Policy: &scale.Policy{Max: 2, Min: 2}, Capacity: []float64{0, 1, 2},
			Replicas: []ReplicaPhase{
				{ID: "a", Phase: fleet.PhaseReady, Since: at.AddSeconds(-600)}, {ID: "b", Phase: fleet.PhaseLoading, Since: at.AddSeconds(-30)},
				{ID: "c", Phase: fleet.PhaseFailed, Since: at.AddSeconds(-30)},
			},
			Recommendation: &scale.Recommendation{StartP50S: 60, KnownForS: 600},
		}
		if i > 0 {
			tick.Policy, tick.Capacity = nil, nil
		}
		p.tick(tick)
		if len(p.fleet) != 2 || p.before.NowReady != want {
			t.Errorf("after %d s %d of %+v are ready, want %d", 20*i, p.before.NowReady, p.fleet, want)
		}
	}
}
