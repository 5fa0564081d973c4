// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// stage is a fleet of pretended replicas: a hand, and what an observer would see.
type stage struct {
	mu      sync.Mutex
	f       *Flow
	start   time.Duration // until a replica is ready; 0: never
	next    int
	want    int
	reps    []fakeReplica
	applied []int
	at      []time.Time
	fail    error  // of State
	owner   string // of the state
	leader  string
	blocked string
	version uint64
	hidden  bool       // observers see nothing new
	scraped fleet.Time // last success; 0: replicas tell nothing
	mute    string
	kv      fleet.Value
}

type fakeReplica struct {
	id    string
	asked time.Time
}

func (s *stage) Name() string { return "process" }

func (s *stage) State(context.Context) (HandState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := HandState{Replicas: len(s.reps), Wanted: s.want, Owner: s.owner, Leader: s.leader, Blocked: s.blocked}
	for _, r := range s.reps {
		if !s.ready(&r) {
			st.Pending = append(st.Pending, Pending{ID: r.id, Phase: "loading", Since: fleet.At(r.asked), Reason: s.blocked})
		}
	}
	return st, s.fail
}

func (s *stage) Apply(_ context.Context, want int, victims []string) error {
	s.mu.Lock()
	if want != s.want {
		s.applied, s.at = append(s.applied, want), append(s.at, time.Now())
	}
	s.want = want
	for len(s.reps) < want {
		s.reps = append(s.reps, fakeReplica{fmt.Sprintf("r-%03d", s.next), time.Now()})
		s.next++
	}
	if len(s.reps) > want {
		s.reps = s.reps[:want]
	}
	s.mu.Unlock()
	return nil
}

func (s *stage) ready(r *fakeReplica) bool { return s.start > 0 && time.Since(r.asked) >= s.start }

// look publishes what an observer sees.
func (s *stage) look() {
	s.mu.Lock()
	if s.hidden {
		s.mu.Unlock()
		return
	}
	s.version++
	snap := &fleet.Snapshot{Pool: "p", Version: s.version, At: fleet.At(time.Now())}
	for i := range s.reps {
		r := &s.reps[i]
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: r.id, URL: "http://" + r.id, Phase: fleet.PhasePending, Models: []string{"m"}, Since: fleet.At(r.asked), Rank: -1}}
		if s.ready(r) {
			e.Phase, e.Since = fleet.PhaseReady, fleet.At(r.asked.Add(s.start))
			e.KVUsage, e.KVTokens = s.kv, fleet.Known(400_000, snap.At)
			e.ScrapedAt, e.ScrapeError = s.scraped, s.mute
		}
		snap.Endpoints = append(snap.Endpoints, e)
	}
	s.mu.Unlock()
	s.f.Observe(snap)
}

// asked, times and wanted are what was asked for so far.
func (s *stage) asked() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int(nil), s.applied...)
}

func (s *stage) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.at...)
}

func (s *stage) wanted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

func (s *stage) ids() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.reps)
}

func profile() engine.Profile {
	return engine.Profile{
		Name: "test", Model: "m", TensorParallel: 1, Base: 0.024, PTok: 1.0 / 8000, PAttn: 1e-10, DSeq: 3e-5, DCtx: 1e-9,
		KVTokens: 400_000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 64, MaxModelLen: 131072,
	}
}

type loop struct {
	*Scaler
	st    *stage
	f     *Flow
	ticks bytes.Buffer
	mu    sync.Mutex
}

