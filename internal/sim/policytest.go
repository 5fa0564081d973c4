// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// PolicyTest is one state of a fleet, one request, and what a policy is expected to
// make of it.
type PolicyTest struct {
	Name     string          `yaml:"name"`
	Policy   string          `yaml:"policy"` // "": penstock
	Seed     uint64          `yaml:"seed"`   // of policies that draw
	Averages PolicyAverages  `yaml:"averages"`
	Request  PolicyRequest   `yaml:"request"`
	Replicas []PolicyReplica `yaml:"replicas"`
	Expect   PolicyExpect    `yaml:"expect"`
}

// PolicyAverages are the moving averages of the router. What is left out is that of a
// router that has just started.
type PolicyAverages struct {
	Pressure     *float64 `yaml:"pressure"`      // requests to come per request in service, 0..32
	OutputTokens *float64 `yaml:"output_tokens"` // > 0
	Exchange     *float64 `yaml:"exchange"`      // 0..1
	HitShare     *float64 `yaml:"hit_share"`     // 0..1
}

// PolicyRequest is the request of a test.
type PolicyRequest struct {
	Model        string `yaml:"model"`
	Adapter      string `yaml:"adapter"`
	PromptTokens int    `yaml:"prompt_tokens"` // >= 1
	MaxTokens    int    `yaml:"max_tokens"`    // 0: no limit
}

// PolicyReplica is one replica as the router sees it. Pointers are nil where the test
// does not say.
type PolicyReplica struct {
	Name     string   `yaml:"name"`
	Phase    string   `yaml:"phase"`    // "": ready
	Dropped  string   `yaml:"dropped"`  // a reason that the test imposes, such as ejected
	Models   []string `yaml:"models"`   // empty: any
	Adapters []string `yaml:"adapters"` // resident

	// The router's own accounting.
	InFlight      *int    `yaml:"in_flight"`      // requests; streams, and one more where pending_ms is set
	Streams       *int    `yaml:"streams"`        // of them, with a first token; all where pending_ms is not set
	PendingMS     float64 `yaml:"pending_ms"`     // prefill work without a first token
	PendingTokens float64 `yaml:"pending_tokens"` // the same in uncached tokens; 0: pending_ms at the profile's rate
	ContextTokens float64 `yaml:"context_tokens"` // of the streams
	CachedTokens  int     `yaml:"cached_tokens"`  // of the prompt, cut to whole blocks
	CachedBlocks  int     `yaml:"cached_blocks"`
	CacheFull     bool    `yaml:"cache_full"`     // new blocks push out others
	KVUsedTokens  float64 `yaml:"kv_used_tokens"` // 0: context_tokens
	Slowness      float64 `yaml:"slowness"`       // times the profile; 0: 1

	// The engine's own words; KV size and seats are the profile's where left out.
	KVTokens int      `yaml:"kv_tokens"`
	MaxSeqs  int      `yaml:"max_seqs"`
	Running  *float64 `yaml:"running"`
	Waiting  *float64 `yaml:"waiting"`
	KVUsage  *float64 `yaml:"kv_usage"` // 0..1
}

// PolicyExpect is what must come out. What is left out is not checked.
type PolicyExpect struct {
	Pick    string            `yaml:"pick"`    // a replica, or none
	Order   []string          `yaml:"order"`   // by cost, the cheapest first; others may lie between
	Dropped map[string]string `yaml:"dropped"` // replica to reason; "" for a candidate
}

// NoPick is the name of the expectation that no replica takes the request.
const NoPick = "none"

// PolicyError says what is wrong with a test. Path is that of the field, such as
// "replicas[1].phase".
type PolicyError struct {
	Path string
	Msg  string
}

func (e PolicyError) Error() string { return e.Path + ": " + e.Msg }

// PolicyResult is what a policy made of a test.
type PolicyResult struct {
	Pick     string // NoPick where no replica takes it
	Why      string
	Decision route.Decision // candidates in the order of the replicas
	Failures []string       // empty: passed
}

// Candidate returns the candidate of a replica, nil where there is none.
func (r *PolicyResult) Candidate(name string) *route.Candidate {
	for i := range r.Decision.Candidates {
		if c := &r.Decision.Candidates[i]; c.Endpoint == name {
			return c
		}
	}
	return nil
}

