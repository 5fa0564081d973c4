// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"sort"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/workload"
)

// epoch is when a run starts: not zero, for a zero time means "unknown".
const epoch fleet.Time = 1_000_000_000

// progressEvery is how often routers hear how many tokens the streams have given.
// A gateway sees each token; in a second a stream grows by a percent or so of its
// context, far below what a pick can notice.
const progressEvery = time.Second

// run is one simulation under way.
type run struct {
	c       Config
	traffic *Traffic
	feed    *workload.Feed
	now     fleet.Time
	noise   *workload.Rand // of signals and events

	replicas []replica
	cores    []*engine.Core // of the ranks of each replica
	ranks    RankResult
	byID     []int    // replicas in the order of their IDs
	models   []string // that every replica serves
	wheel    wheel
	routers  []router
	arrivals int

	flights []*flight
	streams []bool // by flight: its present attempt gave a token
	free    []int32
	ids     []string
	active  int

	nextScrape, nextDeliver, nextProgress fleet.Time
	pending                               *fleet.Snapshot // on its way, or the last one delivered
	held, spare                           *fleet.Snapshot // the last one delivered; the one before
	version                               uint64
	change                                int

	events      []engine.Event
	changes     []engine.BlockChange
	m           meter
	notes       []dispatch.Note
	parcels     []parcel // on their way between routers, from firstParcel on
	firstParcel int
	joined      bool // replicas came or went since the routers' slots were noted
}

// router is one router of the run.
type router struct {
	d     *dispatch.Dispatch
	index *prefix.Index
	slots []int32 // slot of each engine core, -1 unknown
	sends []dispatch.Send
	rows  []dispatch.EndpointLoad
}

// flight is one request between its arrival and its end.
type flight struct {
	req     fleet.Request
	item    workload.Item
	p       *prompt
	router  int
	ticket  dispatch.Ticket
	replica int // -1: not sent
	core    int // with replica: the engine core that has it
	arrived fleet.Time
	first   fleet.Time // 0: none yet
	expect  int        // cached tokens that the router expected
	cached  int
	seen    int // output tokens that the router heard of
	live    bool
	place   int32 // with core: where it is there
}

// Run plays the traffic over the fleet and returns what it measured. It is a pure
// function of its arguments; traffic is only read.
func Run(c Config, traffic *Traffic) Result {
	c = c.withDefaults()
	r := &run{
		c: c, traffic: traffic, now: epoch, nextDeliver: fleet.Never,
		feed:  workload.NewFeed(workload.NewList(traffic.sessions), c.feedOptions()),
		noise: workload.NewRand(c.Seed, "signals", 0),
		m:     meter{slo: c.SLO, tenants: map[string]*tenantSum{}},
	}
	r.m.ttft = make([]float64, 0, traffic.requests)
	r.start()
	for r.step() {
	}
	return r.finish()
}

func (r *run) start() {
	absent := map[int]bool{}
	for _, i := range r.c.Absent {
		absent[i] = true
	}
	for i := range r.c.Replicas {
		p := replica{
			id: "r" + strconv.Itoa(i), up: !absent[i], absent: absent[i], started: r.now,
		}
		r.replicas = append(r.replicas, p)
		for range r.c.Ranks {
			r.cores = append(r.cores, engine.NewCore(r.c.Profile, engine.CoreOptions{BlockEvents: r.c.fed()}))
		}
	}
	for i := range r.replicas {
		r.byID = append(r.byID, i)
	}
	sort.Slice(r.byID, func(a, b int) bool { return r.replicas[r.byID[a]].id < r.replicas[r.byID[b]].id })
	r.models = append([]string{r.c.Profile.Model}, r.traffic.adapters()...)
	r.wheel.init(len(r.cores))
	for i := range r.c.Routers {
		seed := r.c.Seed + uint64(i)*0x9e3779b97f4a7c15
		x := prefix.NewIndex(prefix.Options{Events: r.c.fed()})
		d := dispatch.New(dispatch.Options{
			Pool: "sim", Policy: r.c.Policy(seed), Profile: r.c.Known, Fixed: r.c.Fixed, Queue: r.c.Queue,
			HoldFor: time.Hour, Index: x, BlockBytes: r.c.BlockTokens * workload.BytesPerToken, Bare: true,
			Share: r.c.Exchange, HoldMost: dispatch.DefaultHoldMost, Without: r.c.Without,
		})
		if r.c.Exchange {
			d.SetRank(i, r.c.Routers)
		}
		r.routers = append(r.routers, router{d: d, index: x, slots: make([]int32, len(r.cores))})
	}
	r.joined = true
	r.scrape()
	r.deliver()
	r.nextScrape = r.now.AddSeconds(r.c.Signals.Interval)
	r.nextProgress = r.now.Add(progressEvery)
}

