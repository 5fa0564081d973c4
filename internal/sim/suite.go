// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"sort"

	"github.com/penstock-project/penstock/internal/workload"
)

// Offsets that a ratio of times adds to both sides, in ms, so that nobody wins by a
// factor on a difference that no client can notice.
const (
	ttftOffset = 20.0
	p99Offset  = 100.0
)

// WorkloadSeeds is how many workloads of a cell each policy sees. With two, the
// best peer can be chosen on one and measured on the other.
const WorkloadSeeds = 2

// CellRuns are the runs of one cell: by contender, then by workload seed.
type CellRuns struct {
	Cell    Cell
	Results [][]Result
	// Flood is set where the cell has a flooding tenant.
	Flood *FloodResult
}

// RunCell plays every workload of a cell under every contender.
func RunCell(c Cell, contenders []Contender) CellRuns {
	out := CellRuns{Cell: c, Results: make([][]Result, len(contenders))}
	for w := range uint64(WorkloadSeeds) {
		t := c.Traffic(w)
		for i, p := range contenders {
			cfg := c.Config
			cfg.Seed = c.Seed<<8 + w
			p.apply(&cfg)
			out.Results[i] = append(out.Results[i], Run(cfg, t))
		}
	}
	return out
}

// Measures are the figures of one policy in one cell, means over its workloads.
type Measures struct {
	TTFTMean  float64 `json:"ttft_mean_ms"`
	TTFTP99   float64 `json:"ttft_p99_ms"`
	E2EMean   float64 `json:"e2e_mean_ms"`
	TPOT      float64 `json:"tpot_ms"`
	HitRatio  float64 `json:"hit_ratio"`
	SLOShare  float64 `json:"slo_share"`
	Imbalance float64 `json:"imbalance"`
	Failed    int     `json:"failed,omitempty"`
}

func measure(rs []Result) Measures {
	var m Measures
	n := float64(len(rs))
	for _, r := range rs {
		m.TTFTMean += r.TTFTMean / n
		m.TTFTP99 += r.TTFTP99 / n
		m.E2EMean += r.E2EMean / n
		m.TPOT += r.TPOT / n
		m.HitRatio += r.HitRatio / n
		m.SLOShare += r.SLOShare / n
		m.Imbalance += r.Imbalance / n
		m.Failed += r.Failed
	}
	return m
}

// CellReport is one cell of a report.
type CellReport struct {
	Name     string              `json:"name"`
	Family   string              `json:"family"`
	Load     float64             `json:"load"`
	Replicas int                 `json:"replicas"`
	Engine   string              `json:"engine"`
	KVTokens int                 `json:"kv_tokens"`
	Index    string              `json:"index"`
	Fault    string              `json:"fault,omitempty"`
	Policies map[string]Measures `json:"policies"`
	BestPeer string              `json:"best_peer"`
	Regret   float64             `json:"regret"`
}

// Ratios sum up the ratios of ours to the best peer of each cell in one measure.
type Ratios struct {
	Cells      int        `json:"cells"`
	Worst      float64    `json:"worst_regret"`
	WorstCell  string     `json:"worst_cell,omitempty"`
	Geomean    float64    `json:"geomean_regret"`
	Interval   [2]float64 `json:"interval_95"` // bootstrap over cells
	Within105  float64    `json:"share_within_1_05"`
	Within120  float64    `json:"share_within_1_2"`
	Unbiased   float64    `json:"unbiased_geomean"`
	BestSingle *PeerScore `json:"best_single_peer,omitempty"`
}

// PeerScore is how one policy does over all cells.
type PeerScore struct {
	Name    string  `json:"name"`
	Geomean float64 `json:"geomean_regret"`
	Worst   float64 `json:"worst_regret"`
	E2E     float64 `json:"e2e_geomean"`
	P99     float64 `json:"p99_geomean"`
	SLO     float64 `json:"slo_share"`
}

// SLOReport compares shares of requests within the objective.
type SLOReport struct {
	Ours     float64             `json:"ours"`
	BestPeer string              `json:"best_peer"`
	Best     float64             `json:"best_peer_share"`
	ByLoad   map[string]SLOScore `json:"by_load,omitempty"`
}

// SLOScore is SLOReport for one load band.
type SLOScore struct {
	Ours     float64 `json:"ours"`
	BestPeer string  `json:"best_peer"`
	Best     float64 `json:"best_peer_share"`
}

