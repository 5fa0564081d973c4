// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/workload"
)

// Families of cells, in the order in which seeds go round them.
var families = [...]string{"chat", "shared", "agent", "code", "reason", "rag", "mixed"}

// Cell is one situation in which policies are compared: a fleet, its signals and a
// distribution of traffic. It is a pure function of its seed.
type Cell struct {
	Seed     uint64
	Name     string
	Family   string
	Load     float64 // of the capacity that a saturated run shows
	Requests int
	Spec     workload.Spec // without seed and rate
	Config   Config        // without policy and seed
	// Fault is what happens to a replica: "", "dies" or "joins".
	Fault string
}

// blockTokens is the length of a KV block in cells. Real engines use 16; twice that
// halves the time and changes nothing but the rounding of hits.
const blockTokens = 32

// engines are the model and accelerator pairs of cells with the range of their KV
// memory in tokens.
var engines = [...]struct {
	profile string
	lo, hi  float64
}{
	{"llama-3.1-8b-rtx4090", 50e3, 120e3},
	{"llama-3.1-8b-rtxpro6000", 150e3, 600e3},
	{"qwen3-32b-2xh100", 200e3, 3e6},
	{"llama-3.3-70b-4xh100", 150e3, 1.5e6},
}

// logUniform draws a number whose logarithm is uniform in [lo, hi].
func logUniform(r *workload.Rand, lo, hi float64) float64 {
	return lo * math.Exp(r.Float64()*math.Log(hi/lo))
}

func uniform(r *workload.Rand, lo, hi float64) float64 { return lo + r.Float64()*(hi-lo) }

func pick[T any](r *workload.Rand, of ...T) T { return of[r.IntN(len(of))] }

// NewCell draws the cell of a seed. requests bounds the length of its runs; 0 lets
// the cell draw 2,000 to 5,000.
func NewCell(seed uint64, requests int) Cell {
	r := workload.NewRand(seed, "cell", 0)
	c := Cell{Seed: seed, Family: families[seed%uint64(len(families))], Requests: r.Between(2000, 5000)}
	if requests > 0 {
		c.Requests = requests
	}
	c.fleet(r)
	c.traffic(r)
	c.signals(r)
	c.Load = drawLoad(r)
	c.fit(r)
	c.Name = fmt.Sprintf("%s-%d", c.Family, seed)
	return c
}

func (c *Cell) fleet(r *workload.Rand) {
	e := engines[r.IntN(len(engines))]
	p, _ := engine.Lookup(e.profile)
	p.KVTokens = int(logUniform(r, e.lo, e.hi))
	p.BlockTokens = blockTokens
	p.ChunkTokens = pick(r, 2048, 8192)
	p.MaxSeqs = pick(r, 128, 256)
	p.MaxModelLen = min(p.MaxModelLen, p.KVTokens/2)
	c.Config.Profile = p
	c.Config.Replicas = int(math.Round(logUniform(r, 2, 64)))
}

// drawLoad draws the load: 30 % of the cells below 0.6 of capacity, 35 % to 0.9,
// 20 % to 1.05, 15 % above.
func drawLoad(r *workload.Rand) float64 {
	switch u := r.Float64(); {
	case u < 0.30:
		return uniform(r, 0.2, 0.6)
	case u < 0.65:
		return uniform(r, 0.6, 0.9)
	case u < 0.85:
		return uniform(r, 0.9, 1.05)
	default:
		return uniform(r, 1.05, 1.3)
	}
}

func (c *Cell) traffic(r *workload.Rand) {
	s := workload.Spec{MaxContext: c.Config.Profile.MaxModelLen, CV: pick(r, 1.0, 2.0, 4.0, 8.0), Zipf: uniform(r, 0.7, 1.5)}
	switch c.Family {
	case "chat":
		s.Kind = workload.KindChat
		s.Apps = int(logUniform(r, 2, 200))
		s.Turns, s.Prefix = uniform(r, 3, 10), logUniform(r, 100, 4000)
		s.Input, s.Output = logUniform(r, 40, 400), logUniform(r, 80, 500)
		s.Think = seconds(logUniform(r, 2, 30))
	case "shared":
		s.Kind = workload.KindShared
		s.Apps, s.Prefix = int(logUniform(r, 4, 200)), logUniform(r, 500, 8000)
		s.Input, s.Output = logUniform(r, 50, 600), logUniform(r, 40, 400)
		if r.Float64() < 0.3 {
			s.Siblings = r.Between(2, 8)
		}
	case "agent":
		s.Kind = workload.KindAgent
		s.Apps, s.Turns = int(logUniform(r, 2, 50)), uniform(r, 10, 50)
		s.Prefix, s.Input = logUniform(r, 1000, 12000), logUniform(r, 200, 2000)
		s.Output, s.Think = logUniform(r, 60, 400), seconds(logUniform(r, 0.5, 10))
	case "code":
		s.Kind = workload.KindCode
		s.Apps, s.Turns = int(logUniform(r, 2, 50)), uniform(r, 8, 40)
		s.Input, s.Output = logUniform(r, 1000, 8000), logUniform(r, 12, 80)
		s.Think = seconds(logUniform(r, 0.4, 3))
	case "reason":
		s.Kind = workload.KindReason
		s.Prefix, s.Input = logUniform(r, 100, 1500), logUniform(r, 100, 1000)
		s.Output = logUniform(r, 500, 4000)
	case "rag":
		s.Kind = workload.KindRAG
		s.Output = logUniform(r, 60, 400)
	default:
		s.Kind = workload.KindMixed
	}
	if c.Family == "shared" && r.Float64() < 0.3 {
		s.FlipAt = 1 // filled in once the length of the run is known
	}
	// Sessions answer each other's turns in half of the cells, agents always.
	s.Open = c.Family != "agent" && r.Float64() < 0.5
	c.Spec = s
}

