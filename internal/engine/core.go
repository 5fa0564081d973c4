// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Seq is one request as the scheduler sees it.
type Seq struct {
	ID uint64 // unique among the sequences in flight
	// Blocks are chained hashes of whole blocks of Profile.BlockTokens tokens: equal
	// hashes mean equal prompts up to there, so adapter and cache salt belong into
	// the first one. There may be fewer than the prompt has (the rest is never
	// reused) or more: those beyond the prompt name the blocks that the output fills.
	// The core keeps the slice; callers do not change it afterwards.
	Blocks       []uint64
	PromptTokens int    // at least 1
	OutputTokens int    // tokens until the sequence ends by itself; at least 1
	Adapter      string // LoRA adapter; "" for the base model
	// Known prompt tokens count as cached whatever the cache holds, for replays of
	// measurements that tell the hit and not the prompt. Usually 0.
	Known int
}

// EventKind says what happened to a sequence.
type EventKind uint8

// Kinds of events. EventAdmitted comes once for each time that a sequence enters
// the batch, so again after a preemption.
const (
	EventAdmitted   EventKind = iota
	EventFirstToken           // the prompt is computed and one token produced
	EventToken                // a later token; only with CoreOptions.Tokens
	EventFinished
	EventPreempted // blocks taken away; it waits again and is computed anew
	EventRejected  // can never fit, or lost by Reset
)

var eventNames = [...]string{"admitted", "first_token", "token", "finished", "preempted", "rejected"}

func (k EventKind) String() string {
	if int(k) >= len(eventNames) {
		return "unknown"
	}
	return eventNames[k]
}

// Event is one thing that happened to a sequence.
type Event struct {
	Kind   EventKind
	Seq    uint64
	At     fleet.Time
	Cached int // prompt tokens that were found in the cache at the first admission
	Output int // tokens produced so far
}

// CoreOptions change what a Core tells, never what it does.
type CoreOptions struct {
	Tokens      bool // an EventToken per token; steps are then not skipped
	BlockEvents bool // keep BlockChanges for TakeBlockChanges
}

// Core is the scheduler of one engine replica as a state machine. Time enters only
// through its methods and must not go back. It is not safe for concurrent use.
//
// A caller calls Advance whenever Next has come, and before it submits or cancels
// something later than Next; a Core whose caller is late catches up by itself and
// returns the events with the next Advance.
type Core struct {
	p    Profile
	o    CoreOptions
	base int64 // ticks a step
	dSeq int64 // ticks a decoding sequence
	dCtx int64 // ticks a context token

	slots []slot
	free  int32
	ids   table

	waiting list
	running list // in the order of admission
	kv      kvPool
	lora    loraSlots

	steps    int64   // decode steps since the start; the clock of all that decodes
	decoding int     // sequences that get a token each step
	ctx      int64   // tokens they hold
	ring     []int32 // decoding sequences by (tokens - steps) mod BlockTokens
	finish   []finishEntry
	order    int64 // admissions

	cur     step
	inStep  bool  // the step in progress has taken its decode blocks
	partial int32 // sequence whose prompt is computed in part; -1 none
	done    []int32
	wake    fleet.Time // when an idle core starts its next step
	backlog []Event
	n       counters
}

type slotState uint8

const (
	slotFree slotState = iota
	slotWaiting
	slotPrefill
	slotDecode
)

type slot struct {
	seq      Seq
	state    slotState
	admitted bool // at least once
	adapter  int32
	tip      int32 // deepest named KV block, -1 none
	named    int32 // named blocks held, a prefix of seq.Blocks
	anon     int32 // further blocks held
	computed int32 // tokens whose KV exists, while in prefill
	target   int32 // tokens to compute before the next token comes out
	cached   int32 // hit at the first admission, tokens
	output   int32 // tokens produced when start was set
	start    int64 // value of steps at that moment
	order    int64
	heap     int32 // place in Core.finish, -1 none
	prev     int32
	next     int32
}

// list is a doubly linked list of slots.
type list struct {
	head, tail int32
	n          int
}

