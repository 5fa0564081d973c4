// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// fakePool keeps what it is told.
type fakePool struct {
	mu      sync.Mutex
	state   []dispatch.Note
	sink    func([]dispatch.Note)
	heard   map[int32][]dispatch.Note
	more    []bool // of what was heard
	gone    int
	rank, n int
}

func (p *fakePool) Hear(peer int32, notes []dispatch.Note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range notes {
		n.Blocks = slices.Clone(n.Blocks)
		p.more = append(p.more, n.More)
		n.More = false // how notes are spread over frames is a matter of time
		p.heard[peer] = append(p.heard[peer], n)
	}
}

func (p *fakePool) PeerGone(peer int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone++
	delete(p.heard, peer)
}

func (p *fakePool) Tell(fn func([]dispatch.Note)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(p.state)
}

func (p *fakePool) SetRank(rank, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rank, p.n = rank, n
}

// send does what a flow does: the note becomes state and goes to the sink.
func (p *fakePool) send(n dispatch.Note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = append(p.state, n)
	p.sink([]dispatch.Note{n})
}

func (p *fakePool) all() []dispatch.Note {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []dispatch.Note
	for _, l := range p.heard {
		out = append(out, l...)
	}
	return out
}

func (p *fakePool) ranked() [2]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return [2]int{p.rank, p.n}
}

type fakeRouter struct {
	x    *Exchange
	pool *fakePool
	stop func()
}

func startRouter(t *testing.T, name string, ln net.Listener, secret string, check uint64, peers ...string) *fakeRouter {
	t.Helper()
	r := &fakeRouter{pool: &fakePool{heard: map[int32][]dispatch.Note{}}}
	r.x = NewExchange(ExchangeOptions{Router: name, Peers: peers, Secret: []byte(secret), Check: check})
	r.pool.sink = r.x.Add("chat", r.pool)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.x.Run(ctx, ln) }()
	r.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(r.stop)
	return r
}