// newLoop makes a pool with a loop and a hand; the caller runs or evaluates it.
func newLoop(p scale.Policy, mode string, start time.Duration) *loop {
	f := New(Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p", Profile: profile()})})
	l := &loop{st: &stage{f: f, start: start}, f: f}
	l.Scaler = NewScaler(ScalerOptions{
		Pool: "p", Flow: f, Profile: profile(), SLO: engine.SLO{TTFT: 2, ITL: 0.1}, Policy: p, Mode: mode, Hand: l.st, Models: []string{"m"},
		Hold: dispatch.Hold{Most: 1000},
		Tick: func(t *ScaleTick) {
			b, err := json.Marshal(t)
			if err != nil {
				panic(err)
			}
			l.mu.Lock()
			l.ticks.Write(append(b, '\n'))
			l.mu.Unlock()
		},
	})
	return l
}

// run starts loop and observer until the test is over.
func (l *loop) run(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { l.Run(ctx) })
	wg.Go(func() {
		for ctx.Err() == nil {
			l.st.look()
			pause(ctx, 200*time.Millisecond)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait(); l.f.Close() })
}

// ask sends a request of so many prompt tokens that takes a second, and returns what
// became of it.
func (l *loop) ask(ctx context.Context, tokens int) error {
	g, err := l.f.Acquire(ctx, &fleet.Request{Model: "m", Stream: true, PromptTokens: tokens, BlockTokens: 128, Tenant: "t"})
	if err != nil {
		return err
	}
	pause(ctx, 200*time.Millisecond)
	g.FirstToken()
	pause(ctx, 800*time.Millisecond)
	g.Done(fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: tokens, CachedTokens: 0, OutputTokens: 30})
	return nil
}

// Zero and back: a burst at a pool without replicas is held and decided on at once, to
// the number that it needs; all of it is served; the pool goes to zero again when
// nothing comes; and the ticks play again to the same recommendations.
func TestZeroAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 0, Max: 8, StartUp: 60, IdleAfter: 120}, ModeAct, 60*time.Second)
		l.run(t)
		time.Sleep(10 * time.Second)
		if x := l.Last(); x == nil || x.Desired == nil || *x.Desired != 0 || l.st.ids() != 0 {
			t.Fatalf("a cold pool without requests: %+v", x)
		}
		began := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		served, lost := 0, 0
		one := func() {
			err := l.ask(t.Context(), 4000)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				served++
			} else {
				lost++
				t.Log(err)
			}
		}
		for range 8 {
			wg.Go(one)
		}
		time.Sleep(100 * time.Millisecond)
		if len(l.st.asked()) == 0 || l.st.times()[0].Sub(began) > 100*time.Millisecond {
			t.Fatalf("first start decided at %v %v, want within 100 ms", l.st.asked(), l.st.times())
		}
		for range 400 { // 4 requests a second of half a second of work each
			wg.Go(one)
			time.Sleep(250 * time.Millisecond)
		}
		wg.Wait()
		if served != 408 || lost != 0 {
			t.Errorf("%d served, %d lost", served, lost)
		}
		most := 0
		for _, n := range l.st.asked() {
			most = max(most, n)
		}
		if most < 4 || most > 8 {
			t.Errorf("woke to %v, want about N of 2.2 units and what clears the rest", l.st.asked())
		}
		for i := 1; i < len(l.st.asked()); i++ {
			if l.st.times()[i].Sub(began) < 60*time.Second && l.st.asked()[i] < l.st.asked()[i-1] {
				t.Errorf("loading replicas were sent away: %v", l.st.asked())
			}
		}
		time.Sleep(10 * time.Minute)
		if l.st.ids() != 0 {
			t.Errorf("%d replicas ten minutes after the last request: %s", l.st.ids(), l.Last().Sentence)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		res, err := ReplayScale(bytes.NewReader(l.ticks.Bytes()))
		if err != nil || len(res) != 1 || res[0].Different != 0 || res[0].Ticks < 100 || res[0].Skipped != 0 {
			t.Errorf("replay: %+v %v", res, err)
		}
		asksAgain(t, l)
	})
}

