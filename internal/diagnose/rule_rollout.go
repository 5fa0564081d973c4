// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strconv"
	"strings"
)

// rollout is what a Deployment's strategy means for its count of replicas.
type rollout struct {
	surge, unavail int
	known          bool
}

// effectiveRollout resolves a strategy as the Deployment controller does: 25 % each
// where unset, surge rounded up, unavailable rounded down.
func effectiveRollout(w *Workload) rollout {
	n := w.Replicas.Or(1)
	surge, ok1 := resolveCount(w.Strategy.Surge, n, true)
	unavail, ok2 := resolveCount(w.Strategy.Unavail, n, false)
	if !ok1 || !ok2 {
		return rollout{}
	}
	return rollout{surge: surge, unavail: unavail, known: true}
}

func resolveCount(f Field[string], n int, up bool) (int, bool) {
	if !f.Set {
		return percentOf(25, n, up), true
	}
	if pct, ok := strings.CutSuffix(f.V, "%"); ok {
		v, err := strconv.ParseFloat(pct, 64)
		return percentOf(v, n, up), err == nil
	}
	v, err := strconv.Atoi(f.V)
	return v, err == nil
}

// checkRollout finds rolling updates that cannot place their new pod.
func checkRollout(s *Set, k *sink) {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if w.Kind != "Deployment" || w.Strategy.Type.Or("RollingUpdate") != "RollingUpdate" {
			continue
		}
		r := effectiveRollout(w)
		if !r.known {
			continue
		}
		if r.surge == 0 && r.unavail == 0 {
			f := at(&w.Object, w.Strategy.Line, "rollout-both-zero")
			f.Evidence = []Evidence{Ev("maxSurge", 0, "replicas"), Ev("maxUnavailable", 0, "replicas"), Ev("replicas", w.Replicas.Or(1), "replicas")}
			f.Message = "maxSurge and maxUnavailable are both zero: nothing may start and nothing may stop, and the object is refused"
			f.Remedy = "maxSurge: 0\nmaxUnavailable: 1"
			f.Edits = strategyEdits(w)
			k.add(f)
			continue
		}
		if f, bad := deadlock(s, w, r); bad {
			k.add(f)
		}
	}
}

// deadlock decides from the nodes, or from events of a rollout that is stuck.
func deadlock(s *Set, w *Workload, r rollout) (Finding, bool) {
	gpus := w.Pod.GPUs()
	if gpus == 0 || r.unavail > 0 {
		return Finding{}, false
	}
	n := w.Replicas.Or(1)
	stuck := stuckEvent(s, w.Name)
	f := at(&w.Object, w.Strategy.Line, "rollout-deadlock")
	f.Evidence = []Evidence{
		Ev("replicas", n, "replicas"), Ev("gpus_per_replica", gpus, "GPUs"),
		Ev("maxSurge", r.surge, "replicas").From("effective"), Ev("maxUnavailable", r.unavail, "replicas").From("effective"),
	}
	if len(s.Seen.Nodes) > 0 {
		total, used := 0, 0
		fits := false
		for _, nd := range s.Seen.Nodes {
			total, used = total+nd.GPUs, used+nd.Used
			fits = fits || nd.GPUs-nd.Used >= gpus
		}
		used = max(used, n*gpus) // this Deployment's own pods hold theirs
		fits = fits && total-used >= gpus
		f.Evidence = append(f.Evidence, Ev("gpus_total", total, "GPUs"), Ev("gpus_free", max(0, total-used), "GPUs"), Ev("gpus_needed", r.surge*gpus, "GPUs"))
		if fits {
			return Finding{}, false
		}
	} else if !stuck {
		return Finding{}, false // whether there is room cannot be known
	}
	f.Evidence = append(f.Evidence, Evidence{Name: "verdict", Value: "deadlock"})
	f.Message = fmt.Sprintf("a rolling update waits forever: the new pod needs %s that the old ones hold, and none of the %s may stop before the new one is ready (maxSurge %d, maxUnavailable %d)",
		Plural(gpus, "GPU"), Plural(n, "replica"), r.surge, r.unavail)
	if stuck {
		f.Message += "; the events show one that is stuck now"
		f.Evidence = append(f.Evidence, Evidence{Name: "stuck_now", Value: true, Age: "events"})
	}
	price := "a replica less during the rollout"
	if n == 1 {
		price = "no replica for the length of a start"
	}
	f.Remedy = "strategy:\n  type: RollingUpdate\n  rollingUpdate:\n    maxSurge: 0\n    maxUnavailable: 1   # the price: " + price
	f.Edits = strategyEdits(w)
	return f, true
}

