// SPDX-License-Identifier: Apache-2.0

package route

import "github.com/penstock-project/penstock/internal/fleet"

// Slot is all that a picker may know of one endpoint: the router's own
// accounting, which is exact and fresh for what this router sent, and the last
// scrape, which may be old or absent. Slots are numbered from 0; a number is
// reused after its endpoint left and its last request ended.
type Slot struct {
	ID   string // endpoint ID
	Key  uint64 // hash of ID, the same in every router: rendezvous hashing
	Drop Drop   // why it takes no request whatever the request; DropNone: it may
	// State is the row of the last snapshot; nil when the endpoint left.
	State *fleet.EndpointState
	// Speed multiplies the time of every step: 1 is the pool's coefficients, 2 is
	// an endpoint that was observed to be half as fast. > 0.
	Speed float64

	// Requests in flight, from the moment of sending to the end.
	InFlight  int32 // all
	Unstarted int32 // without a first token
	Streams   int32 // with a first token
	// Foreign is load of others that the scrapes show beyond our own.
	ForeignStreams   float64
	ForeignUnstarted float64
	ForeignPending   float64 // seconds of prefill work of ForeignUnstarted

	// PendingSum is the sum of the estimates, in seconds, of the requests without
	// a first token; HeadEstimate is that of the oldest of them and HeadSince the
	// moment since when the engine can have worked on it. Pending combines them.
	PendingSum   float64
	HeadEstimate float64
	HeadSince    fleet.Time

	// QuietSince is the last sign of life of an endpoint that owes this router answers
	// which do not stream, or the moment since when it does; QuietMost, in seconds, is for
	// how long it may show nothing, 0: not known, or it owes none. See Overdue.
	QuietSince fleet.Time
	QuietMost  float64

	CtxTokens float64 // tokens of context of the streams, output included
	Generated float64 // output tokens of the streams
	// UncachedTokens sums, over the requests without a first token, the prompt
	// tokens that are expected to miss the cache.
	UncachedTokens float64

	PinnedBlocks int     // distinct index blocks of the requests in flight
	TailTokens   float64 // prompt tokens of the requests in flight that fill no whole block
	CacheBlocks  int     // blocks that the index believes cached there
	CacheCap     int     // blocks that it can hold at most
	KVTokens     float64 // KV memory in tokens; 0 unknown
	KVLimit      float64 // share of KVTokens that is usable without preemption, 0..1
	MaxSeqs      float64 // seats in the batch; 0 unknown

	// Part is the part of the endpoints that this one belongs to, from 0; see Input.Part.
	Part int32

	// Yielding counts the requests in flight of a tenant that is over its share:
	// nobody makes way for its streams.
	Yielding int32

	Queued       int32   // requests in the router's own queue for it
	QueuedWork   float64 // their work in seconds
	QueuedTokens float64 // their prompt tokens
	// QueuedLast are those among them of a tenant over its share, which goes last,
	// and QueuedLastTokens their prompt tokens.
	QueuedLast       int32
	QueuedLastTokens float64
}

// Pending returns the seconds of prefill work at the slot that still lie before a
// request that is sent now. The head counts as worked on for at most 0.9 of its
// estimate: what has not answered is never free. A head that is long overdue says
// that the endpoint stalls; then the time that it is late counts as well, and so does
// the time for which it has shown nothing at all.
func (s *Slot) Pending(now fleet.Time) float64 {
	quiet := s.Overdue(now)
	if s.Unstarted == 0 {
		return s.ForeignPending + quiet
	}
	worked := max(0, now.Seconds(s.HeadSince))
	p := s.PendingSum - 0.9*min(s.HeadEstimate, worked)
	late := worked - stallFactor*s.HeadEstimate - stallSeconds
	return s.ForeignPending + max(0, p) + max(0, late, quiet)
}

// Overdue returns for how many seconds longer than usual an endpoint that owes answers
// which do not stream has shown nothing: neither bytes of an answer, nor an answer to a
// probe or a scrape, since a long answer is no standstill.
func (s *Slot) Overdue(now fleet.Time) float64 {
	if s.QuietMost == 0 {
		return 0
	}
	since := s.QuietSince
	if s.State != nil {
		since = max(since, s.State.LifeAt, s.State.ScrapedAt)
	}
	return max(0, now.Seconds(since)-s.QuietMost)
}

// A request without a first token counts as stalled when it was worked on for
// stallFactor times its estimate and stallSeconds more.
const (
	stallFactor  = 4
	stallSeconds = 2
)

