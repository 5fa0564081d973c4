// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// breaker ejects an endpoint that fails, and lets one request at a time try it
// again. Refused connections are proof of death, other failures add up; a timeout
// is none, since a busy replica must not be taken for a dead one. Answers that are
// the client's own fault, and clients that leave, do not count.
type breaker struct {
	strikes  int
	opened   int // times in a row, for the cool-down
	good     int // successes of trials in a row
	until    fleet.Time
	trying   bool
	failedAt fleet.Time
	back     fleet.Time // when it was trusted again, while it starts slowly; 0: it does not
}

const (
	strikesOut    = 2
	coolDown      = time.Second     // doubled each time in a row
	longestCool   = 5 * time.Second // never longer
	trialsToTrust = 2
	slowSteps     = 6 // seconds of slow start: from 2 requests at a time to 64, then all
)

// full reports whether an endpoint that came back has all that it should get so
// early: twice as much each second. Its caches are cold, and what failed once may
// fail again; a crowd that comes at once would all be hit.
func (b *breaker) full(now fleet.Time, inFlight int32) bool {
	if b.back == 0 {
		return false
	}
	step := now.Sub(b.back) / time.Second
	if step >= slowSteps {
		b.back = 0
		return false
	}
	return inFlight >= trialsToTrust<<step
}

// open reports whether the endpoint is ejected at now. A trial may pass.
func (b *breaker) open(now fleet.Time) bool {
	return b.strikes >= strikesOut && (now < b.until || b.trying)
}

// ejected reports whether the next request there would be a trial.
func (b *breaker) ejected() bool { return b.strikes >= strikesOut }

func (b *breaker) failed(now fleet.Time, kind fleet.OutcomeKind) {
	switch kind {
	case fleet.OutcomeConnectError:
		b.strikes += strikesOut
	case fleet.OutcomeBroken, fleet.OutcomeEngineError:
		b.strikes++
	default:
		return
	}
	b.failedAt, b.good = now, 0
	if b.strikes < strikesOut || now < b.until {
		return // what was in flight at the ejection says nothing new
	}
	cool := longestCool
	if b.opened < 8 {
		cool = min(longestCool, coolDown<<b.opened)
	}
	b.opened++
	b.until = now.Add(cool)
}

func (b *breaker) succeeded(now fleet.Time, trial bool) {
	if !b.ejected() {
		b.strikes = 0
		return
	}
	if !trial {
		return
	}
	if b.good++; b.good >= trialsToTrust {
		*b = breaker{back: now}
	}
}

// alive ends the cool-down where a scrape after the last failure found a ready
// model: the next request may try.
func (b *breaker) alive(e *fleet.EndpointState) {
	if b.ejected() && e.Phase == fleet.PhaseReady && e.ScrapedAt > b.failedAt {
		b.until = min(b.until, e.ScrapedAt)
	}
}
