// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
)

// entryState is where a request is.
type entryState uint8

const (
	stateFree      entryState = iota
	stateLimbo                // waits for a ready replica
	stateQueued               // in the router's queue for entry.slot
	stateSent                 // at entry.slot, no first token
	stateStream               // at entry.slot, past its first token
	stateFailed               // the last attempt failed and no other was made
	stateGhost                // written off: the replica says that it has it no more
	statePeerHeld             // in another router's queue for entry.slot
	statePeerLimbo            // waits at another router for a ready replica
)

// entry is one request from Arrive to End.
type entry struct {
	req   *fleet.Request
	state entryState
	gen   uint32
	peer  int32 // number of the router that told of it; 0: our own
	slot  int32
	prev  int32 // in the list that the state says
	next  int32
	heap  int32 // place in Dispatch.due, -1 none

	arrival      uint64
	tenant       int32
	stream       bool
	retried      bool     // moved once for a reason other than a failed connect
	leads        bool     // others may follow it while it is held
	key          uint64   // by which they find it
	marks        []uint64 // what is told of its blocks
	stride       int32    // blocks from one mark to the next
	led          uint64   // the key of the one that it follows; 0: none
	behind       int32    // the entry of another router that it waits behind, plus 1; 0: none
	behindGen    uint32   // of that entry
	overtakes    int32    // the entry that it could overtake where it went, plus 1; 0: none
	overtakesGen uint32   // of that entry
	over         bool     // booked at its slot as one of the tenant over its share
	asks         int32    // the rank that it asks for wherever a proxy takes it, plus 1; 0: it is where we sent it
	trial        bool     // the one request that tries an ejected endpoint
	waited       bool     // its caller was told that it is held
	prior        bool     // a session hint stood in for the index
	cold         bool     // others were told that it waits for any replica
	joins        bool     // it shares the step of a prompt that begins as it does
	prompt       float64
	blockTokens  float64
	tried        []uint64 // keys of endpoints where an attempt failed

	// What was charged to the slot, to be taken back.
	work     float64 // seconds of prefill, x
	estimate float64 // work and the steps that it rides on, were it alone or among those that it joins
	share    float64 // work and its part of a full step
	chunks   float64
	uncached float64 // tokens
	tail     float64 // tokens
	kv       float64 // tokens of KV memory that it will take
	context  float64 // tokens of context, once it streams
	output   float64 // tokens of output among them
	pins     prefix.Ref

	arrived  fleet.Time
	heldAt   fleet.Time // start of the present wait in the router
	held     fleet.Time // nanoseconds waited in the router before
	sentAt   fleet.Time
	firstAt  fleet.Time
	passed   fleet.Time // when a later one got its first token before it
	lastAt   fleet.Time // last sign of life
	deadline fleet.Time // when its wait in the router ends at the latest
	bound    fleet.Time // what the queue's own bound says of that; 0: it was in no queue

	judged    bool    // what the queue did to it is measured
	follows   bool    // it waits where another one leads
	would     float64 // seconds to its first token had it been sent when it came
	own       float64 // the same with the queue, as predicted then
	apart     float64 // the same where it would have gone without a leader
	spares    float64 // seconds that others are spared by its following
	hoped     float64 // its work behind the leader, as predicted then
	predicted float64 // seconds from sending to the first token, the load of its adapter apart
	sway      sway    // where it would have gone but for its adapter
	loads     bool    // its adapter is believed to be loaded for it
	load      float64 // with loads: seconds believed for that; 0 where it waits for more

	cached  int32   // tokens expected at the slot
	deepest int32   // blocks believed cached where most of them were, when it came
	fcfs    float64 // seconds that first come first served would have cost
	life    uint32  // of the slot when it was sent
	bucket  int8
	stepsAt float64 // decode steps counted at the slot at the first token
	doneAt  float64 // prefill work done there by then, seconds
}

// list is a doubly linked list through entry.prev and entry.next.
type list struct{ head, tail, n int32 }

var emptyList = list{-1, -1, 0}

func (d *Dispatch) push(l *list, i int32) {
	e := &d.entries[i]
	e.prev, e.next = l.tail, -1
	if l.tail >= 0 {
		d.entries[l.tail].next = i
	} else {
		l.head = i
	}
	l.tail = i
	l.n++
}