// Check returns all that is wrong with the test itself.
func (t *PolicyTest) Check(p *engine.Profile) []PolicyError {
	var errs []PolicyError
	bad := func(path, format string, args ...any) {
		errs = append(errs, PolicyError{path, fmt.Sprintf(format, args...)})
	}
	if _, err := route.New(t.policy(), t.Seed); err != nil {
		bad("policy", "%v", err)
	}
	if t.Request.PromptTokens < 1 || t.Request.PromptTokens > p.MaxModelLen {
		bad("request.prompt_tokens", "is %d, must be 1 to %d, the profile's max_model_len", t.Request.PromptTokens, p.MaxModelLen)
	}
	if t.Request.MaxTokens < 0 {
		bad("request.max_tokens", "must not be negative")
	}
	t.Averages.check(bad)
	names := make([]string, 0, len(t.Replicas))
	for i := range t.Replicas {
		r := &t.Replicas[i]
		at := fmt.Sprintf("replicas[%d]", i)
		switch {
		case r.Name == "" || r.Name == NoPick:
			bad(at+".name", "a replica needs a name other than %q", NoPick)
		case slices.Contains(names, r.Name):
			bad(at+".name", "%q is there twice", r.Name)
		}
		names = append(names, r.Name)
		r.check(t.Request.PromptTokens, p, func(field, format string, args ...any) { bad(at+"."+field, format, args...) })
	}
	if len(t.Replicas) == 0 {
		bad("replicas", "a test needs at least one replica")
	}
	t.Expect.check(names, t.policy(), bad)
	return errs
}

func (t *PolicyTest) policy() string {
	if t.Policy == "" {
		return route.PolicyPenstock
	}
	return t.Policy
}

type complain func(path, format string, args ...any)

func (a *PolicyAverages) check(bad complain) {
	for _, c := range []struct {
		name     string
		v        *float64
		low, top float64
	}{
		{"pressure", a.Pressure, 0, 32}, {"output_tokens", a.OutputTokens, 1, 1 << 24},
		{"exchange", a.Exchange, 0, 1}, {"hit_share", a.HitShare, 0, 1},
	} {
		if c.v != nil && !(*c.v >= c.low && *c.v <= c.top) {
			bad("averages."+c.name, "is %v, must be %v to %v", *c.v, c.low, c.top)
		}
	}
}

func (r *PolicyReplica) check(prompt int, p *engine.Profile, bad complain) {
	if _, ok := fleet.ParsePhase(r.Phase); r.Phase != "" && !ok {
		bad("phase", "%q is unknown; use pending, pulling, loading, warming, ready, draining, failed or asleep", r.Phase)
	}
	if r.Dropped != "" && dropNamed(r.Dropped) == route.DropNone {
		bad("dropped", "%q is unknown; use one of: %s", r.Dropped, strings.Join(dropNames(), ", "))
	}
	for _, c := range []struct {
		name string
		v    float64
		top  float64
	}{
		{"pending_ms", r.PendingMS, 1e9}, {"pending_tokens", r.PendingTokens, 1e9}, {"context_tokens", r.ContextTokens, 1e9},
		{"cached_tokens", float64(r.CachedTokens), float64(prompt)}, {"kv_used_tokens", r.KVUsedTokens, 1e9},
		{"cached_blocks", float64(r.CachedBlocks), float64(prompt / p.BlockTokens)}, {"slowness", r.Slowness, 1000},
		{"kv_tokens", float64(r.KVTokens), 1e9}, {"max_seqs", float64(r.MaxSeqs), 1e6},
		{"running", orZero(r.Running), 1e6}, {"waiting", orZero(r.Waiting), 1e6}, {"kv_usage", orZero(r.KVUsage), 1},
	} {
		if !(c.v >= 0 && c.v <= c.top) {
			bad(c.name, "is %v, must be 0 to %v", c.v, c.top)
		}
	}
	if r.CachedTokens > 0 && r.CachedBlocks > 0 {
		bad("cached_blocks", "give cached_tokens or cached_blocks, not both")
	}
	inFlight, streams := r.requests()
	switch {
	case inFlight < 0 || inFlight > 1e6:
		bad("in_flight", "is %d, must be 0 to 1000000", inFlight)
	case streams < 0 || streams > inFlight:
		bad("streams", "is %d, must be 0 to in_flight, %d", streams, inFlight)
	case streams == inFlight && (r.PendingMS > 0 || r.PendingTokens > 0):
		bad("streams", "all %d requests have a first token, but prefill is pending: in_flight must be more than streams", streams)
	case streams == 0 && r.ContextTokens > 0:
		bad("context_tokens", "there is no stream that could hold them")
	}
}

// requests returns the requests in flight and those of them with a first token, with
// what the test leaves out filled in.
func (r *PolicyReplica) requests() (inFlight, streams int) {
	pending := 0
	if r.PendingMS > 0 || r.PendingTokens > 0 {
		pending = 1
	}
	switch {
	case r.InFlight != nil && r.Streams != nil:
		return *r.InFlight, *r.Streams
	case r.InFlight != nil:
		return *r.InFlight, max(0, *r.InFlight-pending)
	case r.Streams != nil:
		return *r.Streams + pending, *r.Streams
	}
	return pending, 0
}

