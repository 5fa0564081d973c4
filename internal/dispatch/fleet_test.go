// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// world is a fleet of engine cores in virtual time behind one dispatch.
type world struct {
	t        testing.TB
	d        *Dispatch
	p        engine.Profile
	now      fleet.Time
	cores    []*engine.Core
	ids      []string
	version  uint64
	scrape   fleet.Time // interval; 0: the first snapshot is the only one
	nextLook fleet.Time
	timers   []arrival
	live     map[uint64]*live
	seq      uint64
	events   []engine.Event
	sends    []Send
	ranks    int      // cores behind each address; 0: one
	deaf     bool     // engines ignore pins
	models   []string // that every replica lists; nil: "m"

	finished  int
	refused   int
	ttft, e2e float64 // sums, seconds
	cached    int
	prompt    int
	sent      []int // per replica
	picks     []int // replica of each send, in order
	onSend    func(Send)
	onFirst   func(*fleet.Request)
}

type live struct {
	ticket Ticket
	req    *fleet.Request
	core   int
	first  fleet.Time
	cached int
	out    int
}

type arrival struct {
	at  fleet.Time
	req *fleet.Request
	out int
}

func newWorld(t testing.TB, n int, p engine.Profile, o Options) *world {
	o.Profile = p
	w := &world{t: t, d: New(o), p: p, live: map[uint64]*live{}, now: 1e9}
	for i := range n {
		w.cores = append(w.cores, engine.NewCore(p, engine.CoreOptions{}))
		w.ids = append(w.ids, fmt.Sprintf("r-%d", i))
		w.sent = append(w.sent, 0)
	}
	w.observe()
	return w
}

// snapshot is what a scrape would say now.
func (w *world) snapshot() *fleet.Snapshot {
	if w.ranks > 1 {
		return w.rankSnapshot()
	}
	w.version++
	s := &fleet.Snapshot{Version: w.version, At: w.now}
	for i, c := range w.cores {
		st := c.Stats(w.now)
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: w.ids[i], URL: "http://" + w.ids[i], Phase: fleet.PhaseReady, Models: []string{"m"},
		}}
		if w.models != nil {
			e.Models = w.models
		}
		e.Running = fleet.Known(float64(st.Running), w.now)
		e.Waiting = fleet.Known(float64(st.Waiting), w.now)
		e.KVTokens = fleet.Known(float64(w.p.KVTokens), w.now)
		e.MaxSeqs = fleet.Known(float64(w.p.MaxSeqs), w.now)
		e.Preemptions = fleet.Known(float64(st.Preemptions), w.now)
		e.ScrapedAt = w.now
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func (w *world) observe() {
	w.carry(w.d.Observe(w.now, w.snapshot(), w.sends[:0]))
	if w.scrape > 0 {
		w.nextLook = w.now + w.scrape
	}
}

// carry puts sends on the wire: the replica gets them at once.
func (w *world) carry(sends []Send) {
	w.sends = sends
	for _, s := range sends {
		if s.Slot < 0 {
			w.refused++
			for id, l := range w.live {
				if l.ticket == s.Ticket {
					delete(w.live, id)
				}
			}
			continue
		}
		if w.onSend != nil {
			w.onSend(s)
		}
		for i, id := range w.ids {
			if id != s.Endpoint {
				continue
			}
			if w.ranks > 1 {
				i = w.rankOf(i, s.Pin)
			}
			w.sent[i]++
			w.picks = append(w.picks, i)
			for id, l := range w.live {
				if l.req == s.Request {
					l.ticket, l.core = s.Ticket, i
					w.cores[i].Submit(w.now, engine.Seq{ID: id, Blocks: s.Request.Blocks, PromptTokens: s.Request.PromptTokens, OutputTokens: l.out, Adapter: s.Request.Adapter})
				}
			}
		}
	}
}

func (w *world) arrive(r *fleet.Request, out int) Verdict {
	w.seq++
	r.Arrived = w.now
	w.live[w.seq] = &live{req: r, out: out, core: -1}
	t, v, sends := w.d.Arrive(w.now, r, w.sends[:0])
	if v.Kind == Refused {
		w.refused++
		delete(w.live, w.seq)
	} else {
		w.live[w.seq].ticket = t
	}
	w.carry(sends)
	return v
}

// next is the next moment at which something happens.
func (w *world) next() fleet.Time {
	t := w.d.NextTimer()
	for _, c := range w.cores {
		t = min(t, c.Next())
	}
	if len(w.timers) > 0 {
		t = min(t, w.timers[0].at)
	}
	if w.scrape > 0 {
		t = min(t, w.nextLook)
	}
	return t
}

