// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Policy is what an operator wants of one pool, and what is known of its replicas
// beforehand. The zero value of every field but Capacity has a meaning.
type Policy struct {
	Pool string
	Min  int // replicas; 0: the pool may be empty
	Max  int // replicas; 0: no bound

	// Capacity is the work in units per second that n replicas carry at the
	// objective, index n from 0 (capacity 0) on; at least two entries, rising.
	// Beyond the table every further replica adds what the last one carries on
	// average. The unit is free: offered work is measured in the same.
	Capacity []float64
	// StartUp is the start-up time in seconds that is believed before any was
	// seen; 0: 120 s.
	StartUp float64
	// Starts are start-up times in seconds that an earlier run learned, oldest first.
	Starts []float64

	// Attainment is the share of requests that shall meet their objectives: 0.95,
	// 0.98, 0.99 or 0.995; 0: 0.99. It sets how much of the offered work a shadow
	// may have missed.
	Attainment float64

	StepUp, StepDown int     // most replicas of one change; 0: no bound
	StartsPerMinute  float64 // most replicas started in any minute; 0: no bound
	// Reversals is the most changes of direction an hour; 0: 6, negative: no bound.
	Reversals int
	Floors    []Floor        // standing minima by time of day
	Zone      *time.Location `json:"-"` // of the floors; nil: UTC

	// AcceleratorsPerReplica and Accelerators bound the pool by a quota: at most
	// Accelerators / AcceleratorsPerReplica replicas. 0: no bound.
	AcceleratorsPerReplica, Accelerators int
	// Priority is that of the pool among those that share accelerators; the higher
	// are served first.
	Priority int

	// IdleAfter is how long nothing may be offered before a pool with Min 0 goes
	// to zero, in seconds. 0: 300 s. It is never shorter than a start-up, and the
	// delay of every step down comes on top.
	IdleAfter float64
	// ClientTimeout is how long clients wait for an answer that is held, in
	// seconds; 0: 60 s. What waits longer is no demand.
	ClientTimeout float64

	TTFT, ITL float64 // objectives in seconds; 0: not judged

	Tuning *Tuning // nil: DefaultTuning
	// Fixed lets rule Fixed-1 of the grid rule for ever; 0: the cheapest rules. It is
	// for judging rules one by one.
	Fixed int
	// Explain fills in what only a reader of a recommendation needs: rules, signals,
	// victims, conditions and the sentence.
	Explain bool
}

// Floor is a minimum for a part of the day, in the time zone of the pool.
type Floor struct {
	From, To int // minutes since midnight; a floor with To <= From spans midnight
	Days     [7]bool
	Min      int
}

// covers reports whether the floor holds at a wall-clock moment. A floor that names
// no day holds on all.
func (f *Floor) covers(t time.Time) bool {
	m := t.Hour()*60 + t.Minute()
	day := t.Weekday()
	in := m >= f.From && m < f.To
	if f.To <= f.From {
		in = m >= f.From || m < f.To
		if m < f.To { // the part after midnight belongs to the day before
			day = (day + 6) % 7
		}
	}
	return in && (f.Days == [7]bool{} || f.Days[day])
}

// Validate reports all that is wrong with the policy, joined.
func (p *Policy) Validate() error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("pool %q: "+format, append([]any{p.Pool}, a...)...))
	}
	if p.Min < 0 || p.Max < 0 || p.Max > 0 && p.Min > p.Max {
		bad("min %d and max %d: want 0 <= min <= max", p.Min, p.Max)
	}
	if len(p.Capacity) < 2 {
		bad("no capacity: a pool without an engine profile cannot be scaled by work")
	}
	for n := 1; n < len(p.Capacity); n++ {
		if !(p.Capacity[n] > p.Capacity[n-1]) || math.IsInf(p.Capacity[n], 0) {
			bad("capacity of %d replicas is %v, of %d it is %v: want it to rise", n, p.Capacity[n], n-1, p.Capacity[n-1])
			break
		}
	}
	for _, v := range []struct {
		name string
		v    float64
	}{{"startUp", p.StartUp}, {"startsPerMinute", p.StartsPerMinute}, {"idleAfter", p.IdleAfter}, {"clientTimeout", p.ClientTimeout}, {"ttft", p.TTFT}, {"itl", p.ITL}} {
		if !(v.v >= 0) || math.IsInf(v.v, 0) {
			bad("%s = %v, want a number of at least 0", v.name, v.v)
		}
	}
	if p.Attainment != 0 && (p.Attainment < 0.5 || p.Attainment > 0.999) {
		bad("attainment = %v, want a share between 0.5 and 0.999", p.Attainment)
	}
	if p.StepUp < 0 || p.StepDown < 0 {
		bad("stepUp %d and stepDown %d: want at least 0", p.StepUp, p.StepDown)
	}
	for _, f := range p.Floors {
		if f.From < 0 || f.From >= 1440 || f.To < 0 || f.To > 1440 || f.Min < 0 {
			bad("floor %d from minute %d to %d: want minutes of a day and a minimum of at least 0", f.Min, f.From, f.To)
		}
	}
	if q := p.quota(); q >= 0 && q < p.Min {
		bad("min %d needs %d accelerators, the quota is %d", p.Min, p.Min*p.AcceleratorsPerReplica, p.Accelerators)
	}
	return errors.Join(errs...)
}

// quota is the number of replicas that the accelerators allow; -1: no bound.
func (p *Policy) quota() int {
	if p.Accelerators <= 0 || p.AcceleratorsPerReplica <= 0 {
		return -1
	}
	return p.Accelerators / p.AcceleratorsPerReplica
}

// EffectiveMax is the largest number of replicas that the policy can reach, and
// what bounds it: "max", "accelerators", or "" where nothing does (then n is -1).
func (p *Policy) EffectiveMax() (n int, by string) {
	n = -1
	if p.Max > 0 {
		n, by = p.Max, "max"
	}
	if q := p.quota(); q >= 0 && (n < 0 || q < n) {
		n, by = q, "accelerators"
	}
	return n, by
}

func (p *Policy) attainment() float64 {
	if p.Attainment == 0 {
		return 0.99
	}
	return p.Attainment
}

func (p *Policy) startUp() float64 {
	if p.StartUp == 0 {
		return 120
	}
	return p.StartUp
}

func (p *Policy) clientTimeout() float64 {
	if p.ClientTimeout == 0 {
		return 60
	}
	return p.ClientTimeout
}

// downPhases is the most phases of going down an hour; 0: no bound. Every phase
// down and the phase up before it are two reversals.
func (p *Policy) downPhases() int {
	switch {
	case p.Reversals < 0:
		return 0
	case p.Reversals == 0:
		return 3
	}
	return max(1, p.Reversals/2)
}
