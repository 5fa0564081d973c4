// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

// pool drives a scaler over seconds of steady work on a fleet that the test moves.
type pool struct {
	s       *Scaler
	now     fleet.Time
	ready   int
	loading int
	since   fleet.Time // of the loading ones
	reason  string     // of the loading ones
	events  []string
	gateway Gateway
	work    float64 // units a second
}

func newPool(p Policy) *pool {
	return &pool{s: New(p), now: fleet.Time(time.Hour), gateway: Gateway{Known: true}}
}

// run passes seconds, one evaluation every five of them, and returns the last.
func (p *pool) run(seconds int) Recommendation {
	var r Recommendation
	for i := range seconds {
		p.now = p.now.Add(time.Second)
		if p.gateway.Known && p.work > 0 {
			p.s.Offer(p.now, p.work)
		}
		if i%5 == 4 {
			r = p.evaluate()
		}
	}
	return r
}

func (p *pool) evaluate() Recommendation {
	snap := &fleet.Snapshot{Pool: "p", Version: 1, At: p.now}
	for i := range p.ready + p.loading {
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: fmt.Sprintf("r%02d", i), Phase: fleet.PhaseReady, Since: 1, Rank: -1}}
		if i >= p.ready {
			e.Phase, e.Since, e.Reason = fleet.PhasePending, p.since, p.reason
		}
		snap.Endpoints = append(snap.Endpoints, e)
	}
	p.s.Observe(p.now, Observation{Snapshot: snap, Wanted: p.ready + p.loading, Gateway: p.gateway, Events: p.events})
	return p.s.Recommend(p.now)
}

// follow lets the fleet be what the recommendation says: new replicas load.
func (p *pool) follow(r Recommendation) {
	if n := r.Final - p.ready; n != p.loading {
		p.loading, p.since = max(0, n), p.now
		p.ready = min(p.ready, r.Final)
	}
}

// A metrics source that comes back empty under load: read as 0 it takes the fleet to
// its minimum, as unknown it does not, and our count holds for as long as it lasts.
func TestEmptyMetricsHold(t *testing.T) {
	for _, c := range []struct {
		zero bool
		want bool // it stays at eight
	}{{true, false}, {false, true}} {
		k := DefaultKEDA(5)
		k.Least, k.Most, k.NullsAreZero = 2, 12, c.zero
		n := 8
		for at := 0.0; at <= 900; at += HPASync {
			n = k.Want(at, n, 40, at < 60)
		}
		if (n == 8) != c.want {
			t.Errorf("empty as zero %v: %d replicas after 15 minutes", c.zero, n)
		}
	}
	p := newPool(testPolicy(2, 12))
	p.ready, p.work = 8, 6.5
	p.run(600)
	p.gateway.Known = false
	for minute := range 30 {
		if r := p.run(60); !r.NoOpinion && r.Final < 8 {
			t.Fatalf("%d replicas %d minutes after the counts were lost, want 8", r.Final, minute+1)
		}
	}
}

// Replicas load for minutes while the old ones stay hot: what was asked for counts,
// so that it is asked for once. The rule that ignores it doubles at every look.
func TestPendingIsCountedOnce(t *testing.T) {
	a := DefaultAIBrixAPA(32)
	n, path := 2, []int{}
	for i := range 3 {
		n = a.Want(float64(15*i), n, 64)
		path = append(path, n)
	}
	if fmt.Sprint(path) != "[4 8 16]" {
		t.Errorf("ready replicas only: %v, want [4 8 16]", path)
	}

	p := newPool(Policy{Pool: "p", Min: 1, Max: 32, Capacity: linear(0.9), StartUp: 180})
	p.ready, p.work = 2, 1.2
	p.run(3600)
	p.ready, p.loading = 2, 0
	p.work = 3
	p.gateway.Late = 40
	asked, changes := 0, 0
	for range 30 { // 150 s: less than a start
		r := p.run(5)
		if asked != 0 && r.Final > asked {
			changes++
		}
		asked = max(asked, r.Final)
		p.follow(r)
	}
	if asked < 4 || asked > 6 {
		t.Errorf("at most %d replicas for 3 units at 0.9 each, want 4 to 6", asked)
	}
	if changes > 2 { // the level rises over its minute
		t.Errorf("asked %d times for more while the first were loading", changes)
	}
}

