// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sort"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/route"
)

// Dispatch is one pool. Not safe for concurrent use.
type Dispatch struct {
	o      Options
	policy route.Policy
	queues bool // the router's own queue is on: asked for, seen by the policy, and not found to harm
	guards guards
	index  Index
	fair   admit.Fair
	snap   *fleet.Snapshot
	fitted [keptFits]fit
	// nextFit is the one that is written over next, modulo keptFits.
	nextFit int
	now     fleet.Time

	names map[string]int32 // endpoint ID, or name of a rank -> slot, while the slot is in use
	homes map[string]*home // endpoints with several ranks; nil: there never was one
	split bool             // there was one
	slots []route.Slot
	aux   []slot
	free  []int32
	ready int // slots that take requests

	entries  []entry
	freeHead int32
	limbo    list // entries that wait for a ready replica, first come first
	hold     Hold
	due      []int32
	silent   int // entries without a first token whose answer does not stream
	queued   int // entries in the slots' queues

	shares  shares
	leaders map[uint64]int32 // held entries that others may follow, by key
	learned learned
	middle  float64   // speed of the median endpoint against the pool's coefficients
	ratios  []float64 // scratch of findMiddle
	samples int
	in      route.Input // reused by every pick
	drops   []route.Drop
	hits    []int32
	pinned  []int32
	cold    []bool
	joined  []bool // by slot, for the entry that is asked about: see joins
	prices  bool   // the policy looks at the queue, and at who joins whom

	adapterWait []float64
	holders     map[string]int32 // slots that an adapter is believed at, by name
	rents       rents

	shadow    route.Policy // decides without effect; nil: none
	shadowDec route.Decision
	shadowed  ShadowStats
	notes     []Note // for other routers, not yet taken
	sessions  sessions
	blind     blindness
	rank      int // of this router among those that share the traffic
	routers   int
	peers     []peer  // other routers, by number
	roomAt    []int32 // slots where notes made room and more notes follow
	heldThere int     // entries that wait in other routers' queues
	coldThere int     // requests that other routers hold for any replica

	spare     []*line           // empty lines of queues
	scratch   route.Candidate   // of priceAt
	decisions []*route.Decision // lent out by the current call
	lent      int
	n         Totals
}

// slot is what the dispatch keeps of an endpoint beside its route.Slot.
type slot struct {
	used    bool
	life    uint32  // counts the processes behind the endpoint
	gone    bool    // left the snapshot; freed when its last request ended
	fifo    list    // requests without a first token, oldest first
	shares  float64 // sum of their shares, seconds
	queue   queue
	lost    lost
	scrape  scrapeState
	breaker breaker
	speed   speed
	share   slotShare
	overlap overlap
	lora    []adapterUse // adapters sent there, most recent first
	denied  []denial     // adapters that it said it does not have
	quiet   int32        // requests of our own in flight there whose answer does not stream
	peers   int32        // requests of other routers in flight there
	theirs  *peerQueue   // what other routers hold for it; nil: never any
	url     string
	several bool  // the endpoint is one candidate and tells of several ranks
	home    *home // nil: the endpoint is one candidate
	rank    int32 // at home

	sent, failed, leaked, restarts uint64
	predicted, observed            int64 // cached tokens
	inFlightAt                     history
}

// New returns an empty pool: nothing can be sent before the first Observe.
func New(o Options) *Dispatch {
	if o.Policy == nil {
		o.Policy = route.Penstock()
	}
	if o.MaxHold <= 0 {
		o.MaxHold = DefaultMaxHold
	}
	if o.BlockBytes <= 0 {
		o.BlockBytes = prefix.DefaultBlockBytes
	}
	if o.IndexBytes <= 0 {
		o.IndexBytes = 256 << 20
	}
	d := &Dispatch{o: o, index: o.Index, names: map[string]int32{}, freeHead: -1, limbo: emptyList, middle: 1}
	if d.index == nil {
		d.index = prefix.NewIndex(prefix.Options{MaxBytes: o.IndexBytes, Events: o.Events})
	}
	p := o.Profile
	if p.Base == 0 && p.PTok == 0 {
		p, _ = engine.Lookup(engine.DefaultProfile)
		// Times are a start to learn from; sizes would be a guess.
		p.KVTokens, p.MaxSeqs = 0, 0
		d.o.Profile = p
	}
	d.hold.For = o.HoldFor
	d.learned.init(&d.o)
	d.shares.over = -1
	names := make([]string, 0, len(o.Weights))
	for n := range o.Weights {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		d.fair.SetWeight(n, o.Weights[n])
	}
	d.SetPolicy(o.Policy)
	return d
}

