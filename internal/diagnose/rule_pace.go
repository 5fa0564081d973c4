// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// shortestStart is the shortest start-up time in seconds that a model server was
// ever measured to need with an empty page cache: a tiny model on one CPU core.
// Where no start was observed, only what is below it can be called too short.
const shortestStart = 30

// slowestStart returns the start-up time that pace rules compare with, and where
// it comes from.
func slowestStart(s *Set, name string) (float64, string, bool) {
	if v, ok := s.Seen.SlowestStart(name); ok {
		return v, "observed", true
	}
	return shortestStart, "assumed: the smallest model measured", false
}

// checkPace finds cooldowns and windows that do not do what their author expects
// or that are shorter than a start.
func checkPace(s *Set, k *sink) {
	for i := range s.Scaled {
		so := &s.Scaled[i]
		if !s.scalesModel(so) {
			continue
		}
		if f, bad := cooldownOnlyToZero(so); bad {
			k.add(f)
		}
		if f, bad := cooldownBelowStart(s, so); bad {
			k.add(f)
		}
		if f, bad := windowBelowStart(s, &so.Object, so.Target.Name, &so.Behavior); bad {
			k.add(f)
		}
	}
	for i := range s.HPAs {
		h := &s.HPAs[i]
		model := false
		for j := range h.Metrics {
			model = model || Fact(h.Metrics[j].Name.V).Engine()
		}
		if _, serves, _ := s.targetServes(h.Target, h.Namespace); serves == ServesNo || serves == ServesUnknown && !model {
			continue
		}
		if f, bad := windowBelowStart(s, &h.Object, h.Target.Name, &h.Behavior); bad {
			k.add(f)
		}
	}
}

// scalesModel reports whether a ScaledObject has to do with model servers: by its
// metrics or by its target.
func (s *Set) scalesModel(so *ScaledObject) bool {
	_, serves, _ := s.targetServes(so.Target, so.Namespace)
	if serves == ServesYes {
		return true
	}
	for i := range so.Triggers {
		q := ParseQuery(so.Triggers[i].Metadata.Get("query").V)
		if _, f := queryFact(&q); f.Engine() {
			return true
		}
	}
	return false
}

func cooldownOnlyToZero(so *ScaledObject) (Finding, bool) {
	if !so.Cooldown.Set || so.Cooldown.V == 300 || so.Min.Or(0) < 1 || so.Idle.Set || so.Behavior.Down.Window.Set {
		return Finding{}, false
	}
	f := at(&so.Object, so.Cooldown.At.Line, "cooldown-only-to-zero")
	f.Evidence = []Evidence{Ev("cooldownPeriod", so.Cooldown.V, "s"), Ev("minReplicaCount", so.Min.V, "replicas"), Ev("scale_down_window", 300, "s").From("default of the HPA")}
	f.Message = fmt.Sprintf("cooldownPeriod %d does nothing: it delays only the step to zero, and minReplicaCount is %d; scale-down between %d and more follows the HPA's window of 300 s",
		so.Cooldown.V, so.Min.V, so.Min.V)
	f.Remedy = fmt.Sprintf("advanced:\n  horizontalPodAutoscalerConfig:\n    behavior:\n      scaleDown:\n        stabilizationWindowSeconds: %d", so.Cooldown.V)
	line := fmt.Sprintf("advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: %d}}}}", so.Cooldown.V)
	if so.Behavior.Set {
		return f, true
	}
	if e, ok := addKeys(so.File, so.SpecAt, line); ok {
		f.Edits = []Edit{e}
	}
	return f, true
}

