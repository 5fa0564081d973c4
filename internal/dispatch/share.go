// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Order in the router's queue does not protect tenants from one that floods: what
// was sent to the replicas before they come has their steps, their memory and their
// caches, and is not taken back. So while others are active, a tenant that is over
// its share keeps to some of the replicas, goes last everywhere, and leaves the
// memory that the others lately had. It still gets its fair share of the work and of the
// memory, the scarcer of the two (A. Ghodsi and others, Dominant resource fairness, NSDI
// 2011): a burst that was taken for a flood is over soon, and nobody starves on replicas
// that idle.
const (
	// overFactor is how many times the demand per weight of every other tenant, the
	// work that waits included, makes one that is over its share. Natural bursts of
	// equal tenants stay below.
	overFactor = 3
	// overShare is the part of its fair share of the capacity that it must ask for
	// in addition: on an idle fleet nobody is over.
	overShare = 0.7
	// demandSeconds is the memory of what tenants ask for, or the time of
	// demandRequests where that is shorter, leastDemand at least; servedSeconds is that
	// of what replicas did.
	demandSeconds  = 30
	demandRequests = 400
	leastDemand    = 0.5
	servedSeconds  = 30
	// tightMemory is the part of the pool's KV memory in use from which nothing need
	// be held yet for a tenant to be over its share: where answers are long, memory
	// fills for minutes before anybody waits, and then stays full.
	tightMemory = 0.5
	// overEnds is after how many seconds without anything held, and with memory that is
	// not tight, it is over.
	overEnds = 5
	// judgeEvery is how often shares are looked at.
	judgeEvery = 0.25
	// capacityHalf is the half-life of the most that the pool was seen to serve.
	capacityHalf = 600
	// othersLoad is the load, of what replicas carry, up to which those kept for the
	// others are to be used: beyond it waiting times rise fast.
	othersLoad = 0.55
	// peakReserve times the most memory that the others had at a replica in about
	// peakSeconds is left free there.
	peakReserve = 1.3
	peakSeconds = 60
	// leastActive is the demand, as a part of what the pool can do, from which a tenant
	// counts as active.
	leastActive = 0.001
)

// tenantLoad is what one tenant asks for and gets, in seconds of work.
type tenantLoad struct {
	asked, served decayed
	queued        int32
	work, tokens  float64 // of what is queued: prefill, and prompts
}

// decayed is a sum that forgets.
type decayed struct {
	v  float64
	at fleet.Time
}

func (s *decayed) value(now fleet.Time, memory float64) float64 {
	return s.v * math.Exp(-now.Seconds(s.at)/memory)
}

func (s *decayed) add(now fleet.Time, v, memory float64) {
	s.v, s.at = s.value(now, memory)+v, now
}

// peak is the highest of a value, forgotten slowly.
type peak struct{ decayed }

func (p *peak) raise(now fleet.Time, v float64) {
	p.v, p.at = max(v, p.value(now, peakSeconds)), now
}

// shares says which tenant is over its share, if any, and where it may go.
type shares struct {
	tenants  []tenantLoad // by number
	over     int32        // -1: none
	since    fleet.Time
	idle     fleet.Time // when it last had something held, or memory was tight
	next     fleet.Time // when shares are looked at again
	capacity float64    // the most work a second that the pool was seen to serve
	memory   float64    // seconds for which demand is remembered; 0: demandSeconds
	part     float64    // fair share of the tenant over its share among those that are active
	tokens   float64    // KV memory of the pool
	overKV   float64    // of it, what that tenant holds, answers included
	arrived  uint64     // requests that had come by counted
	counted  fleet.Time
	places   int    // replicas that the tenant may use
	allowed  []bool // by slot
}

// slotShare is what the requests at a slot weigh by tenant.
type slotShare struct {
	served     decayed
	over       int32   // requests of the tenant over its share
	overKV     float64 // tokens, answers included
	othersKV   float64
	othersMost peak
}

// tenant makes room for a tenant's number.
func (x *shares) tenant(t int32) *tenantLoad {
	for int(t) >= len(x.tenants) {
		x.tenants = append(x.tenants, tenantLoad{})
	}
	return &x.tenants[t]
}