// SetPolicy changes the policy. What is in flight stays; what the queue holds stays
// held and is sent in its turn.
func (d *Dispatch) SetPolicy(p route.Policy) {
	d.policy = p
	d.setQueues()
	d.n.Policy = p.Name()
}

// setQueues turns the queue on where it is asked for, the policy sees it and it was
// not found to harm.
func (d *Dispatch) setQueues() {
	aware, ok := d.policy.(route.QueueAware)
	d.prices = ok && aware.SeesQueue()
	d.queues = d.o.Queue && d.prices && !d.guards.of[GuardQueue].off
}

// Policy returns the name of the policy in use.
func (d *Dispatch) Policy() string { return d.policy.Name() }

// Snapshot returns the last snapshot; nil before the first.
func (d *Dispatch) Snapshot() *fleet.Snapshot { return d.snap }

// begin starts a call at now: decisions lent out by the last one are taken back.
func (d *Dispatch) begin(now fleet.Time) {
	d.now = max(d.now, now)
	d.lent = 0
	if d.silent > 0 {
		d.settle(d.now)
	}
	d.judgeShares()
	d.reviveGuards()
}

// lend returns a decision that stays valid until the next call.
func (d *Dispatch) lend() *route.Decision {
	if d.lent == len(d.decisions) {
		d.decisions = append(d.decisions, &route.Decision{})
	}
	d.lent++
	return d.decisions[d.lent-1]
}

// addSlot takes a slot for an endpoint that is new.
func (d *Dispatch) addSlot(id string) int32 {
	var i int32
	if n := len(d.free); n > 0 {
		i, d.free = d.free[n-1], d.free[:n-1]
	} else {
		i = int32(len(d.slots))
		d.slots = append(d.slots, route.Slot{})
		d.aux = append(d.aux, slot{})
		d.drops = append(d.drops, 0)
		d.hits = append(d.hits, 0)
		d.pinned = append(d.pinned, 0)
		d.cold = append(d.cold, false)
		d.joined = append(d.joined, false)
		d.adapterWait = append(d.adapterWait, 0)
	}
	d.slots[i] = route.Slot{ID: id, Key: xxh3.HashString(id), Speed: 1, KVLimit: 1, Drop: route.DropGone}
	d.aux[i] = slot{used: true, life: d.aux[i].life + 1, fifo: emptyList, queue: d.aux[i].queue, inFlightAt: emptyHistory}
	if int(i) < len(d.shares.allowed) {
		d.shares.allowed[i] = false // it was another endpoint's
	}
	d.names[id] = i
	d.index.Add(i, 0)
	return i
}

// freeSlot gives a slot back once its endpoint left and nothing is in flight there.
func (d *Dispatch) freeSlot(i int32) {
	a := &d.aux[i]
	if !a.used || !a.gone || d.slots[i].InFlight > 0 || a.queue.n > 0 || a.theirsAt() > 0 {
		return
	}
	delete(d.names, d.slots[i].ID)
	d.slots[i] = route.Slot{Drop: route.DropGone, Speed: 1, KVLimit: 1}
	a.used = false
	d.free = append(d.free, i)
}

// refresh copies what the index knows of a slot into the picker's view.
func (d *Dispatch) refresh(i int32) {
	s := &d.slots[i]
	s.PinnedBlocks = d.index.Pinned(i)
	s.CacheBlocks = d.index.Used(i)
	s.CacheCap = d.index.Capacity(i)
}