// step advances to the next moment at which something happens, and does the first
// of what is due then. It returns false when the run is over.
func (r *run) step() bool {
	if r.active == 0 && r.feed.Exhausted() {
		return false
	}
	arrival := fleet.Never
	if at := r.feed.NextAt(); at != workload.NeverDue {
		arrival = epoch.Add(at)
	}
	timer, which := fleet.Never, 0
	for i := range r.routers {
		if t := r.routers[i].d.NextTimer(); t < timer {
			timer, which = t, i
		}
	}
	change := fleet.Never
	if r.change < len(r.c.Changes) {
		change = epoch + r.c.Changes[r.change].At
	}
	core, engineAt := r.wheel.top()
	if r.active == 0 && arrival == fleet.Never && change == fleet.Never {
		return false
	}
	parcelAt := r.nextParcel()
	next := min(engineAt, change, r.nextDeliver, r.nextScrape, r.nextProgress, timer, arrival, parcelAt)
	if next == fleet.Never {
		return false
	}
	r.now = max(r.now, next)
	switch next {
	case parcelAt:
		r.hear()
	case engineAt:
		r.advance(core)
	case change:
		r.change++
		r.apply(r.c.Changes[r.change-1])
	case r.nextDeliver:
		r.deliver()
	case r.nextScrape:
		r.scrape()
		r.nextScrape = r.now.AddSeconds(r.c.Signals.Interval)
		r.nextDeliver = r.now.AddSeconds(r.c.Signals.Delay)
	case r.nextProgress:
		r.progress()
		r.nextProgress = r.now.Add(progressEvery)
	case timer:
		rt := &r.routers[which]
		r.send(which, rt.d.Tick(r.now, rt.sends[:0]))
	default:
		if it, ok := r.feed.Pop(r.now.Sub(epoch)); ok {
			r.arrive(it)
		}
	}
	r.gather()
	return true
}

// arrive hands a request to a router; routers take turns.
func (r *run) arrive(it workload.Item) {
	n := r.take()
	f := r.flights[n]
	session := int32(it.Number)
	turn := it.Request()
	*f = flight{
		item: it, p: &r.traffic.turns[session][it.Turn], router: r.arrivals % len(r.routers), replica: -1,
		arrived: r.now, live: true,
		req: fleet.Request{
			ID: r.ids[n], Tenant: it.Session.Tenant, Model: r.c.Profile.Model, Adapter: it.Session.Adapter,
			Class: it.Session.Class, Stream: true, PromptTokens: turn.PromptTokens,
			PromptBytes: turn.PromptTokens * workload.BytesPerToken, MaxTokens: 0,
			Blocks: f.req.Blocks[:0], BlockTokens: float64(r.c.BlockTokens), Arrived: r.now,
		},
	}
	r.arrivals++
	r.active++
	r.show(f, session)
	r.submit(n)
}

// show gives the router the hashes that it would see of the prompt.
func (r *run) show(f *flight, session int32) {
	stride := r.c.BlockTokens / r.c.Profile.BlockTokens
	whole := f.p.all[:f.p.whole]
	if r.c.Index == IndexText {
		// Half of the prompts are recognised only up to a random point.
		h := workload.NewRand(r.c.Seed, "text", uint64(session)<<16|uint64(f.item.Turn))
		if h.Float64() < 0.5 {
			whole = whole[:h.IntN(len(whole)+1)]
		}
	}
	if stride <= 1 {
		f.req.Blocks = whole
		return
	}
	for i := stride - 1; i < len(whole); i += stride {
		f.req.Blocks = append(f.req.Blocks, whole[i])
	}
}