// asksAgain asks the evaluations of a loop about its own targets, which cost what they cost,
// and about a bound that is too low, which comes out short.
func asksAgain(t *testing.T, l *loop) {
	t.Helper()
	ask := func(targets ScaleTargets) ScaleAsk {
		if err := targets.Check(); err != nil {
			t.Fatal(err)
		}
		out, err := AskScale(bytes.NewReader(l.ticks.Bytes()), targets.Apply)
		if err != nil || len(out) != 1 {
			t.Fatal(out, err)
		}
		if live := l.Ask(targets.Apply); out[0].Skipped != 0 || !cmp.Equal(out[0].Now, live.Now) {
			t.Errorf("the journal says %+v, memory %+v", out[0].Now, live.Now)
		}
		return out[0]
	}
	same := ask(ScaleTargets{})
	if same.Then.ReplicaHours <= 0 || math.Abs(same.Now.ReplicaHours-same.Then.ReplicaHours) > 0.1*same.Then.ReplicaHours || same.Now.Peak != same.Then.Peak {
		t.Errorf("the same targets: %+v, recorded %+v", same.Now, same.Then)
	}
	two := 2
	low := ask(ScaleTargets{Max: &two})
	if low.Now.Peak != 2 || low.Now.ShortSeconds <= low.Then.ShortSeconds || low.Now.ReplicaHours >= low.Then.ReplicaHours {
		t.Errorf("at most two: %+v, recorded %+v", low.Now, low.Then)
	}
	high := 3.0
	if err := (&ScaleTargets{Attainment: &high}).Check(); err == nil || !strings.Contains(err.Error(), "such as 0.98") {
		t.Error(err)
	}
}

// What is held stays held while the demand pauses, and the replicas that load for it
// stay.
func TestPauseWhileLoading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 0, Max: 8, StartUp: 300, IdleAfter: 60}, ModeAct, 300*time.Second)
		l.run(t)
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := l.ask(ctx, 1000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the client left and got %v", err)
		}
		time.Sleep(290 * time.Second)
		if l.st.ids() != 1 {
			t.Errorf("%d replicas while one was loading", l.st.ids())
		}
		time.Sleep(30 * time.Second)
		if l.st.ids() != 1 || l.Last().Ready != 1 {
			t.Errorf("%d replicas just after the first was ready: the idle time starts then", l.st.ids())
		}
		time.Sleep(10 * time.Minute)
		if l.st.ids() != 0 {
			t.Errorf("%d replicas long after: %s", l.st.ids(), l.Last().Sentence)
		}
	})
}

// More than Most are told when to come again: when the next replica is expected.
func TestHeldAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 0, Max: 8, StartUp: 210}, ModeAct, 210*time.Second)
		l.hold = dispatch.Hold{Most: 100}
		l.run(t)
		time.Sleep(time.Second)
		var wg sync.WaitGroup
		var mu sync.Mutex
		ok, refused := 0, 0
		var worst time.Duration
		began := time.Now()
		one := func() {
			err := l.ask(t.Context(), 500)
			mu.Lock()
			defer mu.Unlock()
			var none *NoReplicaError
			if errors.As(err, &none) {
				refused++
				if none.RetryAfter < 190*time.Second || none.RetryAfter > 290*time.Second {
					t.Errorf("Retry-After %v, want about 210 s", none.RetryAfter)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			ok++
			worst = max(worst, time.Since(began))
		}
		wg.Go(one)
		time.Sleep(2 * time.Second)
		for range 150 {
			wg.Go(one)
		}
		wg.Wait()
		if ok != 100 || refused != 51 {
			t.Errorf("%d answered and %d refused, want 100 and 51", ok, refused)
		}
		if worst > 240*time.Second {
			t.Errorf("the last was answered after %v", worst)
		}
	})
}

func TestPausePinOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 2, Max: 4, StartUp: 10}, ModeAct, 10*time.Second)
		l.run(t)
		time.Sleep(30 * time.Second)
		if l.st.ids() != 2 {
			t.Fatalf("%d replicas, the minimum is 2: %s", l.st.ids(), l.Last().Sentence)
		}
		if err := l.Pin(9); err == nil {
			t.Error("a pin above the maximum was taken")
		}
		if err := l.Pin(4); err != nil {
			t.Fatal(err)
		}
		l.keep(l.Last(), 0) // an evaluation that was under way ends
		if l.Heeded() {
			t.Error("a record from before the pin passes for what came of it")
		}
		time.Sleep(time.Second)
		if x := l.Last(); !l.Heeded() || l.st.ids() != 4 || x.Binding != "pinned" || x.Pinned == nil || !strings.Contains(x.Sentence, "pinned") {
			t.Errorf("pinned to 4: %d, %+v", l.st.ids(), x)
		}
		l.Pause()
		l.st.mu.Lock()
		l.st.want, l.st.reps = 3, l.st.reps[:3] // somebody else
		l.st.mu.Unlock()
		time.Sleep(time.Minute)
		if x := l.Last(); l.st.ids() != 3 || !x.Paused || x.Applied != nil {
			t.Errorf("paused: %d replicas, %+v", l.st.ids(), x)
		}
		l.Resume()
		l.st.mu.Lock()
		l.st.owner = "HorizontalPodAutoscaler default/chat"
		l.st.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if x := l.Last(); l.st.ids() != 3 || x.Applied == nil || x.Applied.OK || !strings.Contains(x.Applied.Error, "not acting against") {
			t.Errorf("against an owner: %d replicas, %+v", l.st.ids(), x.Applied)
		}
		l.st.mu.Lock()
		l.st.owner = ""
		l.st.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if l.st.ids() != 2 {
			t.Errorf("resumed: %d replicas: %s", l.st.ids(), l.Last().Sentence)
		}
	})
}

