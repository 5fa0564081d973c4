// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"
	"math"
	"slices"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// load is how the decisions of a time spread over the replicas.
type load struct {
	counts   map[string]int
	n        int
	hot      string
	most     int
	replicas int
}

func spreadOf(ds []decision, replicas int) load {
	l := load{counts: map[string]int{}, replicas: replicas}
	for i := range ds {
		if e := ds[i].endpoint; e != "" {
			l.counts[e]++
			l.n++
			if c := l.counts[e]; c > l.most || c == l.most && e < l.hot {
				l.most, l.hot = c, e
			}
		}
	}
	return l
}

// mean is the even share of one replica.
func (l *load) mean() float64 { return float64(l.n) / math.Max(1, float64(l.replicas)) }

// hotOrHerd finds replicas that get far more than their share while others idle,
// and tells the two causes apart: one prefix that always goes to the same replica,
// or a snapshot that makes everybody pick the same one until the next scrape.
func (a *analysis) hotOrHerd() {
	r := fleet(a.ds)
	if len(a.ds) < enough || r < 2 {
		return
	}
	if f, ok := a.herd(r); ok {
		a.add(f)
		return
	}
	all := spreadOf(a.ds, r)
	busy := a.busy(all.hot)
	if all.n < enough || float64(all.most) <= 1.5*all.mean() || !busy {
		return
	}
	same, prefix := a.samePrefix(all.hot)
	if !same {
		return
	}
	f := a.new("hot-prefix", all.hot, 0)
	ratio, at := a.inFlight(all.hot)
	f.Evidence = []diagnose.Evidence{
		{Name: "replica", Value: all.hot}, diagnose.Ev("requests", all.most, ""), diagnose.Ev("mean_requests", all.mean(), ""),
		diagnose.Ev("share", share(float64(all.most), float64(all.n)), ""), diagnose.Ev("max_over_mean_inflight", ratio, ""), diagnose.Ev("in_flight_of_others", at, "requests"),
	}
	if prefix != "" {
		f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "prefix", Value: prefix})
	}
	f.Message = fmt.Sprintf("%s takes %d of %d requests, %s times its share, because they share a prefix that it holds; it queues while its peers idle", all.hot, all.most, all.n, diagnose.Num(diagnose.Round(float64(all.most)/all.mean(), 1)))
	f.Remedy = "Price the queue against the cache: a warm replica that is behind must lose to an idle one, which then holds the prefix too. Penstock's default policy does; pure affinity does not."
	a.add(f)
}

// herdSpan is the longest time in seconds in which a run of equal picks counts as
// one herd, and herdRun the picks that a run needs.
const herdRun = 10

// herd finds runs of picks of one replica that change from one snapshot to the
// next: everybody followed the same stale reading.
func (a *analysis) herd(replicas int) (diagnose.Finding, bool) {
	type run struct {
		endpoint string
		n        int
		from, to float64
		distinct map[string]bool
	}
	var runs []run
	for i := range a.ds {
		d := &a.ds[i]
		if d.endpoint == "" {
			continue
		}
		if n := len(runs); n > 0 && runs[n-1].endpoint == d.endpoint {
			runs[n-1].n++
			runs[n-1].to = d.at
			runs[n-1].distinct[d.prefix+d.session] = true
			continue
		}
		runs = append(runs, run{endpoint: d.endpoint, n: 1, from: d.at, to: d.at, distinct: map[string]bool{d.prefix + d.session: true}})
	}
	inRuns, total, targets := 0, 0, map[string]bool{}
	longest := run{}
	for _, r := range runs {
		total += r.n
		if r.n < herdRun {
			continue
		}
		inRuns += r.n
		targets[r.endpoint] = true
		if r.n > longest.n {
			longest = r
		}
	}
	if total < 2*enough || float64(inRuns) < 0.7*float64(total) {
		return diagnose.Finding{}, false
	}
	// One replica for ever is no herd, unless the whole recording is one burst of
	// requests that have nothing in common.
	if len(targets) < 2 && (len(longest.distinct) < longest.n/2 || longest.distinct[""]) {
		return diagnose.Finding{}, false
	}
	all := spreadOf(a.ds, replicas)
	low := all.n
	for _, c := range all.counts {
		low = min(low, c)
	}
	if len(all.counts) < replicas {
		low = 0
	}
	f := a.new("herd-between-scrapes", longest.endpoint, 0)
	f.Evidence = []diagnose.Evidence{
		diagnose.Ev("longest_run", longest.n, "requests"), diagnose.Ev("run_seconds", longest.to-longest.from, "s"), diagnose.Ev("in_runs", inRuns, "requests"),
		diagnose.Ev("requests", total, ""), diagnose.Ev("per_replica_ideal", all.mean(), "requests"), diagnose.Ev("per_replica_min", low, "requests"), diagnose.Ev("per_replica_max", all.most, "requests"),
	}
	if iv := a.scrapeInterval(); known(iv) {
		f.Evidence = append(f.Evidence, diagnose.Ev("snapshot_interval", iv, "s"))
	}
	f.Message = fmt.Sprintf("up to %d requests in a row went to one replica (%s), then to the next: all of them followed the same reading until the next scrape", longest.n, longest.endpoint)
	f.Remedy = "Add what was sent since the last scrape to each replica's reading, and break ties by a hash or at random; scraping faster only moves the cost to the engines."
	return f, true
}