type counters struct {
	queries, hits, prompt, output               int64
	preempted, finished, cancelled, rejected    int64
	engineSteps, waitingTokens, prefilledTokens int64
	busy                                        int64 // ticks
	// what finished steps did, in the units of the five coefficients
	prompts, decodes, context int64
	pairs                     float64
}

// ticksPerNS is the resolution of step times. Integer ticks make a jump over many
// steps end at exactly the same nanosecond as the steps one by one.
const ticksPerNS = 1024

func ticks(seconds float64) int64 { return int64(math.Round(seconds * 1e9 * ticksPerNS)) }

// NewCore returns an idle replica with a cold cache. The profile must be valid in
// its numbers (Validate may still refuse it for its ceilings).
func NewCore(p Profile, o CoreOptions) *Core {
	c := &Core{p: p, o: o, base: ticks(p.Base), dSeq: ticks(p.DSeq), dCtx: ticks(p.DCtx)}
	c.ring = make([]int32, max(1, p.BlockTokens))
	c.clear()
	return c
}

func (c *Core) clear() {
	c.slots, c.free = c.slots[:0], -1
	c.ids.reset()
	c.waiting, c.running = list{-1, -1, 0}, list{-1, -1, 0}
	c.kv.init(c.p.Blocks(), c.o.BlockEvents)
	c.lora.init(c.p.LoRASlots)
	c.decoding, c.ctx = 0, 0
	clear(c.ring)
	c.finish, c.done = c.finish[:0], c.done[:0]
	c.cur, c.inStep, c.partial, c.wake = step{}, false, -1, fleet.Never
	c.n = counters{}
}

// Profile returns the profile that the replica was made with.
func (c *Core) Profile() *Profile { return &c.p }

// Submit hands over a sequence; it waits until a step admits it. It returns false,
// and does nothing, where a sequence of that ID is in flight. A sequence that does
// not fit into the whole KV cache comes back as EventRejected.
func (c *Core) Submit(now fleet.Time, s Seq) bool {
	c.catchUp(now)
	if _, ok := c.ids.get(s.ID); ok {
		return false
	}
	s.PromptTokens, s.OutputTokens = max(1, s.PromptTokens), max(1, s.OutputTokens)
	if c.blocksFor(s.PromptTokens+s.OutputTokens) > c.kv.total || (s.Adapter != "" && c.p.LoRASlots == 0) {
		c.n.rejected++
		c.backlog = append(c.backlog, Event{Kind: EventRejected, Seq: s.ID, At: now})
		return true
	}
	id := c.newSlot()
	c.slots[id] = slot{seq: s, state: slotWaiting, adapter: c.lora.id(s.Adapter), tip: -1, target: int32(s.PromptTokens), heap: -1}
	c.ids.put(s.ID, id)
	c.wait(id, false)
	switch {
	case !c.cur.busy:
		c.wake = min(c.wake, now)
	case c.running.n < c.p.MaxSeqs && (c.waiting.n == 1 || c.lora.waiting > 0):
		c.cut(now) // the next step may admit it
	}
	return true
}

// Cancel removes a sequence at once, wherever it is, and frees its blocks. It
// returns false where no sequence of that ID is in flight.
func (c *Core) Cancel(now fleet.Time, id uint64) bool {
	c.catchUp(now)
	i, ok := c.ids.get(id)
	if !ok {
		return false
	}
	c.cut(now)
	c.n.cancelled++
	c.drop(i)
	return true
}

// Reset restarts the replica in place: cold cache, counters at zero. Sequences in
// flight are lost and come back as EventRejected with the next Advance.
func (c *Core) Reset(now fleet.Time) {
	c.catchUp(now)
	for _, l := range []list{c.running, c.waiting} {
		for i := l.head; i >= 0; i = c.slots[i].next {
			c.backlog = append(c.backlog, Event{Kind: EventRejected, Seq: c.slots[i].seq.ID, At: now})
		}
	}
	if c.o.BlockEvents {
		c.kv.changes = append(c.kv.changes, BlockChange{Kind: BlocksCleared})
	}
	c.clear()
}