func port(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 12000 { // a minute
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("it never came to pass that %s", what)
}

func sent(ticket uint64, blocks ...uint64) dispatch.Note {
	return dispatch.Note{Kind: dispatch.NoteSent, Ticket: dispatch.Ticket(ticket), Key: 7, Prompt: 100, Uncached: 36, BlockTokens: 32, Stream: true, Blocks: blocks}
}

// led is a held request that leads some and follows another one.
func led(ticket uint64, marks ...uint64) dispatch.Note {
	return dispatch.Note{Kind: dispatch.NoteHeld, Ticket: dispatch.Ticket(ticket), Key: 7, Prompt: 5, Work: 0.25,
		Waited: 1, FCFS: 2, Lead: 21, Stride: 3, Blocks: marks, Follow: 22, Line: 9}
}

// TestExchange: what was in flight before the connection comes, what comes later
// follows in order, and the other is forgotten once it is gone.
func TestExchange(t *testing.T) {
	a, b := port(t), port(t)
	peers := []string{a.Addr().String(), b.Addr().String()} // everybody is given the same list
	ra := startRouter(t, "a", a, "s", 1, peers...)
	ra.pool.send(sent(1, 10, 11))
	rb := startRouter(t, "b", b, "s", 1, peers...)
	want := []dispatch.Note{sent(1, 10, 11)}
	eventually(t, "b hears what a had in flight", func() bool { return cmp.Equal(rb.pool.all(), want) })
	more := []dispatch.Note{
		{Kind: dispatch.NoteFirst, Ticket: 1}, {Kind: dispatch.NoteProgress, Ticket: 1, Tokens: 32},
		{Kind: dispatch.NoteHeld, Ticket: 2, Key: 7, Prompt: 5, Work: 0.25, Waited: 1, FCFS: 2},
		led(4, 14, 15), {Kind: dispatch.NoteReleased, Ticket: 4},
		{Kind: dispatch.NoteReleased, Ticket: 2}, {Kind: dispatch.NoteEnd, Ticket: 1},
		{Kind: dispatch.NoteCold, Ticket: 3, Prompt: 5, Waited: 1.5, BlockTokens: 32, Stream: true, Blocks: []uint64{12, 13}},
	}
	for _, n := range more {
		ra.pool.send(n)
	}
	want = append(want, more...)
	eventually(t, "b hears the rest", func() bool { return len(rb.pool.all()) == len(want) })
	if d := cmp.Diff(want, rb.pool.all()); d != "" {
		t.Error(d)
	}
	eventually(t, "both know that they are two", func() bool {
		return ra.pool.ranked() == [2]int{0, 2} && rb.pool.ranked() == [2]int{1, 2}
	})
	eventually(t, "b knows its own address, and what it has heard is counted", func() bool {
		s, _ := rb.x.States()
		return len(s) == 1 && s[0].Notes >= uint64(len(want))
	})
	states, fault := rb.x.States()
	if len(states) != 1 || fault != "" || states[0].Router != "a" || !states[0].Heard || states[0].Notes != uint64(len(want)) {
		t.Errorf("states %+v %q", states, fault)
	}
	ra.stop()
	eventually(t, "b forgets a", func() bool { return len(rb.pool.all()) == 0 && rb.pool.ranked() == [2]int{0, 1} })
}

// TestExchangeSecret: without the secret nothing is taken in.
func TestExchangeSecret(t *testing.T) {
	a, b := port(t), port(t)
	ra := startRouter(t, "a", a, "right", 1)
	rb := startRouter(t, "b", b, "wrong", 1, a.Addr().String())
	eventually(t, "b is told why", func() bool {
		s, _ := rb.x.States()
		return len(s) == 1 && s[0].Fault == errSecret.Error()
	})
	rb.pool.send(sent(1))
	if got := ra.pool.all(); len(got) != 0 {
		t.Errorf("heard %v", got)
	}
}

// TestExchangeOtherKey: hashes of another key mean nothing here; the load does.
func TestExchangeOtherKey(t *testing.T) {
	a, b := port(t), port(t)
	ra := startRouter(t, "a", a, "s", 1)
	rb := startRouter(t, "b", b, "s", 2, a.Addr().String())
	rb.pool.send(sent(1, 10, 11))
	eventually(t, "a hears", func() bool { return len(ra.pool.all()) == 1 })
	if n := ra.pool.all()[0]; n.Blocks != nil || n.Uncached != 36 {
		t.Errorf("note %+v", n)
	}
	rb.pool.send(led(2, 14))
	eventually(t, "a hears of the one that is held", func() bool { return len(ra.pool.all()) == 2 })
	if n := ra.pool.all()[1]; n.Blocks != nil || n.Lead != 0 || n.Follow != 0 || n.Work != 0.25 {
		t.Errorf("note %+v", n)
	}
	if s, _ := ra.x.States(); len(s) != 1 || !s[0].OtherKey {
		t.Errorf("states %+v", s)
	}
}

// TestExchangeOverflow: a router that was too slow is told everything anew.
func TestExchangeOverflow(t *testing.T) {
	l := &link{up: true, wake: make(chan struct{}, 1)}
	blocks := make([]uint64, 1000)
	for i := range 2 * bufferMost / (8 * len(blocks)) {
		l.add(1, []dispatch.Note{sent(uint64(i+1), blocks...)})
	}
	if !l.over || len(l.buf) > bufferMost {
		t.Errorf("over %v with %d bytes", l.over, len(l.buf))
	}
}

// TestVersions: a router of the first version understands what it is told, and says no
// version of its own.
func TestVersions(t *testing.T) {
	n := led(4, 14, 15)
	first := noteReader{b: appendNote(nil, &n, versionFirst)}
	var got dispatch.Note
	_, _, ok := first.next(&got)
	n.Lead, n.Stride, n.Blocks, n.Follow, n.Line = 0, 0, nil, 0, 0
	if d := cmp.Diff(n, got); d != "" || !ok || len(first.b) != 0 {
		t.Error(ok, d)
	}
	me := hello{Router: "5cdd-d8f14c26", Check: 3}
	if h, err := readHello(me.bytes()); err != nil || h.Router != me.Router || h.Check != 3 || h.Version != versionNow {
		t.Errorf("%+v %v", h, err)
	}
	old := append(make([]byte, 8), me.Router...)
	if h, err := readHello(old); err != nil || h.Router != me.Router || h.Version != versionFirst {
		t.Errorf("%+v %v", h, err)
	}
	for _, s := range []string{"/2", "a/", "a/0", "a/b", "a/2/3"} {
		if _, err := readHello(append(make([]byte, 8), s...)); err == nil {
			t.Errorf("%q passes", s)
		}
	}
	newer := append(make([]byte, 8), "a/9"...)
	if h, err := readHello(newer); err != nil || h.Version != 9 {
		t.Errorf("%+v %v", h, err)
	}
}

// TestMore: of the notes of a pool in a frame all but the last one say that more follow,
// and each has its own blocks.
func TestMore(t *testing.T) {
	x := NewExchange(ExchangeOptions{Router: "a"})
	chat := &fakePool{heard: map[int32][]dispatch.Note{}}
	x.Add("chat", chat)
	b := appendPool(nil, x.pools[0].hash)
	notes := []dispatch.Note{sent(1, 10, 11), led(2, 12), sent(3, 13)}
	for i := range notes {
		b = appendNote(b, &notes[i], versionNow)
	}
	other := sent(4, 14)
	b = appendNote(appendPool(b, 99), &other, versionNow) // a pool that is not there
	b = appendNote(appendPool(b, x.pools[0].hash), &other, versionNow)
	n := x.frame(&noteReader{b: b}, &inbound{number: 1})
	if d := cmp.Diff(append(notes, other), chat.all()); d != "" || n != 4 {
		t.Error(n, d)
	}
	if want := []bool{true, true, false, false}; !cmp.Equal(chat.more, want) {
		t.Errorf("more: %v, want %v", chat.more, want)
	}
}

func FuzzNotes(f *testing.F) {
	var b []byte
	b = append(appendPool(b, 3), itemReset)
	n := sent(1, 2, 3)
	b = appendNote(b, &n, versionNow)
	f.Add(b)
	held := led(4, 5, 6)
	f.Add(appendNote(appendPool(nil, 3), &held, versionNow))
	f.Add(appendPart(append(appendPool(nil, 3), itemWant), 3, 1, []byte{7, 8}))
	f.Add([]byte{itemReset, itemWant})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := noteReader{b: b}
		var out []byte
		for {
			var n dispatch.Note
			item, pool, ok := r.next(&n)
			if !ok {
				break
			}
			switch item {
			case itemPool:
				out = appendPool(out, pool)
			case itemReset, itemWant:
				out = append(out, item)
			case itemIndex:
				total, at, data := r.part()
				out = appendPart(out, total, at, data)
			default:
				out = appendNote(out, &n, versionNow)
			}
		}
		if r.bad {
			return
		}
		// What was read is written and read the same.
		again := noteReader{b: out}
		for {
			var n dispatch.Note
			item, _, ok := again.next(&n)
			if !ok {
				break
			}
			if item == itemIndex {
				again.part()
			}
		}
		if again.bad {
			t.Fatalf("%x became %x, which cannot be read", b, out)
		}
	})
}
