// SPDX-License-Identifier: Apache-2.0

package sim

// Summarize turns the runs of a suite's cells, in the order of the cells, into its
// report. contenders are those of RunCell and contain Ours and at least one peer.
func Summarize(seed uint64, cells []CellRuns, contenders []Contender) Report {
	ours := 0
	for i, c := range contenders {
		if c.Name == Ours {
			ours = i
		}
	}
	r := Report{Schema: SuiteSchema, Seed: seed, ByLoad: map[string]Ratios{}, ByFamily: map[string]Ratios{}}
	ttft := score(cells, contenders, ours, ttftValue)
	e2e := score(cells, contenders, ours, e2eValue)
	p99 := score(cells, contenders, ours, p99Value)
	for c := range cells {
		r.Cells = append(r.Cells, cellReport(&cells[c], contenders, ttft.best[c], ttft.ratio[ours][c]))
	}
	all := ttft.ratios(ours, nil)
	r.Worst, r.WorstCell, r.Geomean, r.Interval = all.Worst, all.WorstCell, all.Geomean, all.Interval
	r.Within105, r.Within120, r.Unbiased = all.Within105, all.Within120, all.Unbiased
	r.E2E, r.P99 = e2e.ratios(ours, nil), p99.ratios(ours, nil)
	for _, b := range LoadBands() {
		if x := ttft.ratios(ours, func(c int) bool { return band(cells[c].Cell.Load) == b }); x.Cells > 0 {
			r.ByLoad[b] = x
		}
	}
	for _, f := range families {
		if x := ttft.ratios(ours, func(c int) bool { return cells[c].Cell.Family == f }); x.Cells > 0 {
			r.ByFamily[f] = x
		}
	}
	for i, p := range contenders {
		worst := 0.0
		for _, v := range ttft.ratio[i] {
			worst = max(worst, v)
		}
		r.Policies = append(r.Policies, PeerScore{
			Name: p.Name, Geomean: geomean(ttft.ratio[i]), Worst: worst,
			E2E: geomean(e2e.ratio[i]), P99: geomean(p99.ratio[i]), SLO: sloShare(cells, i, nil),
		})
	}
	r.BestSingle = bestBy(r.Policies, contenders, func(p *PeerScore) float64 { return p.Geomean })
	e := bestBy(r.Policies, contenders, func(p *PeerScore) float64 { return p.E2E })
	q := bestBy(r.Policies, contenders, func(p *PeerScore) float64 { return p.P99 })
	r.E2E.BestSingle, r.P99.BestSingle = &e, &q
	r.SLO = sloReport(cells, contenders, ours)
	r.Flood = floodReport(cells)
	return r
}

func cellReport(c *CellRuns, contenders []Contender, best int, regret float64) CellReport {
	p := &c.Cell.Config.Profile
	out := CellReport{
		Name: c.Cell.Name, Family: c.Cell.Family, Load: c.Cell.Load, Replicas: c.Cell.Config.Replicas,
		Engine: p.Name, KVTokens: p.KVTokens, Index: c.Cell.Config.Index.String(), Fault: c.Cell.Fault,
		Policies: map[string]Measures{}, BestPeer: contenders[best].Name, Regret: regret,
	}
	for i, x := range contenders {
		out.Policies[x.Name] = measure(c.Results[i])
	}
	return out
}

// bestBy returns the peer with the least value.
func bestBy(scores []PeerScore, contenders []Contender, of func(*PeerScore) float64) PeerScore {
	var best *PeerScore
	for i := range scores {
		if contenders[i].Peer && (best == nil || of(&scores[i]) < of(best)) {
			best = &scores[i]
		}
	}
	if best == nil {
		return PeerScore{}
	}
	return *best
}

// sloShare is the mean over cells of the share of requests within the objective.
func sloShare(cells []CellRuns, contender int, keep func(*Cell) bool) float64 {
	sum, n := 0.0, 0
	for c := range cells {
		if keep != nil && !keep(&cells[c].Cell) {
			continue
		}
		sum += measure(cells[c].Results[contender]).SLOShare
		n++
	}
	return sum / float64(max(1, n))
}

func sloReport(cells []CellRuns, contenders []Contender, ours int) SLOReport {
	of := func(keep func(*Cell) bool) SLOScore {
		s := SLOScore{Ours: sloShare(cells, ours, keep)}
		for i, p := range contenders {
			if v := sloShare(cells, i, keep); p.Peer && v > s.Best {
				s.Best, s.BestPeer = v, p.Name
			}
		}
		return s
	}
	all := of(nil)
	r := SLOReport{Ours: all.Ours, BestPeer: all.BestPeer, Best: all.Best, ByLoad: map[string]SLOScore{}}
	for _, b := range LoadBands() {
		in := func(c *Cell) bool { return band(c.Load) == b }
		for c := range cells {
			if in(&cells[c].Cell) {
				r.ByLoad[b] = of(in)
				break
			}
		}
	}
	return r
}

// Comparison is one cell outside the suite, schema penstock/compare/v1.
type Comparison struct {
	Schema   string            `json:"schema"`
	Trace    string            `json:"trace,omitempty"`
	Requests int               `json:"requests"`
	Replicas int               `json:"replicas"`
	Ranks    int               `json:"ranks,omitempty"`     // of each replica; 0: one
	RankKind string            `json:"rank_kind,omitempty"` // what they tell and do, with Ranks
	Engine   string            `json:"engine"`
	KVTokens int               `json:"kv_tokens"`
	Index    string            `json:"index"`
	Seed     uint64            `json:"seed"`
	Policies map[string]Result `json:"policies"`
	Order    []string          `json:"order"` // policies, ours first
	BestPeer string            `json:"best_peer"`
	Regret   float64           `json:"regret"`
}

// CompareSchema names the schema of Comparison.
const CompareSchema = "penstock/compare/v1"

// Compare puts results of one traffic, one a contender, side by side. Regret is 0
// where ours or every peer is missing.
func Compare(c Config, requests int, contenders []Contender, results []Result) Comparison {
	c = c.withDefaults()
	out := Comparison{
		Schema: CompareSchema, Requests: requests, Replicas: c.Replicas, Engine: c.Profile.Name,
		KVTokens: c.Profile.KVTokens, Index: c.Index.String(), Seed: c.Seed, Policies: map[string]Result{},
	}
	if c.Ranks > 1 {
		out.Ranks, out.RankKind = c.Ranks, c.RankKind.String()
	}
	ours, best := -1, -1
	for i, p := range contenders {
		out.Policies[p.Name] = results[i]
		out.Order = append(out.Order, p.Name)
		if p.Name == Ours {
			ours = i
		}
		if p.Peer && (best < 0 || results[i].TTFTMean < results[best].TTFTMean) {
			best = i
		}
	}
	if best >= 0 {
		out.BestPeer = contenders[best].Name
	}
	if ours >= 0 && best >= 0 {
		out.Regret = ttftValue(&results[ours]) / ttftValue(&results[best])
	}
	return out
}

// RunContender plays traffic under one contender.
func RunContender(c Config, p Contender, t *Traffic) Result {
	p.apply(&c)
	r := Run(c, t)
	r.Policy = p.Name
	return r
}