func cooldownBelowStart(s *Set, so *ScaledObject) (Finding, bool) {
	if so.Min.Or(0) != 0 && so.Idle.Or(1) != 0 {
		return Finding{}, false
	}
	start, source, seen := slowestStart(s, so.Target.Name)
	cool := float64(so.Cooldown.Or(300))
	if cool >= start || !seen && !so.Cooldown.Set {
		return Finding{}, false
	}
	f := at(&so.Object, so.Cooldown.Line(so.Line), "cooldown-below-start")
	f.Evidence = []Evidence{Ev("cooldownPeriod", cool, "s"), Ev("start", start, "s").From(source)}
	f.Message = fmt.Sprintf("cooldownPeriod %s is below the start-up time of %s: a replica that is still loading counts as idle and is deleted before it served, and the next request starts it again", Seconds(cool), Seconds(start))
	want := int(max(2*start, 60))
	f.Remedy = fmt.Sprintf("cooldownPeriod: %d   # at least the start-up time; twice that saves restarts", want)
	if so.Cooldown.Set {
		f.Edits = []Edit{replaceField(so.File, so.Cooldown, fmt.Sprint(want))}
	} else if e, ok := addKeys(so.File, so.SpecAt, fmt.Sprintf("cooldownPeriod: %d", want)); ok {
		f.Edits = []Edit{e}
	}
	return f, true
}

func windowBelowStart(s *Set, o *Object, target string, b *Behavior) (Finding, bool) {
	start, source, seen := slowestStart(s, target)
	window := float64(b.Down.Window.Or(300))
	if window >= start || !seen && !b.Down.Window.Set || b.Down.Select.V == "Disabled" || gentle(&b.Down) {
		return Finding{}, false
	}
	f := at(o, b.Down.Window.Line(o.Line), "window-below-start")
	f.Evidence = []Evidence{Ev("scale_down_window", window, "s"), Ev("start", start, "s").From(source)}
	f.Message = fmt.Sprintf("scale-down window (%s) shorter than cold start (%s): a dip in the load removes replicas that the next rise starts again, each time for a start-up time of lost capacity and a cold cache", Seconds(window), Seconds(start))
	want := int(max(300, 2*start))
	f.Remedy = fmt.Sprintf("scaleDown:\n  stabilizationWindowSeconds: %d", want)
	if b.Down.Window.Set {
		f.Edits = []Edit{replaceField(o.File, b.Down.Window, fmt.Sprint(want))}
	}
	return f, true
}

// gentle reports whether the policies let go of at most one replica a minute: then
// a short window cannot empty the fleet.
func gentle(r *ScalingRules) bool {
	if len(r.Policies) == 0 {
		return false
	}
	for _, p := range r.Policies {
		if p.Type != "Pods" || p.Value > 1 || p.Period < 60 {
			return false
		}
	}
	return true
}

// checkBounds finds bounds that contradict each other or what can be placed.
func checkBounds(s *Set, k *sink) {
	type bounds struct {
		o        *Object
		target   TargetRef
		min, max Field[int]
	}
	var all []bounds
	for i := range s.HPAs {
		h := &s.HPAs[i]
		if !h.FromScaler {
			all = append(all, bounds{&h.Object, h.Target, h.Min, h.Max})
		}
	}
	for i := range s.Scaled {
		so := &s.Scaled[i]
		all = append(all, bounds{&so.Object, so.Target, so.Min, so.Max})
	}
	// The first scaler of each target. A copy of an object in another file, as overlays
	// have them, is the same scaler.
	type scaled struct{ namespace, kind, name string }
	first := map[scaled]*Object{}
	for _, b := range all {
		if b.min.Set && b.max.Set && b.min.V > b.max.V {
			f := at(b.o, b.min.At.Line, "min-above-max")
			f.Evidence = []Evidence{Ev("min", b.min.V, "replicas"), Ev("max", b.max.V, "replicas")}
			f.Message = fmt.Sprintf("the minimum of %d is above the maximum of %d: the object is refused", b.min.V, b.max.V)
			f.Remedy = "Swap the two, or raise the maximum."
			k.add(f)
		}
		on := scaled{b.o.Namespace, b.target.Kind, b.target.Name}
		switch other := first[on]; {
		case b.target.Name == "":
		case other == nil:
			first[on] = b.o
		case other.Ref() != b.o.Ref():
			f := at(b.o, b.target.Line, "two-scalers")
			f.Evidence = []Evidence{{Name: "first", Value: other.Ref()}, {Name: "second", Value: b.o.Ref()}, {Name: "target", Value: b.target.Name}}
			f.Message = fmt.Sprintf("%s and %s both scale %s: each undoes what the other did", other.Ref(), b.o.Ref(), b.target.Name)
			f.Remedy = "Keep one of them; several metrics belong into one object, which takes the largest."
			k.add(f)
		}
		if w := s.Target(b.target, b.o.Namespace); w != nil && b.max.Set {
			checkQuota(s, k, b.o, b.max.At.Line, b.max.V, w.Pod.GPUs(), w.Namespace)
		}
	}
	if p := &s.Seen; p.GPUQuota.Set && p.GPUsPer.Set && p.Max.Set {
		o := &Object{File: p.File, Line: p.Max.At.Line, Name: p.File}
		reportQuota(k, o, p.Max.At.Line, p.Max.V, p.GPUsPer.V, p.GPUQuota.V, "policy")
	}
}