// submit lets the flight's router decide.
func (r *run) submit(n int32) {
	f := r.flights[n]
	rt := &r.routers[f.router]
	ticket, verdict, sends := rt.d.Arrive(r.now, &f.req, rt.sends[:0])
	f.ticket = ticket
	if verdict.Kind == dispatch.Refused {
		r.lose(n)
	}
	r.send(f.router, sends)
}

// send puts on the wire what a router decided.
func (r *run) send(router int, sends []dispatch.Send) {
	rt := &r.routers[router]
	// Sending to a dead replica makes the router decide again, which reuses its
	// memory for sends; so work goes through a list of its own.
	rt.sends = sends
	for k := 0; k < len(rt.sends); k++ {
		s := &rt.sends[k]
		n := number(s.Request.ID)
		f := r.flights[n]
		f.ticket = s.Ticket
		if s.Slot < 0 {
			r.lose(n)
			continue
		}
		if s.Held > 0 {
			r.m.held++
			r.m.maxHeld = max(r.m.maxHeld, s.Held.Seconds()*1e3)
		}
		if s.Decision != nil {
			f.expect = s.Decision.PredictedCached
		}
		i := number(s.Endpoint[1:])
		p := &r.replicas[i]
		if !p.up {
			r.retry(n, fleet.OutcomeConnectError)
			continue
		}
		k := r.coreFor(int(i), s.Pin)
		f.replica, f.core, f.seen, r.streams[n] = int(i), k, 0, false
		turn := f.item.Request()
		r.cores[k].Submit(r.now, engine.Seq{
			ID: uint64(n), Blocks: f.p.all, PromptTokens: turn.PromptTokens, OutputTokens: turn.OutputTokens, Adapter: f.req.Adapter,
		})
		f.place = r.cores[k].Place(uint64(n))
		r.wheel.set(k, r.cores[k].Next())
	}
	rt.sends = rt.sends[:0]
}

// retry tells the flight's router that the attempt failed before the first token.
func (r *run) retry(n int32, kind fleet.OutcomeKind) {
	f := r.flights[n]
	f.replica = -1
	r.m.retried++
	rt := &r.routers[f.router]
	var verdict dispatch.Verdict
	verdict, rt.sends = rt.d.Retry(r.now, f.ticket, kind, rt.sends)
	if verdict.Kind == dispatch.Refused {
		rt.sends = rt.d.End(r.now, f.ticket, fleet.Outcome{
			Kind: kind, End: r.now, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1,
		}, rt.sends)
		r.lose(n)
	}
}

// lose books a request that will not be answered; its session goes no further.
func (r *run) lose(n int32) {
	f := r.flights[n]
	if !f.live {
		return
	}
	r.m.failed++
	if s := f.item.Session; s.Closed || r.c.Users > 0 {
		r.m.unsent += len(s.Turns) - f.item.Turn - 1
	}
	r.feed.Abandon(f.item, r.now.Sub(epoch))
	r.release(n)
}

// advance runs an engine core up to now and tells the routers what came out of it.
func (r *run) advance(core int) {
	c := r.cores[core]
	r.events = c.Advance(r.now, r.events[:0])
	if r.c.fed() {
		r.publish(core)
	}
	for k := range r.events {
		r.event(&r.events[k])
	}
	r.wheel.set(core, c.Next())
	r.drained(core / r.c.Ranks)
}