func (x *PolicyExpect) check(names []string, policy string, bad complain) {
	if x.Pick == "" && len(x.Order) == 0 && len(x.Dropped) == 0 {
		bad("expect", "expects nothing; use pick, order or dropped")
	}
	if x.Pick != "" && x.Pick != NoPick && !slices.Contains(names, x.Pick) {
		bad("expect.pick", "%q is no replica of the test", x.Pick)
	}
	if len(x.Order) == 1 {
		bad("expect.order", "an order needs at least two replicas")
	}
	if len(x.Order) > 0 && policy != route.PolicyPenstock {
		bad("expect.order", "policy %s does not choose by cost; expect a pick", policy)
	}
	for i, n := range x.Order {
		if !slices.Contains(names, n) || slices.Contains(x.Order[:i], n) {
			bad(fmt.Sprintf("expect.order[%d]", i), "%q is no replica of the test, or there twice", n)
		}
	}
	for _, n := range sortedNames(x.Dropped) {
		if !slices.Contains(names, n) {
			bad("expect.dropped."+n, "%q is no replica of the test", n)
		}
		if why := x.Dropped[n]; why != "" && dropNamed(why) == route.DropNone {
			bad("expect.dropped."+n, "%q is unknown; use one of: %s", why, strings.Join(dropNames(), ", "))
		}
	}
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func dropNames() []string {
	var out []string
	for d := route.DropGone; int(d) < route.NumDrops; d++ {
		out = append(out, d.String())
	}
	return out
}

func dropNamed(s string) route.Drop {
	for d := route.DropGone; int(d) < route.NumDrops; d++ {
		if d.String() == s {
			return d
		}
	}
	return route.DropNone
}

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// testNow is the moment at which tests ask: any but 0, which means unknown.
const testNow = fleet.Time(1e9)

// Run asks the policy. The test must have passed Check. Who may take the request is
// decided by the production filter, coefficients and averages are those of a router
// that starts with the profile.
func (t *PolicyTest) Run(p engine.Profile) PolicyResult {
	policy, err := route.New(t.policy(), t.Seed)
	if err != nil {
		return PolicyResult{Failures: []string{err.Error()}}
	}
	var res PolicyResult
	in := t.input(&p)
	policy.Pick(in, &res.Decision)
	res.Pick, res.Why = NoPick, res.Decision.Why
	if c := res.Decision.Pick(); c != nil {
		res.Pick = c.Endpoint
	}
	t.judge(&res)
	return res
}

// input is the question that the test asks.
func (t *PolicyTest) input(p *engine.Profile) *route.Input {
	snap := &fleet.Snapshot{Pool: "test", Version: 1, At: testNow, Endpoints: make([]fleet.EndpointState, len(t.Replicas))}
	for i := range t.Replicas {
		snap.Endpoints[i] = t.Replicas[i].state()
	}
	q := &fleet.Request{
		ID: t.Name, Model: t.Request.Model, Adapter: t.Request.Adapter, PromptTokens: t.Request.PromptTokens,
		MaxTokens: t.Request.MaxTokens, BlockTokens: float64(p.BlockTokens), Arrived: testNow,
	}
	for i := range t.Request.PromptTokens / p.BlockTokens {
		q.Blocks = append(q.Blocks, route.Mix(uint64(i), 1))
	}
	// The filter, and what a router knows at its start, are those of a fresh pool.
	var fresh route.Decision
	d := dispatch.New(dispatch.Options{Pool: "test", Profile: *p})
	d.Observe(testNow, snap, nil)
	d.Preview(testNow, q, &fresh)

	in := &route.Input{
		Now: testNow, Request: q, PromptTokens: float64(q.PromptTokens), BlockTokens: q.BlockTokens,
		Engine: fresh.Engine, Context: t.Averages.over(fresh.Context, q.MaxTokens),
		SnapshotVersion: snap.Version, SnapshotAt: snap.At,
	}
	for i := range t.Replicas {
		r := &t.Replicas[i]
		s := r.slot(p, &in.Engine, &snap.Endpoints[i])
		drop := dropNamed(r.Dropped)
		for k := range fresh.Candidates {
			if c := &fresh.Candidates[k]; c.Endpoint == r.Name && drop == route.DropNone {
				drop = c.Drop
			}
		}
		s.Drop = drop
		in.Slots = append(in.Slots, s)
		in.Drops = append(in.Drops, drop)
		in.Hits = append(in.Hits, int32(max(r.CachedBlocks, r.CachedTokens/p.BlockTokens)))
		in.Pinned = append(in.Pinned, 0)
		if q.Adapter != "" {
			in.AdapterCold = append(in.AdapterCold, !slices.Contains(r.Adapters, q.Adapter))
		}
	}
	return in
}

// over lays the averages of a test over those of a fresh router.
func (a *PolicyAverages) over(c route.Context, maxTokens int) route.Context {
	for _, x := range []struct {
		v  *float64
		to *float64
	}{
		{a.Pressure, &c.Pressure}, {a.OutputTokens, &c.MeanOutput}, {a.OutputTokens, &c.OwnOutput},
		{a.Exchange, &c.Exchange}, {a.HitShare, &c.HitShare},
	} {
		if x.v != nil {
			*x.to = *x.v
		}
	}
	if maxTokens > 0 {
		c.OwnOutput = math.Min(c.OwnOutput, float64(maxTokens))
	}
	return c
}

// state is what the replica says of itself.
func (r *PolicyReplica) state() fleet.EndpointState {
	e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: r.Name, URL: "http://" + r.Name, Phase: fleet.PhaseReady, Rank: -1, Models: r.Models}}
	if p, ok := fleet.ParsePhase(r.Phase); ok {
		e.Phase = p
	}
	known := func(v *float64) fleet.Value {
		if v == nil {
			return fleet.Value{}
		}
		e.ScrapedAt = testNow
		return fleet.Known(*v, testNow)
	}
	e.Running, e.Waiting, e.KVUsage = known(r.Running), known(r.Waiting), known(r.KVUsage)
	for _, a := range r.Adapters {
		e.Adapters = append(e.Adapters, fleet.Adapter{Name: a, State: fleet.AdapterResident, At: testNow})
	}
	return e
}

