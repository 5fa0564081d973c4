// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// pool is a dispatch over endpoints that a test describes row by row.
type pool struct {
	t   *testing.T
	d   *Dispatch
	now fleet.Time
	n   uint64
}

func newPool(t *testing.T, o Options) *pool {
	o.Profile = testProfile()
	return &pool{t: t, d: New(o), now: 1e9}
}

func row(id string) fleet.EndpointState {
	return fleet.EndpointState{Endpoint: fleet.Endpoint{ID: id, URL: "http://" + id, Phase: fleet.PhaseReady, Models: []string{"m"}}}
}

func (p *pool) after(s float64) *pool {
	p.now += fleet.Time(s * 1e9)
	return p
}

func (p *pool) see(rows ...fleet.EndpointState) []Send {
	p.n++
	return p.d.Observe(p.now, &fleet.Snapshot{Version: p.n, At: p.now, Endpoints: rows}, nil)
}

func (p *pool) ask(r *fleet.Request) (Send, Verdict) {
	_, v, out := p.d.Arrive(p.now, r, nil)
	if len(out) == 0 {
		return Send{Slot: -1}, v
	}
	return out[0], v
}

func (p *pool) finish(s Send, cached int) {
	p.d.FirstToken(p.now, s.Ticket, nil)
	p.d.End(p.now, s.Ticket, fleet.Outcome{
		Kind: fleet.OutcomeOK, PromptTokens: s.Request.PromptTokens, CachedTokens: cached, OutputTokens: 10,
	}, nil)
}

func (p *pool) load(id string) EndpointLoad {
	p.t.Helper()
	for _, r := range p.d.Ledger(p.now, nil) {
		if r.Endpoint == id {
			return r
		}
	}
	p.t.Fatalf("no endpoint %q", id)
	return EndpointLoad{}
}

// A replica that restarts in place loses its place in the index, however the
// restart shows; one that only looks different keeps it.
func TestRestart(t *testing.T) {
	known := func(e *fleet.EndpointState, at fleet.Time) {
		e.ScrapedAt = at
		e.StartTime = fleet.Known(100, at)
		e.PromptTokens = fleet.Known(5000, at)
		e.Finished = fleet.Known(50, at)
	}
	for _, c := range []struct {
		name   string
		change func(e *fleet.EndpointState, at fleet.Time)
		lost   bool
	}{
		{"nothing", func(e *fleet.EndpointState, at fleet.Time) { known(e, at) }, false},
		{"counters go on", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.PromptTokens.V = 9000 }, false},
		{"scrape fails", func(e *fleet.EndpointState, at fleet.Time) { e.ScrapeError = "timeout" }, false},
		{"slow", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.Slow = true }, false},
		{"start time newer", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.StartTime.V = 160 }, true},
		{"start time of a clock that was set", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.StartTime.V = 100.5 }, false},
		{"prompt tokens went back", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.PromptTokens.V = 10 }, true},
		{"finished went back", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.Finished.V = 1 }, true},
		{"loading again", func(e *fleet.EndpointState, at fleet.Time) { e.Phase = fleet.PhaseLoading }, true},
		{"asleep", func(e *fleet.EndpointState, at fleet.Time) { e.Phase = fleet.PhaseAsleep }, true},
		{"another address", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.URL = "http://other" }, true},
		{"another model", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.Models = []string{"n"} }, true},
		{"an adapter more", func(e *fleet.EndpointState, at fleet.Time) { known(e, at); e.Models = []string{"m", "sql"} }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(t, Options{})
			e := row("a")
			known(&e, p.now)
			p.see(e)
			s, _ := p.ask(prompt(16, part{1, 4000}))
			p.after(1).finish(s, 0)
			e = row("a")
			c.change(&e, p.after(4).now)
			p.see(e)
			back := row("a")
			known(&back, p.after(1).now)
			back.URL, back.Models = e.URL, append([]string{"m"}, e.Models...)
			back.StartTime.V = max(100, e.StartTime.V)
			if e.PromptTokens.OK() {
				back.PromptTokens, back.Finished = e.PromptTokens, e.Finished
			}
			p.see(back)
			var dec route.Decision
			p.d.Preview(p.now, prompt(16, part{1, 4000}), &dec)
			hit := dec.Pick() != nil && dec.Pick().Hit > 0
			if hit == c.lost {
				t.Errorf("cache believed %v, lost %v; restarts %d", hit, c.lost, p.load("a").Restarts)
			}
			if got := p.load("a").Restarts; (got > 0) != c.lost {
				t.Errorf("restarts %d, lost %v", got, c.lost)
			}
		})
	}
}