func checkQuota(s *Set, k *sink, o *Object, line, most, perReplica int, ns string) {
	if perReplica <= 0 {
		return
	}
	for i := range s.Quotas {
		q := &s.Quotas[i]
		if q.Namespace != ns && ns != "" && q.Namespace != "" {
			continue
		}
		for _, h := range q.Hard {
			if isGPUResource(h.Name) {
				reportQuota(k, o, line, most, perReplica, int(h.Q.V), q.Ref())
			}
		}
	}
}

func reportQuota(k *sink, o *Object, line, most, perReplica, quota int, source string) {
	if perReplica <= 0 || most*perReplica <= quota {
		return
	}
	can := quota / perReplica
	f := at(o, line, "max-above-quota")
	f.Evidence = []Evidence{
		Ev("max", most, "replicas"), Ev("gpus_per_replica", perReplica, "GPUs"), Ev("needed", most*perReplica, "GPUs"),
		Ev("quota", quota, "GPUs").From(source), Ev("effective_max", can, "replicas"),
	}
	f.Message = fmt.Sprintf("%d replicas need %d x %d = %d GPUs and the quota is %d: replicas above %d are never created while the scaler believes that it scaled", most, most, perReplica, most*perReplica, quota, can)
	f.Remedy = fmt.Sprintf("Lower the maximum to %d, or raise the quota to %d GPUs.", can, most*perReplica)
	k.add(f)
}

// checkAdapter finds adapter rules that add up the queues of all models of a
// namespace.
func checkAdapter(s *Set, k *sink) {
	for i := range s.AdapterRules {
		r := &s.AdapterRules[i]
		text := r.MetricsQuery.V
		if text == "" || strings.Contains(text, "<<") {
			continue // the adapter fills in what the object asks for
		}
		q := ParseQuery(text)
		_, fact := queryFact(&q)
		if !q.OK || !fact.Engine() || fact.Kind == KindReplicas || byModel(text, &q) || q.Outer == "" {
			continue
		}
		o := Object{File: r.File, Line: r.Line, Kind: "adapter rule", Name: r.As}
		f := at(&o, r.MetricsQuery.Line(r.Line), "namespace-mixed-models")
		f.Evidence = []Evidence{{Name: "query", Value: text}}
		f.Message = "the query adds up every model of the namespace: the queue of one model scales the other"
		f.Remedy = "Group by the model as well, and select it in the HPA: sum by(namespace, model_name) (...)"
		k.add(f)
	}
}

func byModel(text string, q *Query) bool {
	for _, label := range [...]string{"model_name", "model", "name", "pod", "service", "job", "inference_pool", "pool", "deployment", "app", "target_model_name"} {
		if slices.Contains(q.Pinned, label) {
			return true
		}
		for _, by := range [...]string{"by(", "by ("} {
			for rest := text; ; {
				_, after, ok := strings.Cut(rest, by)
				if !ok {
					break
				}
				list, _, _ := strings.Cut(after, ")")
				for l := range strings.SplitSeq(list, ",") {
					if strings.TrimSpace(l) == label {
						return true
					}
				}
				rest = after
			}
		}
	}
	return false
}
