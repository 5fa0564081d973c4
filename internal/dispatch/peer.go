// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"slices"

	"github.com/penstock-project/penstock/internal/fleet"
)

// NoteKind says what a Note tells.
type NoteKind uint8

// Kinds of notes. The numbers are those on the wire between routers: they do not
// change.
const (
	NoteSent     NoteKind = iota + 1 // a request went to an endpoint
	NoteFirst                        // its first token came
	NoteProgress                     // Tokens more output tokens came
	NoteEnd                          // it is no longer at the endpoint
	NoteHeld                         // a request waits in the router's queue for an endpoint
	NoteReleased                     // it waits there no more
	NoteCold                         // a request waits for any replica: none can take it now
)

// Note is what one router tells another about one of its requests: enough to
// charge it to the endpoint as if it were one's own. There is no prompt text in it;
// block hashes are keyed.
type Note struct {
	Kind   NoteKind
	Ticket Ticket // the sender's; names the request in later notes
	Key    uint64 // hash of the endpoint's ID; of NoteSent and NoteHeld

	// Of NoteSent, NoteHeld and NoteCold.
	Prompt      float64 // tokens
	Uncached    float64 // tokens that the sender expects to miss the cache, NoteSent
	BlockTokens float64 // tokens in a block, NoteSent and NoteCold
	Stream      bool
	Blocks      []uint64 // of NoteSent and NoteCold; valid until the sender's next call
	// Of a NoteHeld that others may follow: the key by which they find it, 0 for others,
	// and of the blocks each last one of Stride, at most MarksMost.
	Lead   uint64
	Stride int32
	// Follow is the key of the held request that a NoteHeld waits behind; 0: none. Line
	// is where it stands for that, whatever its own work is.
	Follow uint64
	Line   uint8
	// Of NoteHeld, in seconds: its work, how long it waited so far (of NoteCold, too),
	// and what first come first served would have cost. Its rank depends on them, on which routers
	// must agree; so they are told and not estimated anew.
	Work   float64
	Waited float64
	FCFS   float64

	Tokens float64 // of NoteProgress

	// More says that more notes of the same router and moment follow. The receiver sets
	// it, so that a place that one note opens and the next one takes is left alone.
	More bool
}

// peer is what a dispatch keeps of another router.
type peer struct {
	known   map[Ticket]int32 // entries by the peer's ticket
	unknown uint64           // notes on endpoints that are not listed here
}

// PeerLoad is what one other router has in flight, as far as it told.
type PeerLoad struct {
	InFlight int
	Held     int
	Unknown  uint64 // notes about endpoints that this router does not list
}

// tell adds a note for other routers.
func (d *Dispatch) tell(kind NoteKind, i int32, tokens float64) {
	if !d.o.Share || d.entries[i].peer != 0 {
		return
	}
	n := d.note(kind, i, tokens)
	if k := len(d.notes) - 1; k >= 0 && d.notes[k].Kind == NoteReleased && d.notes[k].Ticket == n.Ticket {
		d.notes[k] = n // where it is now says that it waits there no more
		return
	}
	d.notes = append(d.notes, n)
}

func (d *Dispatch) note(kind NoteKind, i int32, tokens float64) Note {
	e := &d.entries[i]
	n := Note{Kind: kind, Ticket: d.ticket(i), Tokens: tokens}
	switch kind {
	case NoteSent:
		n.Blocks, n.BlockTokens = e.req.Blocks, e.blockTokens
		n.Uncached = e.uncached
	case NoteHeld:
		n.Work = e.work
		n.Waited, n.FCFS = d.now.Seconds(e.arrived), e.fcfs
		if n.Follow = e.led; e.led != 0 {
			n.Line = uint8(e.bucket)
		}
		if e.leads {
			n.Lead, n.Stride, n.Blocks = e.key, e.stride, e.marks
		}
	case NoteCold:
		n.Blocks, n.BlockTokens = e.req.Blocks, e.blockTokens
		n.Waited, n.Prompt, n.Stream = d.now.Seconds(e.arrived), e.prompt, e.stream
		return n
	default:
		return n
	}
	n.Key, n.Prompt, n.Stream = d.slots[e.slot].Key, e.prompt, e.stream
	return n
}

// TakeNotes appends what happened since the last call, for the other routers, to
// dst. Empty where Options.Share is not set.
func (d *Dispatch) TakeNotes(dst []Note) []Note {
	dst = append(dst, d.notes...)
	clear(d.notes)
	d.notes = d.notes[:0]
	return dst
}

