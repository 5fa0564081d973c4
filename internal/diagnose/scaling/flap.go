// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"fmt"
	"math"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// swing is a step in the other direction than the one before.
type swing struct {
	at   float64
	from int
	to   int
}

// swings merges steps of one direction and returns the reversals in order.
func swings(ch []change) []swing {
	var out []swing
	for _, c := range ch {
		up := c.to > c.from
		if n := len(out); n > 0 && (out[n-1].to > out[n-1].from) == up {
			out[n-1].to = c.to
			continue
		}
		out = append(out, swing{c.at, c.from, c.to})
	}
	return out
}

// dayLike is the time in seconds between rises from which a rhythm is one of the
// traffic and not of the scaler.
const dayLike = 7200

// flapping finds a count that goes up and down and up again within times in which
// a replica can hardly start.
func (a *analysis) flapping() bool {
	ch := a.h.changes(replicasOf)
	sw := swings(ch)
	if len(sw) < 3 {
		return false
	}
	var rises []float64
	low, high := math.MaxInt, 0
	for _, s := range sw {
		if s.to > s.from {
			rises = append(rises, s.at)
		}
		low, high = min(low, s.from, s.to), max(high, s.from, s.to)
	}
	if len(rises) < 2 {
		return false
	}
	period := (rises[len(rises)-1] - rises[0]) / float64(len(rises)-1)
	hold := a.shortestHold(sw)
	if period > dayLike || known(a.cold) && hold > 3*a.cold && hold > 600 {
		return false
	}
	amplitude := 0
	for _, s := range sw {
		amplitude = max(amplitude, abs(s.to-s.from))
	}
	f := a.new("flapping", ch[0].line)
	window, windowSet := a.downWindow()
	f.Evidence = []diagnose.Evidence{
		diagnose.Ev("low", low, "replicas"), diagnose.Ev("high", high, "replicas"), diagnose.Ev("period", diagnose.Round(period, 1), "s"),
		diagnose.Ev("amplitude", amplitude, "replicas"), diagnose.Ev("reversals", len(sw)-1, ""), diagnose.Ev("shortest_hold", hold, "s"), a.coldEvidence(),
	}
	cause, setting := a.flapCause(window, windowSet, hold)
	f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "cause", Value: cause})
	if known(a.cold) {
		f.Evidence = append(f.Evidence, diagnose.Ev("cost_of_a_cycle", diagnose.Round(float64(amplitude)*a.cold, 0), "replica-seconds of starting"))
	}
	f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "changes", Value: a.changeText(ch)})
	after := a.held(ch, window)
	a.rep = append(a.rep, after)
	f.Evidence = append(f.Evidence, diagnose.Ev("changes_recorded", len(ch), ""), diagnose.Ev("changes_with_hold", after.Changes, "").From("replay"))
	f.Message = fmt.Sprintf("the count swings between %d and %d with a period of about %s: %s", low, high, diagnose.Seconds(diagnose.Round(period, 0)), cause)
	if known(a.cold) {
		f.Message += fmt.Sprintf("; each swing starts %d replicas for %s and throws their caches away again, which is dearer than keeping them", amplitude, diagnose.Seconds(a.cold))
	}
	f.Remedy = setting + fmt.Sprintf("\nWith a scale-down over the maximum of the window the same readings give %s instead of %d.", diagnose.Plural(after.Changes, "change"), len(ch))
	a.add(f)
	return true
}

func abs(v int) int { return max(v, -v) }

// shortestHold is the shortest time between a step and its reversal.
func (a *analysis) shortestHold(sw []swing) float64 {
	best := math.Inf(1)
	for i := 1; i < len(sw); i++ {
		best = min(best, sw[i].at-sw[i-1].at)
	}
	return best
}