// wakes reports whether a loop itself sees to a request that finds no replica.
func wakes(l *loop) bool {
	leader, ok := l.Wakes()
	return ok && leader == ""
}

// A loop that only recommends moves nothing and holds nothing.
func TestRecommendOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 1, Max: 4, StartUp: 10}, ModeRecommend, time.Second)
		l.run(t)
		time.Sleep(time.Second)
		var none *NoReplicaError
		if err := l.ask(t.Context(), 100); !errors.As(err, &none) {
			t.Errorf("a pool that nobody wakes held a request: %v", err)
		}
		time.Sleep(10 * time.Second)
		if x := l.Last(); l.st.ids() != 0 || x.Desired == nil || *x.Desired < 1 || x.Applied != nil || wakes(l) {
			t.Errorf("%d replicas, %+v", l.st.ids(), x)
		}
	})
}

// Case 24: replicas that serve another model are no match, and silence is no
// decision.
func TestNoMatchIsNoOpinion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 1, Max: 4}, ModeAct, time.Second)
		l.o.Models = []string{"Qwen3-32B"}
		l.st.reps = []fakeReplica{{"r-0", time.Now()}}
		s := snapshot(1, fleet.PhaseLoading)
		s.Endpoints[0].Models = []string{"Qwen/Qwen3-32B"}
		l.f.Observe(s)
		x := l.Evaluate(t.Context())
		if x.Desired != nil || len(x.Conditions) != 1 || x.Conditions[0].Code != "NoMatchingReplicas" || !strings.Contains(x.NoOpinion, `"Qwen/Qwen3-32B"`) {
			t.Errorf("%+v", x)
		}
		if len(l.st.asked()) != 0 {
			t.Errorf("applied %v without an opinion", l.st.asked())
		}
		l.f.Close()
	})
}