// isOver reports whether an entry's tenant is over its share.
func (d *Dispatch) isOver(e *entry) bool {
	return d.shares.over >= 0 && e.tenant == d.shares.over && e.peer == 0
}

// demand notes what a new entry asks for.
func (d *Dispatch) demand(e *entry) {
	d.shares.tenant(e.tenant).asked.add(d.now, e.work+d.decodeWork(e), d.shares.remembers())
}

// decodeWork is what an answer adds to the decode steps that it takes part in.
func (d *Dispatch) decodeWork(e *entry) float64 {
	l := &d.learned
	return l.output.v * (l.coef.DSeq + l.coef.DCtx*e.prompt)
}

// countServed charges a tenant and a slot with an entry that was sent.
func (d *Dispatch) countServed(e *entry) {
	w := e.estimate + d.decodeWork(e)
	d.fair.Serve(e.tenant, w)
	d.shares.tenant(e.tenant).served.add(d.now, w, servedSeconds)
	a := &d.aux[e.slot].share
	a.served.add(d.now, w, servedSeconds)
	e.kv = e.prompt + d.learned.output.v
	d.weigh(e, d.isOver(e))
}

// weigh books an entry at its slot, as one of the tenant over its share or not.
func (d *Dispatch) weigh(e *entry, over bool) {
	a := &d.aux[e.slot].share
	e.over = over
	if over {
		a.over++
		a.overKV += e.kv
		d.shares.overKV += e.kv
		d.slots[e.slot].Yielding++
		return
	}
	a.othersKV += e.kv
	a.othersMost.raise(d.now, a.othersKV)
}

// unweigh takes that back.
func (d *Dispatch) unweigh(e *entry) {
	a := &d.aux[e.slot].share
	if e.over {
		a.over--
		a.overKV -= e.kv
		d.shares.overKV -= e.kv
		d.slots[e.slot].Yielding--
		e.over = false
		return
	}
	a.othersKV = max(0, a.othersKV-e.kv)
}

// remembers is for how many seconds demand is remembered.
func (x *shares) remembers() float64 {
	if x.memory == 0 {
		return demandSeconds
	}
	return x.memory
}

// adapt follows the rate of requests: where there are many, a flood shows soon.
func (x *shares) adapt(now fleet.Time, arrived uint64) {
	n, s := float64(arrived-x.arrived), now.Seconds(x.counted)
	if x.counted != 0 {
		if n < demandRequests/4 && s < demandSeconds {
			return
		}
		x.memory = max(leastDemand, min(demandSeconds, demandRequests*s/max(1, n)))
	}
	x.arrived, x.counted = arrived, now
}

// heldWork is the work, decode included, of what a tenant has held, in seconds.
func (d *Dispatch) heldWork(u *tenantLoad) float64 {
	l := &d.learned
	return u.work + l.output.v*(l.coef.DSeq*float64(u.queued)+l.coef.DCtx*u.tokens)
}

// memoryUsed is the part of the pool's KV memory that requests in flight hold, and all
// of that memory in tokens.
func (d *Dispatch) memoryUsed() (part, all float64) {
	used := 0.0
	for i := range d.slots {
		if s := &d.slots[i]; s.Drop == route.DropNone && s.KVTokens > 0 {
			used += float64(s.PinnedBlocks)*d.learned.blockTokens + s.TailTokens + s.Generated
			all += s.KVTokens * s.KVLimit
		}
	}
	return used / max(1, all), all
}