func (c *Cell) signals(r *workload.Rand) {
	switch u := r.Float64() * 6; {
	case u < 2:
		c.Config.Index = IndexEvents
	case u < 3:
		c.Config.Index = IndexLossyEvents
	case u < 5:
		c.Config.Index = IndexOwn
	default:
		c.Config.Index = IndexText
	}
	c.Config.Signals.Interval = 1
	if r.Float64() < 1.0/3 {
		c.Config.Signals.Interval = 0.25
	}
	switch u := r.Float64(); {
	case u < 0.1:
		c.Fault = "dies"
	case u < 0.2:
		c.Fault = "joins"
	}
}

// fit makes the run long against a session, by fewer replicas first and shorter
// pauses then, and sets the rate to the cell's load.
func (c *Cell) fit(r *workload.Rand) {
	const long = 2.0 // run over session
	k := c.capacity()
	for {
		rate := k.perReplica * float64(c.Config.Replicas) * c.Load
		length := float64(c.Requests) / rate
		switch {
		case length >= long*k.turns*(k.answer+k.think) || c.Config.Replicas <= 2 && k.think <= 0.05:
			c.Spec.Rate = rate
			c.faults(r, length)
			if c.Spec.FlipAt > 0 {
				c.Spec.FlipAt = seconds(length / 2)
			}
			return
		case c.Config.Replicas > 2:
			c.Config.Replicas = max(2, c.Config.Replicas/2)
		default:
			c.Spec.Think = seconds(k.think / 2)
			k.think /= 2
		}
	}
}

// carried is what a cell's fleet can carry, and what its sessions look like.
type carried struct {
	perReplica    float64 // requests per second
	turns         float64 // of a session
	answer, think float64 // seconds of a turn and of the pause before it
}

// capacity measures how many requests per second a replica carries that is never
// idle: in a short saturated run without pauses under our own picker on a few
// replicas, caches cold at first. It is a label more than a measure.
func (c *Cell) capacity() carried {
	const few = 4
	spec := c.Spec
	spec.Seed, spec.Rate, spec.FlipAt = c.Seed^0x5bd1e995, 0, 0
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return carried{perReplica: 1, turns: 1}
	}
	cfg := c.Config
	cfg.Replicas, cfg.NoThink, cfg.Seed = min(few, cfg.Replicas), true, c.Seed
	cfg.Index = IndexOwn
	probe := NewTraffic(g, 200, blockTokens)
	k := carried{turns: float64(probe.requests) / float64(len(probe.sessions))}
	output, think := probe.means()
	mean := float64(probe.tokens)/float64(probe.requests) + output
	// As many users as keep the memory of the replicas in use without overrunning it.
	p := &cfg.Profile
	room := 0.7 * float64(p.KVTokens) / mean
	cfg.Users = cfg.Replicas * int(min(max(room, 4), float64(p.MaxSeqs)/2))
	n := min(max(800, int(1.5*k.turns*float64(cfg.Users))), 5000)
	res := Run(cfg, NewTraffic(g, n, blockTokens))
	k.perReplica = max(res.Steady, 1e-3) / float64(cfg.Replicas)
	// Answers come faster than this under the load of most cells.
	k.answer = min(res.E2EMean/1e3, p.PrefillSeconds(int(mean), int(mean))+1.5*output*p.DecodeStepSeconds(16, 16*mean))
	k.think = think
	return k
}

func (c *Cell) faults(r *workload.Rand, length float64) {
	at := func(share float64) fleet.Time { return fleet.Time(share * length * 1e9) }
	i := r.IntN(c.Config.Replicas)
	switch c.Fault {
	case "dies":
		begin := uniform(r, 0.2, 0.5)
		c.Config.Changes = []Change{
			{At: at(begin), Replica: i, Kind: ChangeDie},
			{At: at(begin + uniform(r, 0.05, 0.25)), Replica: i, Kind: ChangeStart},
		}
	case "joins":
		c.Config.Absent = []int{i}
		c.Config.Changes = []Change{{At: at(uniform(r, 0.2, 0.6)), Replica: i, Kind: ChangeStart}}
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }

// Traffic draws the requests of one workload seed of the cell.
func (c *Cell) Traffic(seed uint64) *Traffic {
	spec := c.Spec
	spec.Seed = c.Seed*1_000_003 + seed
	g, err := workload.NewGenerator(spec)
	if err != nil {
		return &Traffic{block: blockTokens}
	}
	return NewTraffic(g, c.Requests, blockTokens)
}