// A replica that is deleted and comes back under its name is a new one, also while
// requests of the old one are still in flight.
func TestDeletedAndBack(t *testing.T) {
	p := newPool(t, Options{})
	p.see(row("a"), row("b"))
	s, _ := p.ask(prompt(16, part{1, 4000}))
	other := "a"
	if s.Endpoint == "a" {
		other = "b"
	}
	p.after(1).see(row(other))
	if got := p.load(s.Endpoint); got.Drop != route.DropGone || got.InFlight != 1 {
		t.Errorf("%+v", got)
	}
	p.after(1).see(row("a"), row("b"))
	var dec route.Decision
	p.d.Preview(p.now, prompt(16, part{1, 4000}), &dec)
	for i := range dec.Candidates {
		if dec.Candidates[i].Hit != 0 {
			t.Errorf("%s is believed to hold %d blocks", dec.Candidates[i].Endpoint, dec.Candidates[i].Hit)
		}
	}
	p.finish(s, 0)
	p.after(1).see()
	if rows := p.d.Ledger(p.now, nil); len(rows) != 0 {
		t.Errorf("left: %+v", rows)
	}
	if _, v := p.ask(prompt(16, part{1, 100})); v.Kind != Refused || v.Cause != route.DropGone || v.Reason != "no replica is known" {
		t.Errorf("empty pool: %+v", v)
	}
}

// A refused connection ejects at once; the next request tries again after at most
// 5 s; two answers heal. No restart of anything is needed.
func TestBreaker(t *testing.T) {
	p := newPool(t, Options{})
	p.see(row("a"), row("b"))
	key := uint64(0)
	to := func(id string) Send { // a request whose home is id
		t.Helper()
		for range 64 {
			key++
			r := prompt(16, part{key << 20, 3000})
			var dec route.Decision
			p.d.Preview(p.now, r, &dec)
			if dec.Pick().Endpoint == id {
				s, _ := p.ask(r)
				return s
			}
		}
		return Send{Slot: -1}
	}
	for round := range 6 {
		s := to("a")
		if s.Slot < 0 {
			t.Fatalf("round %d: no request goes to a after its cool-down", round)
		}
		v, out := p.d.Retry(p.now, s.Ticket, fleet.OutcomeConnectError, nil)
		if v.Kind != Sent || out[0].Endpoint != "b" {
			t.Fatalf("retry: %+v", v)
		}
		p.finish(out[0], 0)
		l := p.load("a")
		if l.Drop != route.DropEjected || to("a").Slot >= 0 {
			t.Fatalf("round %d: not ejected: %+v", round, l)
		}
		if wait := l.EjectedUntil.Sub(p.now); wait <= 0 || wait > 5*time.Second {
			t.Errorf("round %d: cool-down %v", round, wait)
		}
		p.now = l.EjectedUntil
	}
	for n := range 2 {
		s := to("a")
		if s.Slot < 0 {
			t.Fatalf("trial %d was not let through", n)
		}
		if again := to("a"); again.Slot >= 0 {
			t.Errorf("a second request at the same time as trial %d", n)
		}
		p.after(0.1).finish(s, 0)
	}
	if l := p.load("a"); l.EjectedUntil != 0 || l.Drop != route.DropNone {
		t.Errorf("not healed: %+v", l)
	}
}