// judgeShares looks which tenant is over its share.
func (d *Dispatch) judgeShares() {
	x := &d.shares
	if !d.queues || d.now < x.next || len(x.tenants) < 2 {
		return
	}
	x.next = d.now.AddSeconds(judgeEvery)
	x.adapt(d.now, d.n.Arrived)
	memory := x.remembers()
	first, most, second := int32(-1), 0.0, 0.0
	total := 0.0
	for t := range x.tenants {
		u := &x.tenants[t]
		v := (u.asked.value(d.now, memory) + d.heldWork(u)) / d.fair.Weight(int32(t))
		total += u.served.value(d.now, servedSeconds) / servedSeconds
		if v > most {
			first, most, second = int32(t), v, most
		} else {
			second = max(second, v)
		}
	}
	x.capacity = max(total, x.capacity*math.Exp2(-judgeEvery/capacityHalf))
	used, tokens := d.memoryUsed()
	x.tokens = tokens
	least := leastActive * x.capacity * memory
	if second <= least {
		d.setOver(-1)
		return
	}
	if x.over >= 0 {
		if first == x.over && (x.tenants[first].queued > 0 || used > tightMemory) {
			x.idle = d.now
		}
		if d.now.Seconds(x.idle) > overEnds {
			d.setOver(-1)
			return
		}
	} else {
		// most is by weight, and so is what it is compared with.
		if most < overFactor*second || most/memory < overShare*x.capacity*d.fairPart(first)/d.fair.Weight(first) ||
			x.tenants[first].queued == 0 && used <= tightMemory {
			return
		}
		d.setOver(first)
	}
	x.part = d.fairPart(x.over)
	own := x.tenants[x.over].served.value(d.now, servedSeconds) / servedSeconds
	d.setPlaces(d.placesFor(total - own))
}

// fairPart is a tenant's part of the weights of those that are active, itself included.
func (d *Dispatch) fairPart(t int32) float64 {
	x := &d.shares
	memory, weights := x.remembers(), d.fair.Weight(t)
	for i := range x.tenants {
		u := &x.tenants[i]
		if int32(i) != t && (u.queued > 0 || u.asked.value(d.now, memory) > leastActive*x.capacity*memory) {
			weights += d.fair.Weight(int32(i))
		}
	}
	return d.fair.Weight(t) / weights
}

// underServed reports whether the tenant over its share gets less than its fair share of
// the work that the pool can do, and holds no more than that of its memory.
func (d *Dispatch) underServed() bool {
	x := &d.shares
	own := x.tenants[x.over].served.value(d.now, servedSeconds) / servedSeconds
	// Where no replica tells its memory, the work alone says it.
	return own < x.part*x.capacity && (x.tokens == 0 || x.overKV <= x.part*x.tokens)
}

// setOver makes a tenant the one over its share; -1 none.
func (d *Dispatch) setOver(t int32) {
	x := &d.shares
	if t == x.over {
		return
	}
	x.over, x.since, x.idle, x.places = t, d.now, d.now, 0
	for i := range d.entries {
		e := &d.entries[i]
		if e.state == stateQueued && d.isOver(e) {
			e.judged = false // how long it waits now says nothing of the order
		}
		if e.peer == 0 && (e.state == stateSent || e.state == stateStream) && e.over != (t >= 0 && e.tenant == t) {
			d.unweigh(e)
			d.weigh(e, t >= 0 && e.tenant == t)
		}
	}
	for i := range d.slots {
		// What the others had while nobody told them apart says nothing.
		a := &d.aux[i].share
		a.othersMost = peak{decayed{a.othersKV, d.now}}
		d.show(int32(i))
	}
	if t >= 0 {
		d.n.OverShare++
	}
}

// placesFor returns how many replicas are left for the tenant over its share where
// the others are served others seconds of work a second.
func (d *Dispatch) placesFor(others float64) int {
	carried, n := 0.0, 0
	for i := range d.aux {
		if d.aux[i].used && (d.shares.places == 0 || i < len(d.shares.allowed) && d.shares.allowed[i]) {
			// Those that it may use are never idle: what they do is what a replica can.
			carried += d.aux[i].share.served.value(d.now, servedSeconds) / servedSeconds
			n++
		}
	}
	if carried <= 0 {
		return max(1, d.ready)
	}
	each := max(carried/float64(n), d.shares.capacity/float64(max(1, d.ready)))
	need := others / each / othersLoad
	fair := int(math.Ceil(d.shares.part*float64(d.ready) - 0.01))
	return min(max(d.ready-int(math.Ceil(need)), fair, 1), max(1, d.ready))
}

