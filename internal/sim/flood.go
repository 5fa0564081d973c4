// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"sort"
	"time"

	"github.com/penstock-project/penstock/internal/workload"
)

// floodTenant is the tenant that floods.
const floodTenant = "flood"

// FloodResult compares what the other tenants see beside a tenant that floods with
// what they see alone.
type FloodResult struct {
	Name  string  `json:"name"`
	Load  float64 `json:"load"`         // of all tenants together while the flood lasts
	Worst float64 `json:"worst_victim"` // mean TTFT + 20 ms beside the flood over alone, of the worst tenant
	Mean  float64 `json:"mean_victim"`
}

// FloodReport sums up the flood cells of a suite for our own policy.
type FloodReport struct {
	Cells []FloodResult `json:"cells"`
	Worst float64       `json:"worst_victim"`
	Mean  float64       `json:"mean_victim"`
}

// NewFloodCell draws a cell in which three tenants use 30 to 60 % of the capacity
// and a fourth sends 70 to 150 % of it through the middle half of the run.
func NewFloodCell(seed uint64, requests int) (Cell, float64) {
	c := NewCell(seed, requests)
	r := workload.NewRand(seed, "flood", 0)
	whole := c.Spec.Rate / c.Load
	c.Fault, c.Config.Absent, c.Config.Changes = "", nil, nil
	c.Load = uniform(r, 0.3, 0.6)
	c.Spec.Rate, c.Spec.Tenants = whole*c.Load, 3
	c.Name = "flood-" + c.Name
	return c, uniform(r, 0.7, 1.5) * whole
}

// RunFlood plays a flood cell under a contender, with the flood and without.
func RunFlood(seed uint64, requests int, p Contender) FloodResult {
	c, rate := NewFloodCell(seed, requests)
	base := c.Traffic(0)
	length := float64(base.requests) / c.Spec.Rate
	spec := c.Spec
	spec.Rate, spec.Seed, spec.Tenants = rate, seed^0xf100d, 0
	both := base
	if g, err := workload.NewGenerator(spec); err == nil {
		flood := NewTraffic(g, int(rate*length/2), blockTokens)
		both = merge(base, flood, seconds(length/4))
	}
	cfg := c.Config
	cfg.Seed = seed
	p.apply(&cfg)
	alone, beside := Run(cfg, base), Run(cfg, both)
	out := FloodResult{Name: c.Name, Load: c.Load + rate/(c.Spec.Rate/c.Load)}
	for _, a := range alone.Tenants {
		for _, b := range beside.Tenants {
			if a.Tenant != b.Tenant {
				continue
			}
			ratio := (b.TTFTMean + ttftOffset) / (a.TTFTMean + ttftOffset)
			out.Worst = max(out.Worst, ratio)
			out.Mean += ratio / float64(len(alone.Tenants))
		}
	}
	return out
}

// merge lays the sessions of flood, shifted and under one tenant, over base.
func merge(base, flood *Traffic, shift time.Duration) *Traffic {
	t := &Traffic{block: base.block}
	type entry struct {
		s     *workload.Session
		turns []prompt
	}
	var all []entry
	for i, s := range base.sessions {
		all = append(all, entry{s, base.turns[i]})
	}
	for i, s := range flood.sessions {
		c := *s
		c.Tenant, c.Start = floodTenant, s.Start+shift
		c.Turns = append([]workload.Turn(nil), s.Turns...)
		for k := range c.Turns {
			c.Turns[k].At += shift
		}
		all = append(all, entry{&c, flood.turns[i]})
	}
	sort.SliceStable(all, func(a, b int) bool { return all[a].s.Start < all[b].s.Start })
	for _, e := range all {
		t.sessions, t.turns = append(t.sessions, e.s), append(t.turns, e.turns)
		t.count(e.s)
	}
	return t
}

func floodReport(cells []CellRuns) *FloodReport {
	r := &FloodReport{}
	for i := range cells {
		if f := cells[i].Flood; f != nil {
			r.Cells = append(r.Cells, *f)
			r.Worst = max(r.Worst, f.Worst)
			r.Mean += f.Mean
		}
	}
	if len(r.Cells) == 0 {
		return nil
	}
	r.Mean /= float64(len(r.Cells))
	return r
}