// scrapeInterval is the middle of the times between new snapshots.
func (a *analysis) scrapeInterval() float64 {
	var gaps []float64
	last, at := uint64(0), 0.0
	for i := range a.ds {
		d := &a.ds[i]
		if d.snapshot == 0 || d.snapshot == last {
			continue
		}
		if last != 0 && d.at > at {
			gaps = append(gaps, d.at-at)
		}
		last, at = d.snapshot, d.at
	}
	if len(gaps) == 0 {
		return unknown
	}
	slices.Sort(gaps)
	return diagnose.Round(gaps[len(gaps)/2], 3)
}

// busy reports whether a replica has more than one request at a time and is slower
// than its peers: one request after the other belongs to the warm replica.
func (a *analysis) busy(hot string) bool {
	ratio, _ := a.inFlight(hot)
	if known(ratio) {
		return ratio >= 1.5
	}
	var mine, others []float64
	for i := range a.ds {
		if t := a.ds[i].ttft; known(t) {
			if a.ds[i].endpoint == hot {
				mine = append(mine, t)
			} else {
				others = append(others, t)
			}
		}
	}
	if len(mine) < 5 {
		return false
	}
	if len(others) < 5 { // nothing to compare with: did it become slower under its own load?
		return median(mine[len(mine)/2:]) > 2*median(mine[:max(1, len(mine)/10)])
	}
	return median(mine) > 2*median(others)
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return unknown
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[len(s)/2]
}

// inFlight returns how the requests in flight at a replica compare with the mean,
// and what its peers had, from the decisions' own counts or from the times of the
// requests. Only moments with at least two requests for each replica count.
func (a *analysis) inFlight(hot string) (ratio, others float64) {
	sum, rest, n := 0.0, 0.0, 0.0
	for i := range a.ds {
		d := &a.ds[i]
		total, mine, k := 0.0, unknown, 0
		for _, c := range d.candidates {
			if known(c.inFlight) && !c.dropped {
				total += c.inFlight
				k++
				if c.endpoint == hot {
					mine = c.inFlight
				}
			}
		}
		if k < 2 || !known(mine) || mine < 2 {
			continue
		}
		sum += mine / (total / float64(k))
		rest += (total - mine) / float64(k-1)
		n++
	}
	if n >= 5 {
		return diagnose.Round(sum/n, 3), diagnose.Round(rest/n, 3)
	}
	return a.inFlightByTime(hot)
}

// inFlightByTime rebuilds the requests in flight from arrival and length.
func (a *analysis) inFlightByTime(hot string) (ratio, others float64) {
	type edge struct {
		at    float64
		mine  bool
		delta int
	}
	var edges []edge
	for i := range a.ds {
		d := &a.ds[i]
		if known(d.at) && known(d.e2e) && d.endpoint != "" {
			edges = append(edges, edge{d.at, d.endpoint == hot, 1}, edge{d.at + d.e2e/1000, d.endpoint == hot, -1})
		}
	}
	if len(edges) < 2*enough {
		return unknown, unknown
	}
	slices.SortStableFunc(edges, func(x, y edge) int {
		switch {
		case x.at < y.at:
			return -1
		case x.at > y.at:
			return 1
		}
		return x.delta - y.delta
	})
	r := float64(fleet(a.ds))
	mine, total, area, areaAll, busyTime := 0, 0, 0.0, 0.0, 0.0
	for i, e := range edges {
		if e.mine {
			mine += e.delta
		}
		total += e.delta
		if i+1 < len(edges) && mine >= 2 {
			dt := edges[i+1].at - e.at
			area, areaAll, busyTime = area+dt*float64(mine), areaAll+dt*float64(total), busyTime+dt
		}
	}
	if busyTime == 0 || areaAll == 0 {
		return unknown, unknown
	}
	return diagnose.Round(area/(areaAll/r), 3), diagnose.Round((areaAll-area)/busyTime/math.Max(1, r-1), 3)
}

// samePrefix reports whether the requests of a replica share a prefix, as far as
// prefixes are known; where only cached tokens are known, most of the prompt must
// have been there.
func (a *analysis) samePrefix(hot string) (bool, string) {
	counts := map[string]int{}
	n, warm, m := 0, 0.0, 0
	best, bestN := "", 0
	for i := range a.ds {
		d := &a.ds[i]
		if d.endpoint != hot {
			continue
		}
		if d.prefix != "" {
			n++
			counts[d.prefix]++
			if c := counts[d.prefix]; c > bestN || c == bestN && d.prefix < best {
				best, bestN = d.prefix, c
			}
		}
		c := d.cached
		if !known(c) {
			c = d.predicted
		}
		if known(c) && known(d.prompt) && d.prompt > 0 {
			m++
			warm += c / d.prompt
		}
	}
	switch {
	case n >= enough:
		return bestN*2 > n, best
	case m >= enough:
		return warm/float64(m) >= 0.4, ""
	}
	return false, ""
}
