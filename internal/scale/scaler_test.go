// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

func testPolicy(least, most int) Policy {
	capacity := make([]float64, 33)
	for n := range capacity {
		capacity[n] = float64(n) * 0.9
	}
	return Policy{Pool: "p", Min: least, Max: most, Capacity: capacity, StartUp: 60}
}

func snapshotOf(now fleet.Time, ready, loading int) *fleet.Snapshot {
	s := &fleet.Snapshot{Pool: "p", Version: 1, At: now}
	for i := range ready + loading {
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: fmt.Sprintf("r%02d", i), Phase: fleet.PhaseReady, Since: 1, Rank: -1}}
		if i >= ready {
			e.Phase, e.Since = fleet.PhaseLoading, now
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// Whatever arrives and whatever goes missing: the recommendation stays inside its
// bounds, is the same for the same events, and never comes down while the
// gateway's own counts are gone.
func TestRecommendationIsSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type step struct {
			work    float64
			known   bool
			seconds int
		}
		var steps []step
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			steps = append(steps, step{
				rapid.Float64Range(0, 30).Draw(rt, "work"), rapid.Bool().Draw(rt, "known"), rapid.IntRange(1, 120).Draw(rt, "seconds"),
			})
		}
		play := func() string {
			s := New(testPolicy(1, 12))
			now := fleet.Time(time.Hour)
			n, out := 1, ""
			for _, st := range steps {
				for range st.seconds {
					now = now.Add(time.Second)
					if st.known {
						s.Offer(now, st.work)
					}
				}
				s.Observe(now, Observation{Snapshot: snapshotOf(now, n, 0), Wanted: n, Gateway: Gateway{Known: st.known}})
				r := s.Recommend(now)
				if !r.NoOpinion && (r.Final < 1 || r.Final > 12) {
					rt.Fatalf("%d replicas outside of 1..12", r.Final)
				}
				if !st.known && !r.NoOpinion && r.Final < n {
					rt.Fatalf("unknown demand scaled %d down to %d", n, r.Final)
				}
				if !r.NoOpinion {
					n = r.Final
				}
				b, err := json.Marshal(r)
				if err != nil {
					rt.Fatal(err)
				}
				out += string(b)
			}
			return out
		}
		if a, b := play(), play(); a != b {
			rt.Fatal("the same events gave two recommendations")
		}
	})
}

// Steady work is carried, and not by the maximum. The capacity table says what is
// carried with hardly a miss; work without any burst may use what a replica does in
// a rush (Tuning.Speed).
func TestSteadyWork(t *testing.T) {
	s := New(testPolicy(1, 30))
	now, n := fleet.Time(time.Hour), 1
	for range 90 {
		for range 60 {
			now = now.Add(time.Second)
			s.Offer(now, 4)
		}
		s.Observe(now, Observation{Snapshot: snapshotOf(now, n, 0), Wanted: n, Gateway: Gateway{Known: true}})
		if r := s.Recommend(now); !r.NoOpinion {
			n = r.Final
		}
	}
	if 0.9*float64(n)*s.tuning.Speed < 4 || n > 10 {
		t.Errorf("%d replicas of 0.9 for a steady offer of 4", n)
	}
}

func TestRefusedSignals(t *testing.T) {
	for _, name := range []string{"cpu", "DCGM_FI_DEV_GPU_UTIL"} {
		if RefuseSignal(name) == "" {
			t.Errorf("%s is accepted as a signal", name)
		}
	}
	if why := RefuseSignal("vllm:num_requests_waiting"); why != "" {
		t.Errorf("the queue is refused: %s", why)
	}
}

// Case 20: the replica without streams goes, and of equals the one whose cache is
// worth least.
func TestVictimsByDrainCost(t *testing.T) {
	p := testPolicy(1, 12)
	p.Explain = true
	p.Tuning = new(Tuning)
	*p.Tuning = DefaultTuning()
	s := New(p)
	now := fleet.Time(time.Hour)
	load := []Load{{ID: "chat-0", InFlight: 1, Cached: 9}, {ID: "chat-1", InFlight: 1, Cached: 1}, {ID: "chat-2"}}
	var r Recommendation
	for range 2000 {
		now = now.Add(time.Second)
		s.Offer(now, 0.01)
		s.Observe(now, Observation{Snapshot: snapshotOf(now, 3, 0), Wanted: 3, Gateway: Gateway{Known: true}, Load: load})
		if r = s.Recommend(now); r.Final < 3 {
			break
		}
	}
	if r.Final != 1 || fmt.Sprint(r.Victims) != "[chat-2 chat-1]" {
		t.Errorf("3 -> %d takes %v away, want 1 and [chat-2 chat-1]", r.Final, r.Victims)
	}
}

func TestSentence(t *testing.T) {
	p := testPolicy(1, 12)
	p.Explain = true
	s := New(p)
	now := fleet.At(time.Date(2026, 5, 4, 14, 0, 0, 0, time.UTC))
	for range 120 {
		now = now.Add(time.Second)
		s.Offer(now, 3)
	}
	s.Observe(now, Observation{Snapshot: snapshotOf(now, 2, 0), Wanted: 2, Gateway: Gateway{Known: true}})
	s.Observe(now, Observation{Snapshot: snapshotOf(now, 2, 1), Wanted: 3, Gateway: Gateway{Known: true}})
	r := s.Recommend(now)
	want := "3.00 units offered, one replica carries 0.90, one loading until 14:03:18: 5"
	if r.Sentence != want {
		t.Errorf("%q, want %q", r.Sentence, want)
	}
	if r.Chosen == nil || len(r.Signals) < 4 || r.Signals[1].Desired != 4 {
		t.Errorf("rule %+v, signals %+v", r.Chosen, r.Signals)
	}
	if r.Cheaper == nil || r.Cheaper.Replicas >= r.Chosen.Replicas || r.WhyNot == "" {
		t.Errorf("next cheaper %+v: %q", r.Cheaper, r.WhyNot)
	}
	if s := New(p); s.Recommend(now).Sentence != "no opinion: nothing has been observed of the pool yet" {
		t.Errorf("%q", s.Recommend(now).Sentence)
	}
}