// What does not prove death does not eject: timeouts, clients that leave, the
// client's own errors, one lost connection.
func TestBreakerSparesTheBusy(t *testing.T) {
	p := newPool(t, Options{})
	p.see(row("a"))
	for _, k := range []fleet.OutcomeKind{
		fleet.OutcomeTimeout, fleet.OutcomeClientGone, fleet.OutcomeClientError, fleet.OutcomeRefused, fleet.OutcomeBroken,
	} {
		for range 5 {
			s, _ := p.ask(prompt(16, part{1, 100}))
			if s.Slot < 0 {
				t.Fatalf("%v: refused", k)
			}
			p.d.End(p.after(1).now, s.Ticket, fleet.Outcome{Kind: k, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1}, nil)
			if k == fleet.OutcomeBroken {
				break
			}
		}
		if l := p.load("a"); l.Drop != route.DropNone {
			t.Errorf("%v ejected the replica", k)
		}
	}
}

// The pool is never emptied by ejection: the last replica keeps getting requests.
func TestNeverEmptyPool(t *testing.T) {
	p := newPool(t, Options{})
	p.see(row("a"))
	for range 5 {
		s, v := p.ask(prompt(16, part{1, 100}))
		if v.Kind != Sent {
			t.Fatalf("refused: %s", v.Reason)
		}
		p.d.End(p.now, s.Ticket, fleet.Outcome{Kind: fleet.OutcomeConnectError}, nil)
	}
}

func TestRefusals(t *testing.T) {
	split := row("a")
	split.Role = fleet.RolePrefill
	loading, failed := row("b"), row("c")
	loading.Phase, failed.Phase = fleet.PhaseLoading, fleet.PhaseFailed
	other := row("d")
	other.Models = []string{"n"}
	for _, c := range []struct {
		rows   []fleet.EndpointState
		req    fleet.Request
		cause  route.Drop
		reason string
	}{
		{[]fleet.EndpointState{loading, failed}, fleet.Request{Model: "m"}, route.DropNotReady, "no replica is ready: 1 not ready, 1 failed"},
		{[]fleet.EndpointState{other}, fleet.Request{Model: "m"}, route.DropModel, `no replica serves model "m"`},
		{[]fleet.EndpointState{other}, fleet.Request{Model: "n", Adapter: "sql"}, route.DropAdapter, `no replica serves adapter "sql"`},
		{[]fleet.EndpointState{split}, fleet.Request{Model: "m"}, route.DropRole, "the pool splits prefill from decode"},
	} {
		p := newPool(t, Options{})
		p.see(c.rows...)
		_, v := p.ask(&c.req)
		if v.Kind != Refused || v.Cause != c.cause || !strings.Contains(v.Reason, c.reason) {
			t.Errorf("got %v %v %q, want %v %q", v.Kind, v.Cause, v.Reason, c.cause, c.reason)
		}
	}
}

// An ending that never reached us is written off once the engine has not counted
// the request for a while, and not before.
func TestLeakHeals(t *testing.T) {
	p := newPool(t, Options{})
	look := func(running float64) {
		e := row("a")
		e.ScrapedAt = p.now
		e.Running, e.Waiting = fleet.Known(running, p.now), fleet.Known(0, p.now)
		p.see(e)
	}
	look(0)
	lost, _ := p.ask(prompt(16, part{1, 1000}))
	p.d.FirstToken(p.after(0.1).now, lost.Ticket, nil)
	alive, _ := p.ask(prompt(16, part{2, 1000}))
	p.d.FirstToken(p.after(0.1).now, alive.Ticket, nil)
	for range 12 {
		p.after(2)
		p.d.Progress(p.now, alive.Ticket, 50)
		look(1)
		if p.now < fleet.Time(20e9) && p.load("a").InFlight != 2 {
			t.Fatalf("written off after %.0f s", float64(p.now)/1e9)
		}
	}
	l := p.load("a")
	if l.InFlight != 1 || l.Leaked != 1 || l.Streams != 1 {
		t.Errorf("after 24 s: %+v", l)
	}
	p.d.Progress(p.now, lost.Ticket, 10)
	p.finish(lost, 0)
	p.finish(alive, 0)
	if l := p.load("a"); l.InFlight != 0 || l.CtxTokens != 0 || l.PinnedBlocks != 0 {
		t.Errorf("after both ends: %+v", l)
	}
}