// Report is the result of a suite, schema penstock/suite/v1. Regret is ours over
// the best of the eleven peers in the cell, on mean TTFT + 20 ms.
type Report struct {
	Schema     string            `json:"schema"`
	Seed       uint64            `json:"seed"`
	Cells      []CellReport      `json:"cells"`
	Worst      float64           `json:"worst_regret"`
	WorstCell  string            `json:"worst_cell"`
	Geomean    float64           `json:"geomean_regret"`
	Interval   [2]float64        `json:"interval_95"`
	Within105  float64           `json:"share_within_1_05"`
	Within120  float64           `json:"share_within_1_2"`
	Unbiased   float64           `json:"unbiased_geomean"`
	BestSingle PeerScore         `json:"best_single_peer"`
	ByLoad     map[string]Ratios `json:"by_load"`
	ByFamily   map[string]Ratios `json:"by_family"`
	E2E        Ratios            `json:"e2e"`
	P99        Ratios            `json:"p99"`
	SLO        SLOReport         `json:"slo"`
	Policies   []PeerScore       `json:"policies"`
	Flood      *FloodReport      `json:"flood,omitempty"`
	Routers    *RoutersReport    `json:"routers,omitempty"`
}

// SuiteSchema names the schema of Report.
const SuiteSchema = "penstock/suite/v1"

// LoadBands are the bands of load in which ratios are told, in order.
func LoadBands() []string { return []string{"below 0.6", "0.6 to 0.9", "0.9 to 1.05", "above 1.05"} }

func band(load float64) string {
	b := LoadBands()
	switch {
	case load < 0.6:
		return b[0]
	case load < 0.9:
		return b[1]
	case load < 1.05:
		return b[2]
	default:
		return b[3]
	}
}

// CellSeed is the seed of cell i of a suite, from 0. Suites of different seeds
// share no cell.
func CellSeed(suite uint64, i int) uint64 { return suite*100_000 + uint64(i) + 1 }

// value of a run in one measure, its offset included.
type value func(r *Result) float64

func ttftValue(r *Result) float64 { return r.TTFTMean + ttftOffset }
func e2eValue(r *Result) float64  { return r.E2EMean + ttftOffset }
func p99Value(r *Result) float64  { return r.TTFTP99 + p99Offset }

// mean is the value over the workloads but skip; -1 skips none.
func (v value) mean(rs []Result, skip int) float64 {
	sum, n := 0.0, 0
	for i := range rs {
		if i != skip {
			sum += v(&rs[i])
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// scores holds one measure over all cells.
type scores struct {
	ratio  [][]float64 // by contender, by cell: to the best peer of the cell
	split  []float64   // ours, best peer chosen on the other workload
	best   []int       // best peer of each cell
	labels []string
}

func score(cells []CellRuns, contenders []Contender, ours int, v value) scores {
	s := scores{ratio: make([][]float64, len(contenders))}
	for c := range cells {
		rs := cells[c].Results
		best := bestPeer(rs, contenders, v, -1)
		low := v.mean(rs[best], -1)
		for i := range contenders {
			s.ratio[i] = append(s.ratio[i], v.mean(rs[i], -1)/low)
		}
		s.best = append(s.best, best)
		s.labels = append(s.labels, cells[c].Cell.Name)
		log := 0.0
		for w := range rs[ours] {
			peer := bestPeer(rs, contenders, v, w)
			log += math.Log(v(&rs[ours][w]) / v(&rs[peer][w]))
		}
		s.split = append(s.split, math.Exp(log/float64(max(1, len(rs[ours])))))
	}
	return s
}

// bestPeer returns the peer with the least value over the workloads but skip.
func bestPeer(rs [][]Result, contenders []Contender, v value, skip int) int {
	best, low := -1, math.Inf(1)
	for i, p := range contenders {
		if !p.Peer {
			continue
		}
		if m := v.mean(rs[i], skip); m < low {
			best, low = i, m
		}
	}
	return max(best, 0)
}

// ratios sums up the cells that keep allows; nil allows all.
func (s *scores) ratios(ours int, keep func(cell int) bool) Ratios {
	var rs, split []float64
	r := Ratios{}
	in := 0
	for c, v := range s.ratio[ours] {
		if keep != nil && !keep(c) {
			continue
		}
		rs, split = append(rs, v), append(split, s.split[c])
		if v > r.Worst {
			r.Worst, r.WorstCell = v, s.labels[c]
		}
		if v <= 1.05 {
			in++
		}
		if v <= 1.2 {
			r.Within120++
		}
	}
	n := float64(max(1, len(rs)))
	r.Cells, r.Within105 = len(rs), float64(in)/n
	r.Within120 /= n
	r.Geomean, r.Unbiased = geomean(rs), geomean(split)
	r.Interval = bootstrap(rs)
	return r
}

func geomean(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sum := 0.0
	for _, x := range v {
		sum += math.Log(x)
	}
	return math.Exp(sum / float64(len(v)))
}

// bootstrap is the 95 % interval of the geometric mean over resampled cells.
func bootstrap(v []float64) [2]float64 {
	const rounds = 2000
	if len(v) == 0 {
		return [2]float64{}
	}
	r := workload.NewRand(1, "bootstrap", uint64(len(v)))
	means := make([]float64, rounds)
	for i := range means {
		sum := 0.0
		for range v {
			sum += math.Log(v[r.IntN(len(v))])
		}
		means[i] = math.Exp(sum / float64(len(v)))
	}
	sort.Float64s(means)
	return [2]float64{quantile(means, 0.025), quantile(means, 0.975)}
}
