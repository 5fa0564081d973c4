// SPDX-License-Identifier: Apache-2.0

// Package sim runs the production router over a fleet of engine replicas in
// virtual time: discrete events, no clock, the same seed gives the same bytes.
//
// Requests come from package workload, replicas are engine.Core state machines,
// and decisions are those of dispatch.Dispatch, which sees what it would see in
// production: scrapes at an interval, stale, noisy or missing; its own accounting;
// its prefix index, which can differ from what the replicas really hold. Results
// tell both sides.
//
// On top stand the suite, which judges a policy by its regret against the field's
// pickers over cells drawn from a distribution, and the what-if question of how
// much a router that knows prefixes saves.
package sim

import (
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// IndexKind says how the router learns what the replicas' caches hold.
type IndexKind uint8

// Kinds of index.
const (
	IndexOwn         IndexKind = iota // from what it sent, corrected by usage
	IndexEvents                       // from exact KV events
	IndexLossyEvents                  // 5 % of the event batches are lost unseen
	IndexText                         // own, and half of the prompts are recognised only in part
)

var indexNames = [...]string{"own", "events", "lossy-events", "text"}

func (k IndexKind) String() string {
	if int(k) < len(indexNames) {
		return indexNames[k]
	}
	return "unknown"
}

// ChangeKind is what happens to a replica.
type ChangeKind uint8

// Kinds of change.
const (
	ChangeDie   ChangeKind = iota // the process dies: what it had in flight is lost
	ChangeStart                   // it is ready, with a cold cache
	ChangeDrain                   // it finishes what it has and gets nothing new
)

// Change happens to one replica during a run.
type Change struct {
	At      fleet.Time
	Replica int
	Kind    ChangeKind
}

// Signals says how engine metrics reach the router.
type Signals struct {
	Interval float64 // seconds between scrapes; 0 means 1
	Delay    float64 // seconds that a scrape is old when it arrives
	Noise    float64 // standard deviation of the logarithm of gauges
	Missing  float64 // share of scrapes that fail
}

// Config describes one run.
type Config struct {
	Profile  engine.Profile
	Replicas int
	// Ranks is how many data-parallel ranks a replica has, each with an engine of the
	// profile, behind one address; 0 means 1. At most 128.
	Ranks    int
	RankKind RankKind
	// Absent replicas are not there until a ChangeStart.
	Absent  []int
	Changes []Change // ordered by At

	// Policy makes the policy of each router; nil means penstock.
	Policy func(seed uint64) route.Policy
	// Queue lets a policy that sees it use the router's own queue.
	Queue bool
	// Without leaves parts of the picker and its queue out.
	Without dispatch.Without
	// Routers is how many routers share the traffic, in turn; 0 means 1. With
	// Exchange they tell each other what they send.
	Routers  int
	Exchange bool
	Index    IndexKind
	// BlockTokens is the length of the router's blocks in tokens, a multiple of the
	// profile's; 0 means four of its blocks. With KV events it is the engine's.
	BlockTokens int
	Signals     Signals
	// Known is what the router believes of the engine at the start; the zero value
	// means the true profile. Fixed keeps it from learning more.
	Known engine.Profile
	Fixed bool

	// Users > 0 plays the sessions in a closed loop of so many users; NoThink leaves
	// out the pauses between the turns of a session.
	Users   int
	NoThink bool

	// SLO that a request has to meet to count in SLOShare; the zero value means
	// DefaultSLO.
	SLO  engine.SLO
	Seed uint64
}

// DefaultSLO is a first token within 2 s and 100 ms a token after it: the defaults
// of the configuration.
func DefaultSLO() engine.SLO { return engine.SLO{TTFT: 2, ITL: 0.1} }

// withDefaults fills in what is left open.
func (c Config) withDefaults() Config {
	if c.Policy == nil {
		c.Policy = func(uint64) route.Policy { return route.Penstock() }
	}
	c.Routers, c.Ranks = max(c.Routers, 1), max(c.Ranks, 1)
	c.Exchange = c.Exchange && c.Routers > 1
	if c.BlockTokens <= 0 {
		c.BlockTokens = 4 * c.Profile.BlockTokens
	}
	if c.fed() {
		c.BlockTokens = c.Profile.BlockTokens
	}
	if c.Signals.Interval <= 0 {
		c.Signals.Interval = 1
	}
	if c.Known.PTok == 0 {
		c.Known = c.Profile
	}
	if c.SLO == (engine.SLO{}) {
		c.SLO = DefaultSLO()
	}
	return c
}

// fed reports whether KV events feed the index.
func (c *Config) fed() bool { return c.Index == IndexEvents || c.Index == IndexLossyEvents }

func (c *Config) feedOptions() workload.FeedOptions {
	return workload.FeedOptions{Users: c.Users, NoThink: c.NoThink}
}