// Load that others put on a replica shows in the scrapes and counts; our own does
// not count twice.
func TestForeignLoad(t *testing.T) {
	p := newPool(t, Options{})
	look := func(a, b float64) {
		rows := []fleet.EndpointState{row("a"), row("b")}
		for i, v := range []float64{a, b} {
			rows[i].ScrapedAt = p.now
			rows[i].Running, rows[i].Waiting = fleet.Known(v, p.now), fleet.Known(0, p.now)
		}
		p.see(rows...)
	}
	look(0, 0)
	var sends []Send
	for k := range 10 {
		s, _ := p.ask(prompt(16, part{uint64(k) << 20, 500}))
		p.d.FirstToken(p.now, s.Ticket, nil)
		sends = append(sends, s)
	}
	for range 3 {
		p.after(1)
		look(float64(p.load("a").InFlight)+1, float64(p.load("b").InFlight)+30)
	}
	if a, b := p.load("a"), p.load("b"); a.ForeignStreams != 0 || b.ForeignStreams != 29 {
		t.Errorf("load of others: a %v, b %v, want 0 and 29", a.ForeignStreams, b.ForeignStreams)
	}
	if s, _ := p.ask(prompt(16, part{99 << 20, 500})); s.Endpoint != "a" {
		t.Errorf("sent to %s, where 30 streams of others run", s.Endpoint)
	}
	// Scrapes fail from here on: after a while what they said counts no more.
	silent := []fleet.EndpointState{row("a"), row("b")}
	for i := range silent {
		silent[i].ScrapedAt, silent[i].ScrapeError = p.now, "503"
	}
	p.after(8)
	p.see(silent...)
	if b := p.load("b"); b.ForeignStreams != 29 {
		t.Errorf("after 8 s without a scrape: %v, want 29 still", b.ForeignStreams)
	}
	p.after(3)
	p.see(silent...)
	if b := p.load("b"); b.ForeignStreams != 0 {
		t.Errorf("after 11 s without a scrape: %v, want own accounting alone", b.ForeignStreams)
	}
	for _, s := range sends {
		p.finish(s, 0)
	}
}

// Preemptions that a scrape shows lower the memory that counts as usable.
func TestMemoryLimit(t *testing.T) {
	p := newPool(t, Options{})
	look := func(preempted float64) {
		e := row("a")
		e.ScrapedAt = p.now
		e.KVTokens, e.Preemptions = fleet.Known(10_000, p.now), fleet.Known(preempted, p.now)
		p.see(e)
	}
	look(0)
	for k := range 8 {
		p.ask(prompt(16, part{uint64(k) << 20, 1000}))
	}
	p.after(1)
	look(0)
	if l := p.load("a").KVLimit; l != 1 {
		t.Errorf("limit %v without preemptions", l)
	}
	p.after(1)
	look(3)
	low := p.load("a").KVLimit
	if low < 0.75 || low > 0.80 { // 8,000 of 10,000 tokens were held
		t.Errorf("limit %v after preemptions, want 0.97 of 0.8", low)
	}
	p.after(10)
	look(3)
	if l := p.load("a").KVLimit; l < low+0.019 || l > low+0.021 {
		t.Errorf("limit %v 10 s later, want 0.02 more than %v", l, low)
	}
}

// Requests for an adapter go where it is loaded, unless that costs more than
// loading it elsewhere.
func TestAdapters(t *testing.T) {
	p := newPool(t, Options{})
	p.d.learned.adapterMS = 500
	rows := []fleet.EndpointState{row("a"), row("b"), row("c")}
	for i := range rows[:2] {
		rows[i].Models = []string{"m", "sql"}
	}
	rows[1].Adapters = []fleet.Adapter{{Name: "sql", State: fleet.AdapterRunning}}
	p.see(rows...)
	ask := func(k int) Send {
		r := prompt(16, part{uint64(k) << 20, 800})
		r.Adapter = "sql"
		s, _ := p.ask(r)
		return s
	}
	for k := range 3 {
		if s := ask(k); s.Endpoint != "b" {
			t.Fatalf("request %d went to %s, the adapter is at b", k, s.Endpoint)
		}
	}
	for k := range 12 {
		if s := ask(10 + k); s.Endpoint == "c" {
			t.Fatal("sent to c, which does not serve the adapter")
		}
	}
	if p.load("a").InFlight == 0 {
		t.Error("15 requests at once did not make a second copy of the adapter worth its load time")
	}
}
