// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// Teller is a live pool as the exchange sees it; *flow.Flow is one.
type Teller interface {
	// Hear takes in what the router of a number told. It is called from one goroutine
	// a router.
	Hear(peer int32, notes []dispatch.Note)
	// PeerGone forgets all that it told.
	PeerGone(peer int32)
	// Tell calls fn with all that another router would have to know now. Notes that
	// come later go to the sink, none is missed and none comes twice.
	Tell(fn func(notes []dispatch.Note))
	// SetRank says which of n routers that share the traffic this one is.
	SetRank(rank, n int)
}

// ExchangeOptions of an Exchange.
type ExchangeOptions struct {
	Router string // name of this router, unique
	// Peers are the addresses of other routers, host:port, or dns:host:port for all
	// addresses of a name, looked up again and again. This router may be among them.
	Peers  []string
	Secret []byte // that all routers know; empty only among loopback addresses
	// Check identifies the key that prompts are hashed with. Of a router with another
	// one only load is taken in: its block hashes mean nothing here.
	Check uint64
	Log   *slog.Logger // nil: discard
}

// Exchange tells other routers what this one sent, and hears the same of them.
type Exchange struct {
	o     ExchangeOptions
	pools []namedPool // fixed after Start

	mu      sync.Mutex
	links   map[string]*link    // by address that was dialled
	heard   map[string]*inbound // by router
	numbers map[string]int32
	self    map[string]bool   // addresses that turned out to be this router
	wants   map[uint64]*want  // indexes that this router would like to have, by pool
	gives   map[uint64]uint64 // checks of those that it gives, by pool
	fault   string            // of the last lookup
	conns   map[net.Conn]struct{}
	closed  bool
	refusal time.Time // of the last line about one
	unsaid  int       // refusals since

	shaking atomic.Int32 // handshakes under way
}

type namedPool struct {
	name string
	hash uint64
	t    Teller
}

// inbound is a router that tells us.
type inbound struct {
	router  string
	number  int32
	given   map[uint64]time.Time // when it was last given an index, by pool
	conn    net.Conn
	address string
	since   time.Time
	last    time.Time
	notes   uint64
	foreign bool // hashes prompts with another key
	live    bool
}

// NewExchange returns an exchange that does nothing before Run.
func NewExchange(o ExchangeOptions) *Exchange {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Exchange{
		o: o, links: map[string]*link{}, heard: map[string]*inbound{}, numbers: map[string]int32{},
		self: map[string]bool{}, conns: map[net.Conn]struct{}{}, wants: map[uint64]*want{}, gives: map[uint64]uint64{},
	}
}

// Add names a pool. It returns the sink that takes the pool's notes: it never
// blocks, and what it is given is not kept. Call it before Run.
func (x *Exchange) Add(name string, t Teller) (sink func(notes []dispatch.Note)) {
	p := namedPool{name: name, hash: xxh3.HashString(name), t: t}
	x.pools = append(x.pools, p)
	return func(notes []dispatch.Note) {
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, l := range x.links {
			l.add(p.hash, notes)
		}
	}
}

func (x *Exchange) me() hello { return hello{Router: x.o.Router, Check: x.o.Check} }

// Run talks until ctx ends. ln, which it closes, is where other routers dial; nil:
// this router only tells.
func (x *Exchange) Run(ctx context.Context, ln net.Listener) {
	var wg sync.WaitGroup
	defer wg.Wait()
	end := sync.OnceFunc(func() {
		if ln != nil {
			ln.Close()
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.closed = true
		for c := range x.conns {
			c.Close()
		}
	})
	defer context.AfterFunc(ctx, end)()
	if ln != nil {
		wg.Go(func() { x.accept(ln, &wg) })
	}
	x.follow(ctx, &wg)
	// It may come here before the function above is called, which then never is.
	end()
}

// track remembers a connection so that the end of Run closes it; false: it ended.
func (x *Exchange) track(c net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		c.Close()
		return false
	}
	x.conns[c] = struct{}{}
	return true
}