// Next is when Advance has something to do; fleet.Never when the replica is idle.
func (c *Core) Next() fleet.Time {
	switch {
	case len(c.backlog) > 0:
		return c.backlog[0].At
	case c.cur.busy:
		return c.cur.end
	default:
		return c.wake
	}
}

// StepEnd is when the step that runs at now ends, which is when each decoding
// sequence has its next token; fleet.Never when the replica is idle.
func (c *Core) StepEnd(now fleet.Time) fleet.Time {
	if !c.cur.busy {
		return c.wake
	}
	return c.cur.at(c.cur.stepsBy(now) + 1)
}

// Advance runs up to and including now and appends what happened to out. It does
// not allocate once out and the core's own memory have grown.
func (c *Core) Advance(now fleet.Time, out []Event) []Event {
	if len(c.backlog) > 0 {
		out = append(out, c.backlog...)
		c.backlog = c.backlog[:0]
	}
	return c.run(now, out)
}

func (c *Core) catchUp(now fleet.Time) {
	if !c.cur.busy && c.wake < now || c.cur.busy && c.cur.end < now {
		c.backlog = c.run(now-1, c.backlog)
	}
}

// Generated returns how many output tokens the sequence has at now; 0 where it is
// not in flight.
func (c *Core) Generated(now fleet.Time, id uint64) int {
	return c.GeneratedAt(now, c.Place(id))
}

// Place returns where the core keeps a sequence until it ends; -1 where it is not in
// flight.
func (c *Core) Place(id uint64) int32 {
	i, _ := c.ids.get(id)
	return i
}

// GeneratedAt is Generated for the sequence in flight at a Place; 0 at -1.
func (c *Core) GeneratedAt(now fleet.Time, place int32) int {
	if place < 0 {
		return 0
	}
	s := &c.slots[place]
	if s.state != slotDecode {
		return int(s.output)
	}
	n := int64(s.output) + c.steps - s.start
	if c.cur.busy {
		n += c.cur.stepsBy(now)
	}
	return int(min(n, int64(s.seq.OutputTokens)))
}

// TakeBlockChanges appends the changes of named KV blocks since the last call to
// out. Empty unless CoreOptions.BlockEvents is set.
func (c *Core) TakeBlockChanges(out []BlockChange) []BlockChange {
	out = append(out, c.kv.changes...)
	clear(c.kv.changes)
	c.kv.changes = c.kv.changes[:0]
	return out
}

func (c *Core) blocksFor(tokens int) int { return (tokens + c.p.BlockTokens - 1) / c.p.BlockTokens }

func (c *Core) newSlot() int32 {
	if c.free < 0 {
		c.slots = append(c.slots, slot{})
		return int32(len(c.slots) - 1)
	}
	id := c.free
	c.free = c.slots[id].next
	return id
}

// wait puts a slot into the waiting list: at its end, or in front when it was
// preempted.
func (c *Core) wait(id int32, front bool) {
	s := &c.slots[id]
	s.state = slotWaiting
	c.n.waitingTokens += int64(s.target)
	c.lora.wait(s.adapter, 1)
	c.link(&c.waiting, id, front)
}

func (c *Core) link(l *list, id int32, front bool) {
	s := &c.slots[id]
	l.n++
	switch {
	case l.n == 1:
		s.prev, s.next, l.head, l.tail = -1, -1, id, id
	case front:
		s.prev, s.next = -1, l.head
		c.slots[l.head].prev, l.head = id, id
	default:
		s.prev, s.next = l.tail, -1
		c.slots[l.tail].next, l.tail = id, id
	}
}

func (c *Core) unlink(l *list, id int32) {
	s := &c.slots[id]
	l.n--
	if s.prev < 0 {
		l.head = s.next
	} else {
		c.slots[s.prev].next = s.next
	}
	if s.next < 0 {
		l.tail = s.prev
	} else {
		c.slots[s.next].prev = s.prev
	}
}