// flapCause names the setting that lets the fleet flap and what to set instead.
func (a *analysis) flapCause(window float64, set bool, hold float64) (cause, setting string) {
	want := 300.0
	if known(a.cold) {
		want = max(300, 2*a.cold)
	}
	setting = fmt.Sprintf("behavior:\n  scaleDown:\n    stabilizationWindowSeconds: %s", diagnose.Num(math.Ceil(want)))
	switch {
	case known(window) && known(a.cold) && window < a.cold:
		return fmt.Sprintf("scale-down window (%s s) shorter than cold start (%s s)", diagnose.Num(window), diagnose.Num(a.cold)) + a.nearTarget(), setting
	case known(window) && window <= hold && !set:
		return "the load itself, or a target near the operating point: the scale-down window is not shorter than the swings" + a.nearTarget(), setting + "\nGive the target a distance from the operating point (tolerance, or a lower target)."
	case known(a.cold) && hold < a.cold:
		return fmt.Sprintf("replicas are removed %s after they were asked for, before or just as they became ready (cold start %s)", diagnose.Seconds(hold), diagnose.Seconds(a.cold)) + a.nearTarget(), setting
	case hold <= 60:
		return "noise of the reading: the count follows single samples" + a.nearTarget(), setting + "\nUse the maximum over a window for scale-down, and an average of a minute for scale-up."
	}
	return "not known: neither the scale-down window nor the cold start is given (--cold-start)" + a.nearTarget(), setting
}

// nearTarget says whether the signal hovers about the target, where every noise
// crosses it.
func (a *analysis) nearTarget() string {
	target, ok := a.setting("target_waiting_per_replica", "target_waiting", "threshold")
	if !ok || target <= 0 {
		return ""
	}
	above, below := false, false
	for i := range a.h.rows {
		r := &a.h.rows[i]
		if known(r.waiting) && known(r.replicas) && r.replicas > 0 {
			above = above || r.waiting/r.replicas > target*1.1
			below = below || r.waiting/r.replicas < target*0.9
		}
	}
	if above && below {
		return fmt.Sprintf(", and the target of %s waiting per replica lies near the operating point", diagnose.Num(target))
	}
	return ""
}

// changeText lists which sample caused each change.
func (a *analysis) changeText(ch []change) []string {
	var out []string
	for _, c := range ch {
		s := fmt.Sprintf("t=%s: %d -> %d", diagnose.Num(c.at), c.from, c.to)
		if c.before != nil {
			var why []string
			if known(c.before.waiting) {
				why = append(why, "waiting "+diagnose.Num(c.before.waiting))
			}
			if known(c.before.ttft) {
				why = append(why, "TTFT "+diagnose.Num(c.before.ttft)+" ms")
			}
			if len(why) > 0 {
				s += " after " + strings.Join(why, ", ") + " at t=" + diagnose.Num(c.before.t)
			}
		}
		out = append(out, s)
		if len(out) == 20 {
			break
		}
	}
	return out
}

// held replays the recorded counts as recommendations: up at once, down only to
// the largest one of the last window, which is at least twice the cold start.
func (a *analysis) held(ch []change, window float64) Replay {
	win := 300.0
	if known(a.cold) {
		win = max(win, 2*a.cold)
	}
	r := Replay{Rule: fmt.Sprintf("scale-down to the maximum of the last %s", diagnose.Seconds(win)), Steps: []Step{}}
	n, has := 0, false
	for i := range a.h.rows {
		cur := &a.h.rows[i]
		if !known(cur.replicas) {
			continue
		}
		most := 0
		for j := i; j >= 0 && a.h.rows[j].t > cur.t-win; j-- {
			if v := a.h.rows[j].replicas; known(v) {
				most = max(most, int(v))
			}
		}
		r.step(&n, &has, cur.t, most)
	}
	return r
}

// step notes a count of a replay where it differs from the last one.
func (r *Replay) step(n *int, has *bool, t float64, v int) {
	r.MaxReplicas = max(r.MaxReplicas, v)
	if !*has {
		*n, *has = v, true
		r.Steps = append(r.Steps, Step{t, v})
		return
	}
	if v == *n {
		return
	}
	if v > *n && r.FirstUp == nil {
		at := t
		r.FirstUp = &at
	}
	*n = v
	r.Changes++
	r.Steps = append(r.Steps, Step{t, v})
}
