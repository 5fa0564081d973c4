// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/scale"
)

func ceilInt(v float64) int { return int(math.Ceil(v - 1e-9)) }

// proposal plays the HPA controller with AverageValue on what waits, over the
// recorded rows.
func (a *analysis) proposal(n, high float64) Replay {
	r := Replay{Rule: fmt.Sprintf("HPA on waiting requests, AverageValue %s", diagnose.Num(a.target())), Steps: []Step{}}
	most := int(n) * 100
	if known(high) {
		most = int(high)
	}
	spec := diagnose.ControllerSpec(int(n), most, nil)
	var h scale.HPA
	cur, has := int(n), false
	r.step(&cur, &has, a.h.rows[0].t, int(n))
	for i := range a.h.rows {
		row := &a.h.rows[i]
		if !known(row.waiting) {
			continue
		}
		res := h.Sync(&spec, scale.HPAInput{Now: row.t, Spec: cur, Status: cur, Ready: int(n), Metrics: []scale.HPAMetric{
			{Source: scale.ExternalMetric, Type: scale.AverageValue, Target: a.target(), Usage: row.waiting},
		}})
		if known(high) && res.Raw > most {
			r.Limited = "maxReplicas " + diagnose.Num(high)
		}
		r.step(&cur, &has, row.t, res.Desired)
	}
	if r.FirstUp != nil && known(a.cold) {
		v := *r.FirstUp + a.cold
		r.HelpsFrom = &v
	}
	return r
}

// pending replays two rules where the history has the load of every ready replica
// and its target: one that counts ready replicas only, and one that counts what was
// asked for already.
func (a *analysis) pending() {
	h := a.h
	if !h.has["target"] || !h.has["ready"] || !h.has["running_per_ready"] && !h.has["running"] {
		return
	}
	naive := Replay{Rule: "count x ratio of the ready replicas (pending not counted)", Steps: []Step{}}
	counted := Replay{Rule: "ceil(load / target), pending counted once", Steps: []Step{}}
	spec, seen := 0, 0
	lastNaive, lastCounted, has1, has2 := 0, 0, false, false
	for i := range h.rows {
		r := &h.rows[i]
		if !known(r.ready) || !known(r.target) || r.target <= 0 || !known(r.running) {
			continue
		}
		load := r.running
		if known(r.waiting) {
			load += r.waiting
		}
		if spec == 0 {
			spec = max(int(r.ready), 1)
			seen = spec
		}
		if r.ready > 0 {
			spec = max(spec, min(ceilInt(float64(spec)*load/(r.target*r.ready)), 1<<20))
		}
		need := ceilInt(load / r.target)
		if need > seen {
			seen = need
		}
		naive.step(&lastNaive, &has1, r.t, spec)
		counted.step(&lastCounted, &has2, r.t, seen)
	}
	a.rep = append(a.rep, counted, naive)
}

// cascade finds a count that doubles while the ready replicas stay the same.
func (a *analysis) cascade() bool {
	h := a.h
	want := func(r *row) float64 {
		if h.has["desired"] && known(r.desired) {
			return r.desired
		}
		return r.replicas
	}
	steps, first, ready := 0, -1, unknown
	var list []int
	for i := range h.rows {
		r := &h.rows[i]
		v := want(r)
		if !known(v) || !known(r.ready) {
			continue
		}
		if first >= 0 && known(ready) && r.ready <= ready && len(list) > 0 && v >= 1.5*float64(list[len(list)-1]) {
			steps++
		} else if known(ready) && r.ready > ready {
			steps = 0
			list = nil
		}
		if first < 0 {
			first = i
		}
		if len(list) == 0 && known(r.replicas) && r.replicas != v {
			list = append(list, int(r.replicas))
		}
		if len(list) == 0 || int(v) != list[len(list)-1] {
			list = append(list, int(v))
		}
		ready = r.ready
	}
	if steps < 1 || len(list) < 3 || list[len(list)-1] < 3*int(ready) {
		return false
	}
	f := a.new("pending-cascade", h.rows[first].line)
	need := list[1]
	f.Evidence = []diagnose.Evidence{
		diagnose.Ev("ready", ready, "replicas"), {Name: "desired", Value: list}, diagnose.Ev("needed", need, "replicas"),
		diagnose.Ev("surplus", list[len(list)-1]-need, "replicas"), a.coldEvidence(),
	}
	f.Message = fmt.Sprintf("the desired count goes %s while %s replicas stay ready: the replicas that were asked for load, the ready ones stay hot, and the scaler asks again", arrows(list), diagnose.Num(ready))
	f.Remedy = fmt.Sprintf("Count what was asked for: desired %d (ready %s, starting %s), no further step until they are ready or overdue. With an HPA use AverageValue on a total, which divides by nothing; for the AIBrix and Knative scalers limit the step (one per start-up time).", need, diagnose.Num(ready), diagnose.Num(float64(need)-ready))
	a.add(f)
	return true
}

func arrows(list []int) string {
	s := ""
	for i, v := range list {
		if i > 0 {
			s += " -> "
		}
		s += fmt.Sprint(v)
	}
	return s
}

// runaway finds a count that doubles although the replicas become ready and the
// signal stays the same: the ratio is multiplied by the count.
func (a *analysis) runaway() bool {
	h := a.h
	ch := h.changes(replicasOf)
	if len(ch) < 3 || !h.has["waiting"] {
		return false
	}
	for i, c := range ch {
		if c.to < 2*c.from-1 || i > 0 && c.from != ch[i-1].to {
			return false
		}
	}
	w := h.series(waitingOf)
	if len(w) < 3 || minOf(w) <= 0 || maxOf(w)/minOf(w) > 1.3 {
		return false
	}
	ready := h.series(func(r *row) float64 { return r.ready })
	if len(ready) > 0 && maxOf(ready) < float64(ch[len(ch)-1].from)/2 {
		return false // they are pending: a cascade
	}
	var list []int
	list = append(list, ch[0].from)
	for _, c := range ch {
		list = append(list, c.to)
	}
	f := a.new("runaway", ch[0].line)
	f.Evidence = []diagnose.Evidence{{Name: "replicas", Value: list}, diagnose.Ev("signal_min", minOf(w), ""), diagnose.Ev("signal_max", maxOf(w), "")}
	f.Message = fmt.Sprintf("the count goes %s while the signal stays between %s and %s: the ratio is multiplied by the count at every sync", arrows(list), diagnose.Num(minOf(w)), diagnose.Num(maxOf(w)))
	f.Remedy = "The target is of type Value on a total: use AverageValue."
	a.add(f)
	return true
}
