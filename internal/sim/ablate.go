// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/route"
)

// Ablations returns our picker with its queue, whole, and then once for each part
// that can be left out: the terms of the price in their order, then the mechanisms
// of the queue and the queue itself. It is the production code with the part switched
// off. The adapter term is not among them: no cell has adapters.
func Ablations() []Contender {
	out := []Contender{{Name: Ours, Policy: route.PolicyPenstock, Queue: true}}
	add := func(name string, w dispatch.Without) {
		out = append(out, Contender{Name: name, Policy: route.PolicyPenstock, Queue: true, Without: w})
	}
	for t := range route.Term(route.NumTerms) {
		if t != route.TermAdapter {
			add(t.String(), dispatch.Without{Terms: t.Only()})
		}
	}
	add("order", dispatch.Without{Order: true})
	add("steal", dispatch.Without{Steal: true})
	add("meet", dispatch.Without{Meet: true})
	add("again", dispatch.Without{Again: true})
	return append(out, Contender{Name: "queue", Policy: route.PolicyPenstock})
}

// AblationSchema names the schema of AblationReport.
const AblationSchema = "penstock/ablation/v1"

// AblationReport says what each part of the picker and its queue is worth. Ratios
// are of the run without the part to the whole one in the same cell: above 1 the
// part helps.
type AblationReport struct {
	Schema string       `json:"schema"`
	Seed   uint64       `json:"seed"`
	Cells  int          `json:"cells"`
	Parts  []PartWorth  `json:"parts"`
	Each   []PartInCell `json:"cells_by_part"`
}

// PartWorth is what leaving one part out costs over all cells.
type PartWorth struct {
	Part string `json:"part"`
	// TTFT, P99 and E2E are ratios of mean TTFT + 20 ms, p99 TTFT + 100 ms and mean
	// E2E + 20 ms.
	TTFT PartRatios `json:"ttft"`
	P99  PartRatios `json:"p99"`
	E2E  PartRatios `json:"e2e"`
	SLO  float64    `json:"slo_share_lost"` // difference of the shares within the objective
}

// PartRatios are ratios over cells.
type PartRatios struct {
	Geomean   float64    `json:"geomean"`
	Interval  [2]float64 `json:"interval_95"` // bootstrap over cells
	Worst     float64    `json:"worst"`       // greatest: what the part is worth in the tail
	WorstCell string     `json:"worst_cell"`
	Least     float64    `json:"least"` // the cell where it does most harm
	LeastCell string     `json:"least_cell"`
	Above105  float64    `json:"share_above_1_05"`
}

// PartInCell holds one cell's ratios of mean TTFT + 20 ms by part.
type PartInCell struct {
	Cell string             `json:"cell"`
	Load float64            `json:"load"`
	TTFT map[string]float64 `json:"ttft"`
}

// Ablate sums up runs of cells under the contenders of Ablations.
func Ablate(seed uint64, cells []CellRuns, parts []Contender) AblationReport {
	r := AblationReport{Schema: AblationSchema, Seed: seed, Cells: len(cells)}
	for c := range cells {
		r.Each = append(r.Each, PartInCell{Cell: cells[c].Cell.Name, Load: cells[c].Cell.Load, TTFT: map[string]float64{}})
	}
	for i := 1; i < len(parts); i++ {
		w := PartWorth{Part: parts[i].Name}
		w.TTFT = partRatios(cells, i, ttftValue)
		w.P99 = partRatios(cells, i, p99Value)
		w.E2E = partRatios(cells, i, e2eValue)
		for c := range cells {
			rs := cells[c].Results
			w.SLO += (measure(rs[0]).SLOShare - measure(rs[i]).SLOShare) / float64(max(1, len(cells)))
			r.Each[c].TTFT[w.Part] = value(ttftValue).mean(rs[i], -1) / value(ttftValue).mean(rs[0], -1)
		}
		r.Parts = append(r.Parts, w)
	}
	return r
}

func partRatios(cells []CellRuns, part int, v value) PartRatios {
	var r PartRatios
	all := make([]float64, 0, len(cells))
	for c := range cells {
		rs := cells[c].Results
		x := v.mean(rs[part], -1) / v.mean(rs[0], -1)
		all = append(all, x)
		if x > r.Worst {
			r.Worst, r.WorstCell = x, cells[c].Cell.Name
		}
		if r.Least == 0 || x < r.Least {
			r.Least, r.LeastCell = x, cells[c].Cell.Name
		}
		if x > 1.05 {
			r.Above105 += 1 / float64(len(cells))
		}
	}
	r.Geomean, r.Interval = geomean(all), bootstrap(all)
	return r
}