// setPlaces chooses the replicas for the tenant over its share, the same ones in
// every router, and moves there what it has waiting elsewhere.
func (d *Dispatch) setPlaces(n int) {
	x := &d.shares
	if n == x.places && len(x.allowed) == len(d.slots) && d.placesHold() {
		return
	}
	x.places = n
	order := make([]int32, 0, len(d.slots))
	for i := range d.slots {
		if d.aux[i].used && d.slots[i].Drop == route.DropNone {
			order = append(order, int32(i))
		}
	}
	slices.SortFunc(order, func(a, b int32) int {
		const salt = 0x7368617265
		return cmp.Compare(route.Mix(salt, d.slots[b].Key), route.Mix(salt, d.slots[a].Key))
	})
	x.allowed = make([]bool, len(d.slots))
	for _, i := range order[:min(n, len(order))] {
		x.allowed[i] = true
	}
	var move []int32
	for i := range d.slots {
		if x.allowed[i] {
			continue
		}
		for _, l := range d.aux[i].queue.lines {
			if l.tenant == x.over {
				move = d.entriesOf(l, move)
			}
		}
	}
	dec := d.lend()
	for _, i := range move {
		to := d.entries[i].slot
		d.dequeue(i)
		if d.ask(i, dec, true) > 0 {
			to = dec.Chosen
			d.entries[i].work = d.workAt(&d.entries[i], to, float64(dec.Pick().Uncached))
		}
		d.enqueue(i, to)
	}
	d.lent--
}

// placesHold reports whether all places of the tenant over its share still take requests.
func (d *Dispatch) placesHold() bool {
	for i, allowed := range d.shares.allowed {
		if allowed && (!d.aux[i].used || d.slots[i].Drop != route.DropNone) {
			return false
		}
	}
	return true
}

// entriesOf appends the entries of a line to out.
func (d *Dispatch) entriesOf(l *line, out []int32) []int32 {
	for b := range l.bucket {
		for i := l.bucket[b].head; i >= 0; i = d.entries[i].next {
			out = append(out, i)
		}
	}
	return out
}

// kept reports whether a slot is kept for tenants other than the entry's.
func (d *Dispatch) kept(e *entry, slot int32) bool {
	x := &d.shares
	return d.isOver(e) && x.places > 0 && int(slot) < len(x.allowed) && !x.allowed[slot]
}

// crowds reports whether an entry of the tenant over its share would take at a slot
// what others are about to need: the next step, or the memory that they lately had. What
// it is owed itself crowds nobody.
func (d *Dispatch) crowds(e *entry, slot int32) bool {
	if !d.isOver(e) || d.underServed() {
		return false
	}
	s, a := &d.slots[slot], &d.aux[slot].share
	if s.Unstarted > 0 {
		return true
	}
	need := e.prompt + d.learned.output.v
	most := a.othersMost.value(d.now, peakSeconds)
	return a.over > 0 && s.KVTokens > 0 && a.overKV+need > s.KVTokens*s.KVLimit-peakReserve*most
}

// boundFor is how long an entry may be held, in seconds: MaxHold times what first come
// first served would have cost and a second, and where HoldMost is set no more than that
// on top, or MostTimes the cost where that is more. For a tenant over its share it is what
// first come first served would cost within its share.
func (d *Dispatch) boundFor(e *entry) float64 {
	fcfs := e.fcfs
	if d.isOver(e) {
		part := d.fairPart(e.tenant)
		u := &d.shares.tenants[e.tenant]
		fcfs = max(fcfs, u.work/(part*float64(max(1, d.ready))))
		if c := d.shares.capacity; c > 0 {
			fcfs = max(fcfs, d.heldWork(u)/(part*c))
		}
	}
	bound := d.o.MaxHold*fcfs + HoldPlus
	if most := d.holdMost(); most > 0 {
		bound = min(bound, max(MostTimes*fcfs, fcfs+most.Seconds()))
	}
	return bound
}

// holdMost is the bound on a wait in time; 0: there is none. What tenants share is
// shared by waiting.
func (d *Dispatch) holdMost() time.Duration {
	if len(d.shares.tenants) > 1 {
		return 0
	}
	return d.o.HoldMost
}

// OverShare says which tenant is over its share, and what it is left.
type OverShare struct {
	Tenant string
	Since  fleet.Time
	Places int     // replicas that it may use
	Part   float64 // of work and memory, which it gets all the same, 0..1
	Held   int     // requests of it that wait here
}

// OverShare returns the tenant that is over its share at present; false where none is.
func (d *Dispatch) OverShare() (OverShare, bool) {
	x := &d.shares
	if x.over < 0 {
		return OverShare{}, false
	}
	return OverShare{d.fair.Name(x.over), x.since, x.places, x.part, int(x.tenants[x.over].queued)}, true
}