func (x *Exchange) untrack(c net.Conn) {
	c.Close()
	x.mu.Lock()
	delete(x.conns, c)
	x.mu.Unlock()
}

// Strangers can open connections too: so many may be in the handshake at a time, the
// next ones are closed, and one refusal a second is logged.
const (
	handshakesMost = 64
	refusalEvery   = time.Second
)

func (x *Exchange) accept(ln net.Listener, wg *sync.WaitGroup) {
	for {
		c, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			x.o.Log.Warn("exchange with other routers", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if x.track(c) {
			wg.Go(func() {
				defer x.untrack(c)
				x.serve(c)
			})
		}
	}
}

// serve hears one router until its connection ends.
func (x *Exchange) serve(c net.Conn) {
	if n := x.shaking.Add(1); n > handshakesMost {
		x.shaking.Add(-1)
		x.refused(c, errCrowd)
		return
	}
	f, h, err := accepted(c, x.o.Secret, x.me())
	x.shaking.Add(-1)
	if err != nil {
		x.refused(c, err)
		return
	}
	if h.Router == x.o.Router {
		return // ourselves; the dialling side drops the address
	}
	in := x.join(h, c)
	x.o.Log.Info("a router tells what it sends", "router", h.Router, "address", in.address)
	err = x.listen(f, in)
	x.leave(h.Router, in)
	x.o.Log.Info("a router is gone", "router", h.Router, "reason", errText(err))
}

var errCrowd = errors.New("too many connections that have not proved anything")

func (x *Exchange) refused(c net.Conn, err error) {
	x.mu.Lock()
	quiet := time.Since(x.refusal) < refusalEvery
	if quiet {
		x.unsaid++
	} else {
		x.refusal = time.Now()
	}
	unsaid := x.unsaid
	if !quiet {
		x.unsaid = 0
	}
	x.mu.Unlock()
	if !quiet {
		x.o.Log.Warn("refused a router", "address", c.RemoteAddr().String(), "error", err, "others_since_the_last_line", unsaid)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// join registers a router that tells; an older connection of the same one ends.
func (x *Exchange) join(h hello, c net.Conn) *inbound {
	x.mu.Lock()
	x.forget(time.Now())
	n, ok := x.numbers[h.Router]
	if !ok {
		taken := slices.Collect(maps.Values(x.numbers))
		for n = 1; slices.Contains(taken, n); n++ {
		}
		x.numbers[h.Router] = n
	}
	old := x.heard[h.Router]
	connected := old != nil && old.live
	in := &inbound{
		router: h.Router, number: n, conn: c, address: c.RemoteAddr().String(), since: time.Now(), last: time.Now(),
		foreign: h.Check != x.o.Check, live: true,
	}
	if old != nil {
		in.given = old.given
	}
	x.heard[h.Router] = in
	x.mu.Unlock()
	if connected {
		old.conn.Close()
	}
	for _, p := range x.pools {
		p.t.PeerGone(n)
	}
	x.rank()
	return in
}

// forgetAfter is how long a router that is gone is listed. Each start of one has a name
// of its own, so without an end there would be more and more.
const forgetAfter = 10 * time.Minute

// forget drops routers that are gone for long. Exchange.mu is held.
func (x *Exchange) forget(now time.Time) {
	for name, in := range x.heard {
		if !in.live && now.Sub(in.last) > forgetAfter {
			delete(x.heard, name)
			delete(x.numbers, name)
		}
	}
}

// leave forgets what a router told, unless it is back on another connection.
func (x *Exchange) leave(router string, in *inbound) {
	x.mu.Lock()
	in.live = false
	current := x.heard[router] == in
	x.mu.Unlock()
	if !current {
		return
	}
	for _, p := range x.pools {
		p.t.PeerGone(in.number)
	}
	x.rank()
}

// rank tells the pools which of the living routers this one is, by name.
func (x *Exchange) rank() {
	x.mu.Lock()
	names := []string{x.o.Router}
	for r, in := range x.heard {
		if in.live {
			names = append(names, r)
		}
	}
	x.mu.Unlock()
	sort.Strings(names)
	for _, p := range x.pools {
		p.t.SetRank(slices.Index(names, x.o.Router), len(names))
	}
}

// listen reads frames until one is missing for too long.
func (x *Exchange) listen(f *framer, in *inbound) error {
	var r noteReader
	for {
		_ = f.c.SetReadDeadline(time.Now().Add(goneAfter))
		b, err := f.read()
		if err != nil {
			return err
		}
		x.mu.Lock()
		in.last = time.Now()
		x.mu.Unlock()
		r.b, r.bad = b, false
		n := x.frame(&r, in)
		if r.bad {
			return errNotes
		}
		x.mu.Lock()
		in.notes += uint64(n)
		x.mu.Unlock()
	}
}

// frame hands on what one frame tells, and returns the number of notes. A note is handed
// on when the next item is read: it says whether another one of its pool follows.
func (x *Exchange) frame(r *noteReader, in *inbound) (notes int) {
	var pool Teller
	var named uint64
	var last [1]dispatch.Note
	waits := false
	hand := func(more bool) {
		if waits {
			last[0].More = more
			pool.Hear(in.number, last[:])
			waits = false
			notes++
		}
	}
	for {
		var n dispatch.Note
		item, hash, ok := r.next(&n)
		isNote := ok && item < itemPool
		hand(isNote)
		if !ok {
			return notes
		}
		switch {
		case item == itemPool:
			pool, named = x.pool(hash), hash
		case item == itemIndex:
			if total, at, data := r.part(); !r.bad {
				x.gather(in, named, total, at, data)
			}
		case pool == nil: // a pool that is not ours
		case item == itemWant:
			x.wanted(in, named)
		case item == itemReset:
			pool.PeerGone(in.number)
		default:
			if in.foreign {
				n.Blocks, n.Lead, n.Follow = nil, 0, 0
			}
			last[0], waits = n, true
		}
	}
}

func (x *Exchange) pool(hash uint64) Teller {
	for _, p := range x.pools {
		if p.hash == hash {
			return p.t
		}
	}
	return nil
}

// PeerState is what is known of one other router.
type PeerState struct {
	Router  string // "" while it was not reached
	Address string // that this router dials; "" where the other only dials us
	Number  int32  // by which pools know it; 0: it never told
	// Telling says that it hears us, and Fault why not.
	Telling bool
	Fault   string
	// Heard says that it tells us; Age is since it was heard last, -1 never.
	Heard      bool
	Age        time.Duration
	Notes      uint64 // heard
	Resyncs    uint64 // times that all had to be told again, for it was slow
	OtherKey   bool   // it hashes prompts with another key: only load counts
	Since, Now time.Time
}

// States lists the other routers by name, then by address.
func (x *Exchange) States() (out []PeerState, fault string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	x.forget(now)
	seen := map[string]bool{}
	for addr, l := range x.links {
		if x.self[addr] {
			continue
		}
		s := PeerState{Address: addr, Router: l.router, Telling: l.up, Fault: l.fault, Resyncs: l.resyncs, Age: -1, Now: now}
		if in := x.heard[l.router]; l.router != "" && in != nil {
			in.state(&s, now)
			seen[l.router] = true
		}
		out = append(out, s)
	}
	for r, in := range x.heard {
		if !seen[r] {
			s := PeerState{Router: r, Fault: "not among the peers that are dialled", Now: now}
			in.state(&s, now)
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b PeerState) int {
		return strings.Compare(a.Router+"\x00"+a.Address, b.Router+"\x00"+b.Address)
	})
	return out, x.fault
}

func (in *inbound) state(s *PeerState, now time.Time) {
	s.Number, s.Heard, s.Age, s.Notes, s.OtherKey, s.Since = in.number, in.live, now.Sub(in.last), in.notes, in.foreign, in.since
}
