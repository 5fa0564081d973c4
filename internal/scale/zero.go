// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
)

// clearing is the time in seconds within which what was held is worked off once
// replicas are ready, besides what keeps coming.
const clearing = 120.0

// wakeSlack is the part of a replica that is not worth another one: a single request
// wakes one replica and not two.
const wakeSlack = 0.05

// zeroState follows a pool to zero and back.
type zeroState struct {
	last      fleet.Time // of the last offered work
	first     fleet.Time // of the first offered work since the pool was cold
	work      float64    // offered since first
	count     int
	cold      bool // nothing is ready, and nothing was when first was offered
	woken     int  // replicas that the wake asked for
	returning bool // what the wake needed beyond the steady number goes back
	readyAt   fleet.Time
}

func (z *zeroState) offered(now fleet.Time, work float64) {
	z.last = now
	if !z.cold {
		return
	}
	if z.first == 0 {
		z.first, z.work, z.count = now, 0, 0
	}
	z.work += work
	z.count++
}

// wakeNumber is how many replicas a pool without any needs for what it holds:
// N(r) + r * min(start, client's time-out) / 120 s, where r is what has been offered
// a second since the first held request. The second term clears what piles up
// until the first replica is ready; more of it has left by then.
func (s *Scaler) wakeNumber(now fleet.Time) (int, float64) {
	z := &s.zero
	age := math.Max(1, now.Seconds(z.first))
	r := z.work / age
	if z.count < 2 { // one request is no rate: spread it over the clearing time
		r = z.work / math.Max(age, clearing)
	}
	late := math.Min(s.start.p50, s.policy.clientTimeout())
	return int(math.Ceil(s.table.size(r) + r*late/clearing - wakeSlack)), r
}

// wake: a pool at zero wakes to the number that serves what is offered and clears
// what is held, not to one. The number only rises until something is ready.
func (s *Scaler) wake(v *view, n int) (int, string, fleet.Time) {
	z := &s.zero
	z.returning = false
	if v.ready > 0 {
		if z.readyAt == 0 {
			z.readyAt = v.now
		}
		if z.cold {
			z.cold, z.first = false, 0
		}
		if z.woken > 0 {
			if s.obs.Gateway.Held+s.obs.Gateway.Late > 0 {
				return max(n, z.woken), "what was held while nothing was ready is being cleared", 0
			}
			z.returning, z.woken = n < z.woken, 0
		}
		return n, "", 0
	}
	z.readyAt = 0
	if !z.cold {
		z.cold, z.first, z.work, z.count = true, 0, 0, 0
	}
	if z.first == 0 {
		if s.obs.Gateway.Held+s.obs.Gateway.Late == 0 {
			return n, "", 0
		}
		z.first, z.work, z.count = v.now, s.obs.Gateway.Work, s.obs.Gateway.Held+s.obs.Gateway.Late
	}
	k, r := s.wakeNumber(v.now)
	z.woken = max(z.woken, k)
	if z.woken == n {
		return n, "", 0
	}
	return z.woken, fmt.Sprintf("nothing is ready and %.2f units a second are offered: as many as serve them and clear what is held", r), 0
}

// idle: a pool that may be empty goes to zero when nothing was offered for the idle
// time, counted from when something was first ready, and stays there until
// something is offered.
func (s *Scaler) idle(v *view, n int) (int, string, fleet.Time) {
	z := &s.zero
	if s.policy.Min > 0 {
		return n, "", 0
	}
	held := s.obs.Gateway.Held + s.obs.Gateway.Late
	if v.ready == 0 && v.coming == 0 && v.overdue == 0 {
		if held == 0 && z.first == 0 {
			return 0, "the pool is cold and nothing is offered", 0
		}
		return max(1, n), "", 0
	}
	if held > 0 || s.obs.Gateway.InFlight > 0 || v.ready == 0 {
		return max(1, n), "", 0
	}
	since := max(z.last, z.readyAt)
	until := since.AddSeconds(s.idleAfter())
	if since != 0 && v.now >= until {
		return 0, fmt.Sprintf("nothing was offered for %.0f s", v.now.Seconds(since)), 0
	}
	return max(1, n), "", 0
}

// idleAfter is the idle time in seconds: never shorter than a start-up, for else
// the pool would spend more time starting than serving.
func (s *Scaler) idleAfter() float64 {
	t := s.policy.IdleAfter
	if t == 0 {
		t = 300
	}
	return math.Max(t, s.start.p50)
}