func (r *run) event(e *engine.Event) {
	n := int32(e.Seq)
	f := r.flights[n]
	rt := &r.routers[f.router]
	switch e.Kind {
	case engine.EventFirstToken:
		if f.first == 0 {
			f.first = r.now
		}
		r.streams[n], f.seen, f.cached = true, 1, e.Cached
		r.send(f.router, rt.d.FirstToken(r.now, f.ticket, rt.sends[:0]))
	case engine.EventFinished:
		turn := f.item.Request()
		o := fleet.Outcome{
			Kind: fleet.OutcomeOK, Status: 200, FirstToken: f.first, End: r.now,
			PromptTokens: turn.PromptTokens, CachedTokens: e.Cached, OutputTokens: e.Output,
		}
		r.m.done(f.req.Tenant, r.now.Seconds(epoch), f.first.Seconds(f.arrived), r.now.Seconds(f.arrived), turn.PromptTokens, e.Cached, f.expect, e.Output)
		router, ticket := f.router, f.ticket
		r.feed.Done(f.item, r.now.Sub(epoch))
		sends := rt.d.End(r.now, ticket, o, rt.sends[:0])
		r.release(n)
		r.send(router, sends)
	case engine.EventRejected: // it can never fit
		router := f.router
		sends := rt.d.End(r.now, f.ticket, fleet.Outcome{
			Kind: fleet.OutcomeClientError, Status: 400, End: r.now, PromptTokens: -1, CachedTokens: -1, OutputTokens: -1,
		}, rt.sends[:0])
		r.lose(n)
		r.send(router, sends)
	}
}

// progress tells the routers how far their streams are.
func (r *run) progress() {
	for n, on := range r.streams {
		if !on {
			continue
		}
		f := r.flights[n]
		if g := r.cores[f.core].GeneratedAt(r.now, f.place); g > f.seen {
			r.routers[f.router].d.Progress(r.now, f.ticket, g-f.seen)
			f.seen = g
		}
	}
	r.crowd()
}

// crowd samples how unevenly the requests in flight are spread.
func (r *run) crowd() {
	sum, most, up := 0, 0, 0
	for i := range r.replicas {
		if !r.replicas[i].up {
			continue
		}
		for _, c := range r.coresOf(i) {
			n := c.InFlight()
			sum, most, up = sum+n, max(most, n), up+1
		}
	}
	if sum >= 2*up && up > 0 {
		r.m.crowd += float64(most*up) / float64(sum)
		r.m.crowds++
	}
}

// take returns the number of a free flight.
func (r *run) take() int32 {
	if n := len(r.free); n > 0 {
		i := r.free[n-1]
		r.free = r.free[:n-1]
		return i
	}
	r.flights, r.streams = append(r.flights, &flight{}), append(r.streams, false)
	r.ids = append(r.ids, strconv.Itoa(len(r.ids)))
	return int32(len(r.flights) - 1)
}

func (r *run) release(n int32) {
	r.flights[n].live, r.streams[n] = false, false
	r.active--
	r.free = append(r.free, n)
}

// number reads back a number that the run itself wrote.
func number(s string) int32 {
	n, _ := strconv.Atoi(s)
	return int32(n)
}

func (r *run) finish() Result {
	r.m.failed += r.active
	res := r.m.result(r.now.Seconds(epoch))
	res.Policy = r.routers[0].d.Policy()
	for i := range r.routers {
		t := r.routers[i].d.Totals(r.now)
		res.Overlaps += t.Overlaps
		for _, g := range t.Guards {
			if g.Switched > 0 {
				if res.Switched == nil {
					res.Switched = map[string]uint64{}
				}
				res.Switched[g.Name] += g.Switched
			}
		}
	}
	sum, most, n := 0.0, 0.0, 0
	for i := range r.replicas {
		p := &r.replicas[i]
		res.Preemptions += p.preempted
		for _, c := range r.coresOf(i) {
			s := c.Stats(r.now)
			res.Preemptions += s.Preemptions
			res.AdapterLoads += s.AdapterLoads
			res.AdapterEvictions += s.AdapterEvictions
			if p.changed {
				continue
			}
			sum += s.BusySeconds
			most = max(most, s.BusySeconds)
			n++
		}
	}
	res.Ranks = r.rankResult()
	if sum > 0 {
		res.Imbalance = most * float64(n) / sum
	}
	return res
}