// Tell appends to dst the notes that bring a router that knows nothing up to date:
// all that is in flight and held. Notes not yet taken are included in that.
func (d *Dispatch) Tell(dst []Note) []Note {
	// Those that others follow come before their followers.
	for _, follows := range [...]bool{false, true} {
		for i := range d.entries {
			if e := &d.entries[i]; e.peer == 0 && e.state == stateQueued && (e.led != 0) == follows {
				dst = append(dst, d.note(NoteHeld, int32(i), 0))
			}
		}
	}
	for i := range d.entries {
		e := &d.entries[i]
		if e.peer != 0 {
			continue
		}
		switch e.state {
		case stateLimbo:
			dst = append(dst, d.note(NoteCold, int32(i), 0))
		case stateSent, stateStream:
			dst = append(dst, d.note(NoteSent, int32(i), 0))
			if e.state == stateStream && e.stream {
				dst = append(dst, d.note(NoteFirst, int32(i), 0), d.note(NoteProgress, int32(i), e.output-1))
			}
		}
	}
	return dst
}

// Hear takes a note of another router in. peer numbers the router, from 1. A note
// that makes no sense (an endpoint or a request that is not known) is ignored. What is
// held here goes where there is room now, unless more notes of the same moment follow.
func (d *Dispatch) Hear(now fleet.Time, from int32, n *Note, out []Send) []Send {
	d.begin(now)
	for int(from) >= len(d.peers) {
		d.peers = append(d.peers, peer{})
	}
	p := &d.peers[from]
	if p.known == nil {
		p.known = map[Ticket]int32{}
	}
	if slot := d.hear(from, p, n); slot >= 0 && !slices.Contains(d.roomAt, slot) {
		d.roomAt = append(d.roomAt, slot)
	}
	if n.More {
		return out
	}
	for _, slot := range d.roomAt {
		out = d.drain(slot, out)
	}
	d.roomAt = d.roomAt[:0]
	return out
}

// hear books a note, and returns the slot where it makes room; -1: nowhere.
func (d *Dispatch) hear(from int32, p *peer, n *Note) (room int32) {
	room = -1
	i, ok := p.known[n.Ticket]
	switch n.Kind {
	case NoteCold:
		if ok {
			room = d.hearEnd(p, n.Ticket, i)
		}
		p.known[n.Ticket] = d.hearCold(from, n)
	case NoteSent, NoteHeld:
		cold := ok && d.entries[i].cold
		if ok {
			room = d.hearEnd(p, n.Ticket, i)
		}
		slot := d.slotOf(n.Key)
		if slot < 0 {
			p.unknown++
			return room
		}
		if n.Kind == NoteSent {
			d.blind.theirs(d.now, n.Blocks)
		}
		i = d.hearNew(from, n, slot)
		d.entries[i].cold = cold
		p.known[n.Ticket] = i
	case NoteFirst:
		if ok && d.entries[i].state == stateSent {
			room = d.entries[i].slot
			d.start(i, d.now, true)
		}
	case NoteProgress:
		if ok && d.entries[i].state == stateStream && n.Tokens > 0 {
			d.grow(i, n.Tokens)
		}
	case NoteEnd, NoteReleased:
		if ok {
			room = d.hearEnd(p, n.Ticket, i)
		}
	}
	return room
}

// hearCold makes an entry for a request that waits at another router for any replica.
// It is charged nowhere.
func (d *Dispatch) hearCold(from int32, n *Note) int32 {
	i := d.vacant()
	e := &d.entries[i]
	*e = entry{
		state: statePeerLimbo, gen: max(1, e.gen+1), slot: -1, prev: -1, next: -1, heap: -1, peer: from,
		stream: n.Stream, tried: e.tried[:0], marks: e.marks[:0], arrived: d.now.AddSeconds(-max(0, n.Waited)), prompt: max(1, n.Prompt), cold: true,
	}
	d.coldThere++
	return i
}

// ToldCold reports whether another router has told of a request before that it waits
// for any replica.
func (d *Dispatch) ToldCold(from int32, t Ticket) bool {
	if from < 0 || int(from) >= len(d.peers) {
		return false
	}
	i, ok := d.peers[from].known[t]
	return ok && d.entries[i].cold
}

// slotOf returns the slot of an endpoint by the hash of its ID; -1: not listed.
func (d *Dispatch) slotOf(key uint64) int32 {
	for i := range d.slots {
		if d.aux[i].used && !d.aux[i].gone && d.slots[i].Key == key {
			return int32(i)
		}
	}
	if len(d.homes) > 0 {
		return d.elsewhere(key)
	}
	return -1
}