// While the starts that were asked for cannot be placed, they count for nothing, the
// cause is named, and the number goes back to what can be placed. No doubling.
func TestUnplaceableIsNotComing(t *testing.T) {
	for reason, want := range map[string]Cause{
		"0/4 nodes are available: 4 Insufficient nvidia.com/gpu.":                                       CauseNoFreeGPU,
		"pods \"x-7\" is forbidden: exceeded quota: accelerators, requested: requests.nvidia.com/gpu=2": CauseResourceQuota,
		"pod didn't trigger scale-up: 2 max node group size reached":                                    CauseNodeGroupMax,
		"googleapi: Error 403: Quota 'NVIDIA_L4_GPUS' exceeded, quotaExceeded":                          CauseCloudQuota,
	} {
		p := newPool(Policy{Pool: "p", Min: 1, Max: 12, Capacity: linear(0.9), StartUp: 60})
		p.ready, p.work = 4, 3
		p.run(3600)
		p.work = 7
		for range 4 {
			p.follow(p.run(30))
		}
		if p.loading == 0 {
			t.Fatalf("%s: nothing was asked for", reason)
		}
		p.reason = reason
		most := 0
		for i := range 60 { // half an hour
			r := p.run(30)
			p.follow(r)
			if i > 12 {
				most = max(most, r.Final)
			}
			for _, x := range r.Pending {
				if x.Cause != want {
					t.Fatalf("%s: cause %q", reason, x.Cause)
				}
			}
		}
		if most > 5 {
			t.Errorf("%s: still %d wanted of 4 that fit", reason, most)
		}
		if p.ready < 4 {
			t.Errorf("%s: %d ready ones are left of 4", reason, p.ready)
		}
	}
	quota := Policy{Min: 1, Max: 8, AcceleratorsPerReplica: 2, Accelerators: 8, Capacity: linear(1)}
	if n, by := quota.EffectiveMax(); n != 4 || by != "accelerators" {
		t.Errorf("8 replicas of 2 in a quota of 8: %d by %q, want 4 by accelerators", n, by)
	}
}

// Overload makes every pod unready. Value multiplies by the ready ones and wants
// none; ours goes by what is offered and held.
func TestAllUnreadyScalesUp(t *testing.T) {
	spec := DefaultHPA(1, 20)
	var h HPA
	r := h.Sync(&spec, HPAInput{Now: 0, Spec: 4, Status: 4, Ready: 0, Metrics: external(Value, 10, 30)})
	if r.Raw != 0 {
		t.Errorf("Value with nothing ready wants %d, the controller's arithmetic gives 0", r.Raw)
	}
	p := newPool(Policy{Pool: "p", Min: 1, Max: 20, Capacity: linear(1), StartUp: 120})
	p.ready, p.work = 4, 3
	p.run(3600)
	p.ready, p.loading, p.since = 0, 4, p.now
	p.work, p.gateway.Held, p.gateway.Late = 10, 20, 40
	if got := p.run(60); got.NoOpinion || got.Final < 10 || got.Final > 20 {
		t.Errorf("three times the load and nothing ready: %+v replicas, want 10 to 20", got.Final)
	}
}

// A pool at zero wakes to the number that clears what is held, and nothing sends a
// replica away that is still loading, however long it takes and whoever leaves.
func TestWakeAndHold(t *testing.T) {
	p := newPool(Policy{Pool: "p", Min: 0, Max: 20, Capacity: linear(1), StartUp: 210, IdleAfter: 120, ClientTimeout: 300})
	p.run(60)
	if r := p.evaluate(); r.Final != 0 {
		t.Fatalf("%d replicas for nothing", r.Final)
	}
	p.work, p.gateway.Held = 2, 30
	r := p.run(15)
	if r.Final < 4 {
		t.Errorf("wakes to %d: one or two never clear what is held at 2 units a second", r.Final)
	}
	p.follow(r)
	p.work, p.gateway.Held = 0, 0 // everybody leaves
	for i := range 40 {           // 200 s, far more than the idle time of 120 s
		if r = p.run(5); r.Final < p.loading {
			t.Fatalf("%d s after the last request %d of %d loading replicas are left", 5*(i+1), r.Final, p.loading)
		}
	}
	p.ready, p.loading = p.loading, 0
	if r = p.run(60); r.Final == 0 {
		t.Error("goes to zero before the idle time after the first replica was ready")
	}
	for range 40 {
		r = p.run(15)
		p.ready = r.Final
	}
	if r.Final != 0 {
		t.Errorf("%d replicas ten minutes after the last request", r.Final)
	}
}