// slot is what the router's own accounting says of the replica.
func (r *PolicyReplica) slot(p *engine.Profile, c *route.Coef, e *fleet.EndpointState) route.Slot {
	inFlight, streams := r.requests()
	s := route.Slot{
		ID: r.Name, Key: xxh3.HashString(r.Name), State: e, Speed: 1,
		InFlight: int32(inFlight), Unstarted: int32(inFlight - streams), Streams: int32(streams),
		PendingSum: r.PendingMS / 1e3, HeadSince: testNow, CtxTokens: r.ContextTokens,
		UncachedTokens: r.PendingTokens, TailTokens: r.KVUsedTokens,
		KVTokens: float64(p.KVTokens), KVLimit: 1, MaxSeqs: float64(p.MaxSeqs),
	}
	if s.PendingSum == 0 {
		s.PendingSum = r.PendingTokens * c.PTok
	}
	if s.UncachedTokens == 0 {
		s.UncachedTokens = s.PendingSum / c.PTok
	}
	if s.TailTokens == 0 {
		s.TailTokens = r.ContextTokens
	}
	if r.Slowness > 0 {
		s.Speed = r.Slowness
	}
	if r.KVTokens > 0 {
		s.KVTokens = float64(r.KVTokens)
	}
	if r.MaxSeqs > 0 {
		s.MaxSeqs = float64(r.MaxSeqs)
	}
	if r.CacheFull {
		s.CacheBlocks, s.CacheCap = 1, 1
	}
	return s
}

// judge fills in what differs from what was expected.
func (t *PolicyTest) judge(res *PolicyResult) {
	fail := func(format string, args ...any) { res.Failures = append(res.Failures, fmt.Sprintf(format, args...)) }
	x := &t.Expect
	if x.Pick != "" && x.Pick != res.Pick {
		fail("pick: want %s, got %s: %s", x.Pick, res.Pick, res.Why)
	}
	for i := 1; i < len(x.Order); i++ {
		a, b := res.Candidate(x.Order[i-1]), res.Candidate(x.Order[i])
		switch {
		case a.Drop != route.DropNone:
			fail("order: %s has no cost, it was dropped: %s", a.Endpoint, a.Drop)
		case b.Drop != route.DropNone:
			fail("order: %s has no cost, it was dropped: %s", b.Endpoint, b.Drop)
		case !(a.CostMS < b.CostMS-route.TieMS):
			fail("order: want %s cheaper than %s, got %.1f ms and %.1f ms", a.Endpoint, b.Endpoint, a.CostMS, b.CostMS)
		}
	}
	for _, n := range sortedNames(x.Dropped) {
		if c := res.Candidate(n); c.Drop.String() != x.Dropped[n] {
			fail("dropped: want %s for %s, got %s", orCandidate(x.Dropped[n]), n, orCandidate(c.Drop.String()))
		}
	}
}

func orCandidate(reason string) string {
	if reason == "" {
		return "no reason, a candidate"
	}
	return reason
}