func (d *Dispatch) unlink(l *list, i int32) {
	e := &d.entries[i]
	if e.prev >= 0 {
		d.entries[e.prev].next = e.next
	} else {
		l.head = e.next
	}
	if e.next >= 0 {
		d.entries[e.next].prev = e.prev
	} else {
		l.tail = e.prev
	}
	e.prev, e.next = -1, -1
	l.n--
}

// ticket packs the place of an entry and its generation; the generation is never
// zero, so no ticket is.
func (d *Dispatch) ticket(i int32) Ticket {
	return Ticket(uint64(d.entries[i].gen)<<32 | uint64(uint32(i)))
}

// find returns the place of a ticket's entry, -1 when the ticket is over.
func (d *Dispatch) find(t Ticket) int32 {
	i := int32(uint32(t))
	if i < 0 || int(i) >= len(d.entries) || d.entries[i].state == stateFree || d.entries[i].gen != uint32(t>>32) {
		return -1
	}
	return i
}

// admit makes an entry for r.
func (d *Dispatch) admit(r *fleet.Request) int32 {
	i := d.vacant()
	d.n.Arrived++
	e := &d.entries[i]
	*e = entry{
		req: r, state: stateFailed, gen: e.gen + 1, slot: -1, prev: -1, next: -1, heap: -1,
		arrival: d.n.Arrived, tenant: d.fair.Tenant(r.Tenant), stream: r.Stream, tried: e.tried[:0], marks: e.marks[:0],
		arrived: d.now,
	}
	if e.gen == 0 {
		e.gen = 1
	}
	if r.Arrived != 0 && r.Arrived < d.now {
		e.arrived = r.Arrived
	}
	e.prompt, e.blockTokens = d.learned.size(r, d.o.BlockBytes)
	return i
}

// forget ends an entry. It is in no list and charged nowhere.
func (d *Dispatch) forget(i int32) {
	e := &d.entries[i]
	e.req, e.state, e.pins, e.peer = nil, stateFree, prefix.Ref{}, 0
	e.next = d.freeHead
	d.freeHead = i
}

// heldFor returns how long the entry waited in the router until now.
func (e *entry) heldFor(now fleet.Time) fleet.Time {
	h := e.held
	if e.state == stateQueued || e.state == stateLimbo {
		h += now - e.heldAt
	}
	return h
}

// The heap of deadlines of held entries, earliest first, arrival order among
// equals.

func (d *Dispatch) before(a, b int32) bool {
	x, y := &d.entries[a], &d.entries[b]
	if x.deadline != y.deadline {
		return x.deadline < y.deadline
	}
	return x.arrival < y.arrival
}

func (d *Dispatch) place(k int, i int32) {
	d.due[k] = i
	d.entries[i].heap = int32(k)
}

func (d *Dispatch) heapUp(k int) {
	for k > 0 {
		p := (k - 1) / 2
		if !d.before(d.due[k], d.due[p]) {
			return
		}
		a, b := d.due[k], d.due[p]
		d.place(p, a)
		d.place(k, b)
		k = p
	}
}

func (d *Dispatch) heapDown(k int) {
	for {
		c := 2*k + 1
		if c >= len(d.due) {
			return
		}
		if c+1 < len(d.due) && d.before(d.due[c+1], d.due[c]) {
			c++
		}
		if !d.before(d.due[c], d.due[k]) {
			return
		}
		a, b := d.due[k], d.due[c]
		d.place(c, a)
		d.place(k, b)
		k = c
	}
}

// watch puts an entry's deadline on the heap.
func (d *Dispatch) watch(i int32) {
	if d.entries[i].deadline == fleet.Never {
		return
	}
	d.due = append(d.due, i)
	d.entries[i].heap = int32(len(d.due) - 1)
	d.heapUp(len(d.due) - 1)
}

// unwatch takes an entry off the heap.
func (d *Dispatch) unwatch(i int32) {
	k := int(d.entries[i].heap)
	if k < 0 {
		return
	}
	d.entries[i].heap = -1
	last := len(d.due) - 1
	moved := d.due[last]
	d.due = d.due[:last]
	if k == last {
		return
	}
	d.place(k, moved)
	d.heapDown(k)
	d.heapUp(int(d.entries[moved].heap))
}