// QueueView is what a picker may know of the router's own queue. It is nil where
// the queue is off.
type QueueView interface {
	// Position returns, for a request of the given class and tenant whose work at
	// the slot is x seconds: the seconds of queued work there that would go before
	// it and the number of queued requests that would go after it.
	Position(slot int32, class uint8, tenant int32, x float64) (ahead float64, behind float64)
}

// Input is one question to a policy. Everything in it is read-only for the policy
// and valid until Pick returns.
type Input struct {
	Now     fleet.Time
	Request *fleet.Request
	// PromptTokens and BlockTokens are the request's, with the learned ratio
	// filled in where the request does not say.
	PromptTokens float64
	BlockTokens  float64
	// Tenant is the number of the request's tenant in this pool.
	Tenant int32
	// Last says that the tenant is over its share and goes last.
	Last bool

	Slots []Slot
	Drops []Drop  // per slot, for this request; DropNone: a candidate
	Hits  []int32 // per slot: leading blocks believed cached there
	// Pinned holds, per slot, the leading blocks that requests in flight there hold
	// already: placing the request pins no new memory for them. At most Hits.
	Pinned []int32
	// Credits holds, per slot, how many of the tokens that are missing there earlier
	// requests have paid for, in delay, for want of a copy. nil: none.
	Credits []float32
	// Joins says, per slot, that a prompt is about to be computed there of which this
	// request needs the beginning, and that both fit into one step. nil: nowhere.
	Joins []bool
	Queue QueueView // nil: the router's own queue is off
	// AdapterCold says, per slot, that the request's LoRA adapter would have to be
	// loaded there first. nil where the request names no adapter.
	AdapterCold []bool
	// AdapterWait is, per slot, what loading it there costs beside the load, in ms;
	// nil: nothing.
	AdapterWait []float64

	Engine  Coef
	Context Context

	// Blind is how many picks of other routers this one cannot know of yet, in the
	// mean, at most 1: routers that see the same fleet at the same moment must not
	// all choose the same replica.
	Blind float64
	// Part is the part of the endpoints that this router rather than its peers takes
	// where others cost about the same, of Parts, one a router; Parts 0: there are none.
	// With KinCold or KinWarm, picks of the same moment are often of requests that begin
	// alike: then the beginning says which part is taken, in each router the same. The
	// one is for requests of which less than half is cached anywhere, see Cold.
	Part, Parts      int32
	KinCold, KinWarm bool

	// Bare asks for the choice alone: nobody reads the candidates' terms and
	// scraped signals.
	Bare bool
	// Arrival numbers the arrivals of this router. It breaks ties between requests
	// that have nothing to share, neither blocks nor a session.
	Arrival uint64

	SnapshotVersion uint64
	SnapshotAt      fleet.Time
}

// Context are the moving averages that a price depends on beside the endpoint.
type Context struct {
	Pressure   float64 // requests expected to come, per request in service: rho/(1-rho), at most 32
	MeanOutput float64 // output tokens of a request; > 0
	OwnOutput  float64 // the same for this request: at most its max_tokens; > 0
	Exchange   float64 // worth of a second of E2E in seconds of TTFT, 0..1
	HitShare   float64 // share of prompt tokens found in caches, 0..1
	AdapterMS  float64 // load time of a LoRA adapter
	// Without are terms that count as zero: what a term is worth is measured by
	// leaving it out of the same code, and one that was found to harm is left out.
	Without Terms
}

// Policy picks an endpoint. Pick overwrites d, reusing its memory: no allocation
// once d's slices have grown. A policy may keep state (a counter, a random
// generator); it is called by one goroutine at a time, and its picks are a pure
// function of its seed and the calls so far.
type Policy interface {
	// Name is the name by which configuration and records know the policy.
	Name() string
	// Pick fills d: one candidate per slot in slot order, dropped ones included,
	// and Chosen, which is -1 when every slot was dropped.
	Pick(in *Input, d *Decision)
}

// Peeker is implemented by policies that keep state. Peek is Pick without leaving a
// trace in it; policies that do not implement it keep none.
type Peeker interface {
	Peek(in *Input, d *Decision)
}

// QueueAware is implemented by policies that look at the router's own queue. Behind
// a policy that does not, the queue stays off: held work that the picker does not
// see makes every picker worse.
type QueueAware interface {
	// SeesQueue reports whether Pick uses Input.Queue.
	SeesQueue() bool
}

// Cold reports whether less than half of a prompt of n blocks is cached where most of it
// is, which is hit blocks.
func Cold(hit int32, n int) bool { return 2*int(hit) < n }
