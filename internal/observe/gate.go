// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// verdict is how one look at an endpoint ended.
type verdict uint8

const (
	lookReady   verdict = iota // healthy, and a model of the pool is listed
	lookLoading                // answers, but not as a replica that has its model
	lookDead                   // nobody listens, or it says that it is broken
	lookSlow                   // no answer in time: busy or frozen
)

// Thresholds of the gate. Dead and slow differ on purpose: a refused connection
// is a fact, a missing answer is mostly a long prefill.
const (
	deadLooks  = 2                // looks in a row that take a ready endpoint out
	goodLooks  = 2                // looks in a row that bring a failed one back
	lifeLimit  = 45 * time.Second // without any sign of life a slow endpoint is given up
	closeLooks = 2                // answers in a row that end slowness
)

// gate decides the phase of one endpoint from what is seen of it. It is a pure
// state machine: the moment is an argument.
type gate struct {
	phase  fleet.Phase
	since  fleet.Time
	reason string
	slow   bool

	life   fleet.Time // last sign of life: an answer, a scrape, bytes of a response
	dead   int        // dead looks in a row
	good   int        // ready looks in a row
	broken bool       // was taken out; goodLooks are needed
	was    bool       // has been ready
}

// alive notes a sign of life that is no look: a successful scrape, or bytes of a
// response.
func (g *gate) alive(now fleet.Time) {
	g.life = max(g.life, now)
}

// look takes the result of one look in and reports whether the phase changed.
// last says that no other endpoint of the pool is ready: slowness alone never
// takes the last one out.
func (g *gate) look(now fleet.Time, v verdict, reason string, last bool) bool {
	before, wasSlow := g.phase, g.slow
	switch v {
	case lookReady:
		g.life, g.dead = now, 0
		g.good++
		if g.good >= closeLooks {
			g.slow = false
		}
		if g.phase == fleet.PhaseReady || !g.broken || g.good >= goodLooks {
			g.enter(now, fleet.PhaseReady, "")
			g.broken, g.was = false, true
		}
	case lookLoading:
		g.life, g.good = now, 0
		g.notListed(now, reason)
	case lookDead:
		g.good = 0
		g.dead++
		g.isDead(now, reason)
	case lookSlow:
		g.good, g.dead = 0, 0
		g.isSlow(now, reason, last)
	}
	return g.phase != before || g.slow != wasSlow
}

func (g *gate) enter(now fleet.Time, p fleet.Phase, reason string) {
	if g.phase != p || g.since == 0 {
		g.phase, g.since = p, now
	}
	g.reason = reason
}

func (g *gate) notListed(now fleet.Time, reason string) {
	if g.phase != fleet.PhaseReady {
		g.enter(now, fleet.PhaseLoading, reason)
		return
	}
	if g.dead++; g.dead >= deadLooks {
		g.slow, g.broken = false, true
		g.enter(now, fleet.PhaseLoading, reason)
	}
}

func (g *gate) isDead(now fleet.Time, reason string) {
	switch {
	case g.phase == fleet.PhaseReady && g.dead < deadLooks:
	case g.was:
		g.slow, g.broken = false, true
		g.enter(now, fleet.PhaseFailed, reason)
	default:
		// It never was ready: nobody has started it yet, or it is starting.
		g.enter(now, fleet.PhasePending, reason)
	}
}

func (g *gate) isSlow(now fleet.Time, reason string, last bool) {
	switch {
	case g.phase == fleet.PhaseReady && !last && now.Sub(g.life) >= lifeLimit:
		g.slow, g.broken = false, true
		g.enter(now, fleet.PhaseFailed, "no sign of life for "+lifeLimit.String())
	case g.phase == fleet.PhaseReady:
		g.slow, g.reason = true, reason
	case g.phase == fleet.PhaseFailed: // for the reason that it failed for
	default:
		g.enter(now, fleet.PhaseLoading, reason)
	}
}

// restarted says that the process is a new one: it proves itself again, and one
// good look is enough, since nothing was seen to be wrong with it.
func (g *gate) restarted() { g.dead, g.good = 0, 0 }