// run goes on until the moment, or until nothing is left to do.
func (w *world) run(until fleet.Time) {
	for {
		t := w.next()
		if t > until || t == fleet.Never || (len(w.live) == 0 && len(w.timers) == 0) {
			break
		}
		w.now = max(w.now, t)
		for i, c := range w.cores {
			if c.Next() <= w.now {
				w.events = c.Advance(w.now, w.events[:0])
				for _, e := range w.events {
					w.handle(i, e)
				}
			}
		}
		if w.scrape > 0 && w.nextLook <= w.now {
			w.observe()
		}
		if w.d.NextTimer() <= w.now {
			w.carry(w.d.Tick(w.now, w.sends[:0]))
		}
		for len(w.timers) > 0 && w.timers[0].at <= w.now {
			a := w.timers[0]
			w.timers = w.timers[1:]
			w.arrive(a.req, a.out)
		}
	}
	if until != fleet.Never {
		w.now = max(w.now, until)
	}
}

func (w *world) handle(core int, e engine.Event) {
	l := w.live[e.Seq]
	if l == nil {
		return
	}
	switch e.Kind {
	case engine.EventAdmitted:
		l.cached = e.Cached
	case engine.EventFirstToken:
		l.first = w.now
		if w.onFirst != nil {
			w.onFirst(l.req)
		}
		w.carry(w.d.FirstToken(w.now, l.ticket, w.sends[:0]))
	case engine.EventFinished:
		w.d.Progress(w.now, l.ticket, l.out-1)
		w.finished++
		w.ttft += l.first.Seconds(l.req.Arrived)
		w.e2e += w.now.Seconds(l.req.Arrived)
		w.cached += l.cached
		w.prompt += l.req.PromptTokens
		delete(w.live, e.Seq)
		w.carry(w.d.End(w.now, l.ticket, fleet.Outcome{
			Kind: fleet.OutcomeOK, Status: 200, FirstToken: l.first, End: w.now,
			PromptTokens: l.req.PromptTokens, CachedTokens: l.cached, OutputTokens: l.out,
		}, w.sends[:0]))
	case engine.EventRejected:
		w.t.Errorf("replica %d rejected %d", core, e.Seq)
		delete(w.live, e.Seq)
		w.carry(w.d.End(w.now, l.ticket, fleet.Outcome{Kind: fleet.OutcomeEngineError}, w.sends[:0]))
	}
}

// prompt makes a request of tokens tokens whose blocks follow from the parts: the
// same leading parts give the same leading blocks.
func prompt(blockTokens int, parts ...part) *fleet.Request {
	r := &fleet.Request{Model: "m", Stream: true, BlockTokens: float64(blockTokens)}
	chain, n := uint64(7), 0
	for _, p := range parts {
		r.PromptTokens += p.tokens
		for ; n < r.PromptTokens/blockTokens; n++ {
			chain = route.Mix(chain, p.key+uint64(n))
			r.Blocks = append(r.Blocks, chain)
		}
	}
	r.PromptTokens = max(1, r.PromptTokens)
	return r
}

type part struct {
	key    uint64
	tokens int
}

// testProfile is a replica with round numbers: 8,000 prefill tokens and 40 decode
// steps a second.
func testProfile() engine.Profile {
	return engine.Profile{
		Name: "test", Model: "m", TensorParallel: 1, Base: 0.024, PTok: 1.0 / 8000, PAttn: 1e-10, DSeq: 3e-5, DCtx: 1e-9,
		KVTokens: 400_000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 16, MaxModelLen: 131072,
	}
}

func (w *world) check() {
	w.t.Helper()
	if len(w.live) != 0 {
		w.t.Errorf("%d requests never ended", len(w.live))
	}
	tot := w.d.Totals(w.now)
	if tot.InFlight != 0 || tot.Held != 0 {
		w.t.Errorf("in flight %d, held %d at the end", tot.InFlight, tot.Held)
	}
	for _, r := range w.d.Ledger(w.now, nil) {
		if r.InFlight != 0 || r.Unstarted != 0 || r.Streams != 0 || r.PendingMS != 0 || r.CtxTokens != 0 || r.PinnedBlocks != 0 || r.Queued != 0 || r.QueuedMS != 0 {
			w.t.Errorf("left behind: %+v", r)
		}
	}
}