// A hand that fails holds; a replica that lies about its cache does not scale up; a
// fleet that cannot be placed is not asked for again and again.
func TestFaults(t *testing.T) {
	t.Run("hand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop(scale.Policy{Min: 2, Max: 4, StartUp: 10}, ModeAct, 10*time.Second)
			l.run(t)
			time.Sleep(time.Minute)
			l.st.mu.Lock()
			l.st.fail = errors.New("API server away")
			l.st.mu.Unlock()
			time.Sleep(2 * time.Minute)
			if x := l.Last(); x.Desired != nil || !strings.Contains(x.NoOpinion, "API server away") || l.st.ids() != 2 {
				t.Errorf("%+v", x)
			}
			l.st.mu.Lock()
			l.st.fail = nil
			l.st.mu.Unlock()
			time.Sleep(10 * time.Second)
			if x := l.Last(); x.Desired == nil || *x.Desired != 2 {
				t.Errorf("after it is back: %+v", x)
			}
		})
	})
	t.Run("liar", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop(scale.Policy{Min: 2, Max: 8, StartUp: 10}, ModeAct, 10*time.Second)
			l.st.kv = fleet.Known(1, 1)
			l.run(t)
			for range 200 {
				l.st.mu.Lock()
				l.st.kv.At = fleet.At(time.Now())
				l.st.mu.Unlock()
				time.Sleep(5 * time.Second)
			}
			if x := l.Last(); l.st.ids() != 2 || !strings.Contains(fmt.Sprint(x.Conditions), "ReplicaReportsDiffer") {
				t.Errorf("%d replicas: %s, %v", l.st.ids(), x.Sentence, x.Conditions)
			}
		})
	})
	t.Run("quota", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop(scale.Policy{Min: 4, Max: 8, StartUp: 10}, ModeAct, 10*time.Second)
			l.run(t)
			time.Sleep(time.Minute)
			l.st.mu.Lock()
			l.st.start, l.st.blocked = 0, `pods "chat-6" is forbidden: exceeded quota: gpu` // nothing more gets ready
			for i := range l.st.reps {
				l.st.reps[i].asked = time.Now().Add(-time.Hour)
			}
			l.st.start = 30 * time.Minute
			l.st.mu.Unlock()
			for range 300 {
				go l.ask(t.Context(), 20000)
				time.Sleep(time.Second)
			}
			starts := len(l.st.asked())
			if starts > 4 || l.st.wanted() > 8 {
				t.Errorf("asked %v times: %v", starts, l.st.asked())
			}
			if x := l.Last(); x.Blocked == "" || !strings.Contains(fmt.Sprint(x.Conditions), "Blocked") {
				t.Errorf("%+v", x)
			}
			time.Sleep(time.Hour)
		})
	})
	t.Run("never ready", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l := newLoop(scale.Policy{Min: 0, Max: 3, StartUp: 20}, ModeAct, 0)
			l.run(t)
			time.Sleep(time.Second)
			if err := l.ask(t.Context(), 1000); err == nil {
				t.Error("answered by a replica that never was")
			}
			time.Sleep(5 * time.Minute)
			if l.st.ids() > 3 {
				t.Errorf("%d replicas above the maximum", l.st.ids())
			}
		})
	})
}

// A restart of Penstock in the middle of a scale-up goes on from what is there, and
// takes nothing away before it has seen what that carries.
func TestRestartInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop(scale.Policy{Min: 1, Max: 8, StartUp: 60}, ModeAct, 60*time.Second)
		l.st.want = 6
		for i := range 6 {
			asked := time.Now().Add(-30 * time.Second)
			if i < 2 {
				asked = time.Now().Add(-time.Hour)
			}
			l.st.reps = append(l.st.reps, fakeReplica{fmt.Sprintf("r-%03d", i), asked})
		}
		l.st.next = 6
		l.run(t)
		time.Sleep(115 * time.Second)
		if l.st.ids() < 6 || len(l.st.asked()) > 0 && l.st.asked()[0] < 6 {
			t.Errorf("%d replicas two minutes after the restart: %v, %s", l.st.ids(), l.st.asked(), l.Last().Sentence)
		}
		time.Sleep(30 * time.Minute)
		if l.st.ids() != 1 {
			t.Errorf("%d replicas for nothing: %s", l.st.ids(), l.Last().Sentence)
		}
	})
}

// TestDemandOfOtherRouters: the work that another router tells of is offered work, a
// request that it still holds is not.
func TestDemandOfOtherRouters(t *testing.T) {
	f := New(Options{Pool: "chat", Dispatch: dispatch.New(dispatch.Options{Pool: "chat", Profile: engine.Profiles()[0], Share: true})})
	defer f.Close()
	d := &demand{kick: make(chan struct{}, 1), profile: engine.Profiles()[0], shape: priorShape}
	f.Watch(d)
	f.Hear(1, []dispatch.Note{{Kind: dispatch.NoteHeld, Ticket: 1, Prompt: 500}, {Kind: dispatch.NoteSent, Ticket: 2, Prompt: 1000, Uncached: 400}})
	sum := 0.0
	for _, o := range d.take() {
		sum += o.Work
	}
	p := engine.Profiles()[0]
	if want := p.WorkSeconds(engine.Shape{Prompt: 1000, Cached: 600, Output: priorShape.Output}); sum < 0.999*want || sum > 1.001*want {
		t.Errorf("offered %v, want %v", sum, want)
	}
}