// hearNew makes an entry for a request of another router and charges it.
func (d *Dispatch) hearNew(from int32, n *Note, slot int32) int32 {
	i := d.vacant()
	e := &d.entries[i]
	*e = entry{
		state: stateFailed, gen: e.gen + 1, slot: slot, prev: -1, next: -1, heap: -1, peer: from,
		stream: n.Stream, tried: e.tried[:0], marks: e.marks[:0], arrived: d.now, sentAt: d.now, lastAt: d.now,
		prompt: max(1, n.Prompt), blockTokens: n.BlockTokens, life: d.aux[slot].life,
	}
	if e.gen == 0 {
		e.gen = 1
	}
	e.uncached = min(max(0, n.Uncached), e.prompt)
	e.work = d.workAt(e, slot, e.uncached)
	if n.Kind == NoteHeld {
		e.work = max(0, n.Work)
		e.state, e.bucket = statePeerHeld, bucketOf(e.work)
		e.arrived, e.fcfs = d.now.AddSeconds(-max(0, n.Waited)), max(0, n.FCFS)
		if n.Follow != 0 {
			d.hearFollow(i, n)
		}
		d.queueTheirs(i)
		d.hearLead(i, n)
		return i
	}
	d.learned.offer(d.now, e.work+d.learned.coef.Base, d.ready)
	e.state = stateSent
	d.tookPlace(slot)
	d.charge(i, slot, n.Blocks)
	return i
}

// hearEnd forgets a request of another router, and returns where it was; -1: nowhere.
func (d *Dispatch) hearEnd(p *peer, t Ticket, i int32) (slot int32) {
	delete(p.known, t)
	slot = d.entries[i].slot
	d.dropPeer(i)
	return slot
}

// dropPeer takes back what an entry of another router is charged with.
func (d *Dispatch) dropPeer(i int32) {
	e := &d.entries[i]
	switch e.state {
	case statePeerHeld:
		d.dequeueTheirs(i)
		d.freeSlot(e.slot)
	case statePeerLimbo:
		d.coldThere--
	case stateSent, stateStream:
		d.takeBack(i)
	}
	d.forget(i)
}

// PeerGone forgets all that another router told: its connection is lost, so nothing
// would say when its requests end.
func (d *Dispatch) PeerGone(now fleet.Time, from int32, out []Send) []Send {
	d.begin(now)
	if from < 0 || int(from) >= len(d.peers) {
		return out
	}
	for i := range d.entries {
		if d.entries[i].peer == from && d.entries[i].state != stateFree {
			d.dropPeer(int32(i))
		}
	}
	d.peers[from] = peer{unknown: d.peers[from].unknown}
	return d.drainAll(out)
}

// Peer returns what another router has told.
func (d *Dispatch) Peer(from int32) PeerLoad {
	if from < 0 || int(from) >= len(d.peers) {
		return PeerLoad{}
	}
	l := PeerLoad{Unknown: d.peers[from].unknown}
	for i := range d.entries {
		if e := &d.entries[i]; e.peer == from {
			switch e.state {
			case stateSent, stateStream:
				l.InFlight++
			case statePeerHeld, statePeerLimbo:
				l.Held++
			}
		}
	}
	return l
}

// charge adds an entry that goes to a slot to the accounting there. Its work,
// uncached tokens and prompt are known.
func (d *Dispatch) charge(i, slot int32, blocks []uint64) {
	e, s, a, l := &d.entries[i], &d.slots[slot], &d.aux[slot], &d.learned
	e.chunks = math.Ceil(e.uncached / l.coef.Chunk)
	steps := e.chunks
	if e.joins {
		steps = e.uncached / l.coef.Chunk
	}
	e.estimate = e.work + l.coef.Base*steps*s.Speed
	e.share = e.work*l.missed.ratio() + l.coef.Base*e.uncached/l.coef.Chunk*s.Speed
	e.tail = max(0, e.prompt-float64(len(blocks))*e.blockTokens)

	d.tally(slot)
	s.InFlight++
	s.Unstarted++
	s.PendingSum += e.estimate
	a.shares += e.share
	s.UncachedTokens += e.uncached
	s.TailTokens += e.tail
	if a.fifo.n == 0 {
		s.HeadEstimate, s.HeadSince = e.estimate, d.now
		a.speed.begin(d.now)
	}
	d.push(&a.fifo, i)
	if !e.stream {
		d.silent++
		a.speed.dirty = true
	}
	a.inFlightAt.set(d.now, s.InFlight)
	e.pins = d.index.Pin(d.now, slot, blocks)
	if e.peer != 0 {
		a.peers++
	} else if !e.stream {
		d.owes(slot)
	}
	d.refresh(slot)
}

// grow adds output tokens to a stream.
func (d *Dispatch) grow(i int32, tokens float64) {
	e := &d.entries[i]
	d.pace(e.slot)
	s := &d.slots[e.slot]
	e.output += tokens
	e.context += tokens
	s.CtxTokens += tokens
	s.Generated += tokens
	e.lastAt = d.now
}

// vacant returns the place of an entry that is free.
func (d *Dispatch) vacant() int32 {
	if i := d.freeHead; i >= 0 {
		d.freeHead = d.entries[i].next
		return i
	}
	d.entries = append(d.entries, entry{})
	return int32(len(d.entries) - 1)
}