// stuckEvent reports whether events show a rollout of that Deployment that cannot
// place its pod.
func stuckEvent(s *Set, name string) bool {
	deadline, noGPU := false, false
	for i := range s.Seen.Events {
		e := &s.Seen.Events[i]
		mine := strings.Contains(e.Object, name) || e.Object == ""
		deadline = deadline || mine && e.Reason == "ProgressDeadlineExceeded"
		noGPU = noGPU || mine && e.Reason == "FailedScheduling" && strings.Contains(e.Message, "Insufficient") && strings.Contains(e.Message, "gpu")
	}
	return deadline && noGPU
}

func strategyEdits(w *Workload) []Edit {
	if w.Strategy.Surge.Set && w.Strategy.Unavail.Set {
		return []Edit{replaceField(w.File, w.Strategy.Surge, "0"), replaceField(w.File, w.Strategy.Unavail, "1")}
	}
	if w.Strategy.Set {
		return nil
	}
	if e, ok := addKeys(w.File, w.SpecAt, "strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}"); ok {
		return []Edit{e}
	}
	return nil
}

// checkDisruption finds budgets that keep a node from ever being drained.
func checkDisruption(s *Set, k *sink) {
	for i := range s.PDBs {
		p := &s.PDBs[i]
		w := s.selected(p.Selector, p.Namespace)
		if p.Exprs || len(p.Selector) == 0 || w == nil {
			continue
		}
		if _, serves := w.Pod.Serves(); serves == ServesNo {
			continue
		}
		n := w.Replicas.Or(1)
		allowed, known := disruptionsAllowed(p, n)
		if !known || allowed > 0 || n == 0 || s.scaled(w) {
			continue
		}
		line, what := p.MinAvail.Line(0), "minAvailable "+p.MinAvail.V
		if p.MaxUnv.Set {
			line, what = p.MaxUnv.Line(0), "maxUnavailable "+p.MaxUnv.V
		}
		f := at(&p.Object, line, "pdb-blocks-drain")
		f.Evidence = []Evidence{Ev("replicas", n, "replicas"), Ev("disruptions_allowed", 0, "replicas"), {Name: "selects", Value: w.Ref()}}
		f.Message = fmt.Sprintf("%s of %s allows no disruption at all: a node that runs one of them can never be drained, and node upgrades hang", what, Plural(n, "replica"))
		f.Remedy = "maxUnavailable: 1"
		if p.MaxUnv.Set {
			f.Edits = []Edit{replaceField(p.File, p.MaxUnv, "1")}
		} else {
			f.Edits = []Edit{renameKey(p.File, p.MinAvail, "maxUnavailable"), replaceField(p.File, p.MinAvail, "1")}
		}
		k.add(f)
	}
}

func disruptionsAllowed(p *PDB, n int) (int, bool) {
	switch {
	case p.MaxUnv.Set:
		return resolveUp(p.MaxUnv.V, n)
	case p.MinAvail.Set:
		v, ok := resolveUp(p.MinAvail.V, n)
		return n - v, ok
	}
	return 0, false
}

// resolveUp resolves a count or a percentage as the disruption controller does:
// rounded up.
func resolveUp(s string, n int) (int, bool) {
	if pct, ok := strings.CutSuffix(s, "%"); ok {
		v, err := strconv.ParseFloat(pct, 64)
		return percentOf(v, n, true), err == nil
	}
	v, err := strconv.Atoi(s)
	return v, err == nil
}

// selected returns the workload whose pods have all the labels, nil where none
// does.
func (s *Set) selected(sel Pairs, ns string) *Workload {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if sameNamespace(w.Namespace, ns) && matches(w.Pod.Labels, sel) {
			return w
		}
	}
	return nil
}

func matches(labels, sel Pairs) bool {
	if len(sel) == 0 || len(labels) == 0 {
		return false
	}
	for _, p := range sel {
		if l := labels.Get(p.Name); !l.Set || l.V != p.Value.V {
			return false
		}
	}
	return true
}

// scaled reports whether an autoscaler changes the count of a workload.
func (s *Set) scaled(w *Workload) bool {
	for i := range s.HPAs {
		if s.HPAs[i].Target.Name == w.Name {
			return true
		}
	}
	for i := range s.Scaled {
		if s.Scaled[i].Target.Name == w.Name {
			return true
		}
	}
	return false
}