// Who knows nothing says so: no opinion is not the present count, whatever it is.
func TestNoOpinionIsNotTheCount(t *testing.T) {
	s := New(testPolicy(1, 8))
	now := fleet.Time(time.Hour)
	s.Observe(now, Observation{Snapshot: snapshotOf(now, 3, 0), Wanted: 3, NoOpinion: "the policy says small-8b, the replicas list acme/small-8b", Gateway: Gateway{Known: true}})
	r := s.Recommend(now.AddSeconds(30))
	if !r.NoOpinion || r.Reason == "" || r.Binding != "no-opinion" {
		t.Errorf("%+v", r)
	}
}

// Value multiplies the replicas by a sum that does not fall with them; AverageValue
// divides it. Waiting requests by replicas, target 1, at most 20.
func TestValueMultiplies(t *testing.T) {
	for _, c := range []struct{ replicas, waiting, value, average int }{
		{1, 0, 1, 1}, {1, 1, 1, 1}, {1, 2, 2, 2}, {1, 6, 6, 6}, {2, 2, 4, 2}, {3, 6, 18, 6}, {3, 0, 1, 1}, {4, 6, 20, 6}, {4, 10, 20, 10},
	} {
		for typ, want := range map[TargetType]int{Value: c.value, AverageValue: c.average} {
			spec := DefaultHPA(1, 20)
			spec.Up.Policies = []HPAPolicy{{Pods: 1000, Period: 15}}
			spec.Down.Window = 0
			var h HPA
			r := h.Sync(&spec, HPAInput{Now: 1000, Spec: c.replicas, Status: c.replicas, Ready: c.replicas, Metrics: external(typ, 1, float64(c.waiting))})
			if r.Desired != want {
				t.Errorf("%d waiting on %d replicas, type %d: %d, want %d", c.waiting, c.replicas, typ, r.Desired, want)
			}
		}
	}
}

// A change is never taken back before a replica could have started, and draining
// replicas are neither capacity nor demand, whatever arrives.
func TestNoChangeIsTakenBackWithinAStart(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		start := rapid.Float64Range(60, 400).Draw(rt, "start")
		s := New(Policy{Pool: "p", Min: 1, Max: 40, Capacity: linear(0.9), StartUp: start})
		now, n := fleet.Time(time.Hour), 3
		upAt := fleet.Time(0)
		for range rapid.IntRange(10, 30).Draw(rt, "evaluations") {
			work := rapid.Float64Range(0, 25).Draw(rt, "work")
			for range rapid.IntRange(5, 20).Draw(rt, "seconds") {
				now = now.Add(time.Second)
				s.Offer(now, work)
			}
			snap := snapshotOf(now, n, 0)
			for i := range rapid.IntRange(0, 5).Draw(rt, "draining") {
				snap.Endpoints = append(snap.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{ID: fmt.Sprintf("x%02d", i), Phase: fleet.PhaseDraining, Since: 1, Rank: -1}})
			}
			s.Observe(now, Observation{Snapshot: snap, Wanted: n, Gateway: Gateway{Known: true}})
			r := s.Recommend(now)
			if r.Ready != n {
				rt.Fatalf("%d ready of %d: draining ones are counted", r.Ready, n)
			}
			if r.Final < n && upAt != 0 && now.Seconds(upAt) < start {
				rt.Fatalf("%d -> %d, %.0f s after going up, a start takes %.0f s", n, r.Final, now.Seconds(upAt), start)
			}
			if r.Final > n {
				upAt = now
			}
			n = r.Final
		}
	})
}
