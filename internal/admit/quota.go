// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"math/bits"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Measure is what a limit counts.
type Measure uint8

// Measures.
const (
	Requests Measure = iota
	PromptTokens
	OutputTokens
	TotalTokens // prompt and output
	Concurrent  // requests at a time; nothing refills it
	Money       // billionths of the unit of currency
)

var measureNames = [...]string{"requests", "prompt tokens", "output tokens", "tokens", "concurrent requests", "budget"}

func (m Measure) String() string { return measureNames[m] }

// Calendar is a period that begins at a date instead of refilling all the time.
type Calendar uint8

// Calendars, in UTC.
const (
	Rolling Calendar = iota // refills all the time over Rule.Per
	Day
	Month
)

// Rule is one limit.
type Rule struct {
	Measure Measure
	Limit   int64         // in units of the measure; > 0
	Per     time.Duration // a bucket of Limit refills over it; unused for Concurrent and dates
	Every   Calendar
	// Hard says that a running stream ends where it would go into debt.
	Hard bool
}

// Usage is what a request used so far.
type Usage struct {
	Requests int64 // 1 once an engine had it
	Prompt   int64 // tokens, cached ones included
	Cached   int64 // tokens of Prompt that came from a cache
	Output   int64 // tokens
}

// Price of a token, in billionths of the unit of currency.
type Price struct{ Prompt, Cached, Output int64 }

// of returns what a usage is in a measure.
func (m Measure) of(u Usage, p Price) int64 {
	switch m {
	case Requests:
		return u.Requests
	case PromptTokens:
		return u.Prompt
	case OutputTokens:
		return u.Output
	case TotalTokens:
		return u.Prompt + u.Output
	case Money:
		return (u.Prompt-u.Cached)*p.Prompt + u.Cached*p.Cached + u.Output*p.Output
	}
	return 0 // of a request that is over, nothing is left
}

// account is one limit of one tenant, key or model with what is left of it.
type account struct {
	name     string
	rule     Rule
	level    int64 // what is left, reservations taken off; negative: debt
	at       fleet.Time
	reserved int64
	charged  int64
	// leased says that a store keeps the limit and level is what it lent: nothing
	// refills it here.
	leased bool
	wanted Wanted
}

// refill brings an account to now. A clock that goes back changes nothing.
func (a *account) refill(now fleet.Time) {
	if a.leased || a.rule.Measure == Concurrent || now <= a.at {
		return
	}
	r := &a.rule
	if r.Every != Rolling {
		if p := r.Every.start(now); p > a.at {
			// Debt is carried into the new period; what was left is not.
			a.level = r.Limit + min(a.level+a.reserved, 0) - a.reserved
		}
		a.at = now
		return
	}
	dt := uint64(now - a.at)
	per := uint64(r.Per)
	if whole := dt / per; whole > 0 {
		lack := r.Limit - a.level
		if lack <= 0 || whole > uint64(lack/r.Limit) {
			a.level, a.at = max(a.level, r.Limit), now
			return
		}
		a.level += int64(whole) * r.Limit
		a.at += fleet.Time(whole * per)
		dt -= whole * per
	}
	hi, lo := bits.Mul64(uint64(r.Limit), dt)
	n, _ := bits.Div64(hi, lo, per) // n < Limit, since dt < per
	if n == 0 {
		return
	}
	// Only the time that whole units took is over: no fraction is lost or won.
	hi, lo = bits.Mul64(n, per)
	took, rest := bits.Div64(hi, lo, uint64(r.Limit))
	if rest > 0 {
		took++
	}
	a.at += fleet.Time(took)
	a.level += int64(n)
	if a.level >= r.Limit {
		a.level, a.at = r.Limit, now
	}
}

// start returns when the period of a calendar that holds t began.
func (c Calendar) start(t fleet.Time) fleet.Time {
	y, m, d := time.Unix(0, int64(t)).UTC().Date()
	if c == Month {
		d = 1
	}
	return fleet.Time(time.Date(y, m, d, 0, 0, 0, 0, time.UTC).UnixNano())
}

// Start returns when the period that holds t began.
func (c Calendar) Start(t time.Time) time.Time {
	return time.Unix(0, int64(c.start(fleet.At(t)))).UTC()
}

// end returns when it ends.
func (c Calendar) end(t fleet.Time) fleet.Time {
	s := time.Unix(0, int64(c.start(t))).UTC()
	if c == Month {
		return fleet.Time(s.AddDate(0, 1, 0).UnixNano())
	}
	return fleet.Time(s.AddDate(0, 0, 1).UnixNano())
}

// until returns how long an account needs to reach a level by itself.
func (a *account) until(now fleet.Time, level int64) time.Duration {
	lack := level - a.level
	switch {
	case lack <= 0:
		return 0
	case a.rule.Measure == Concurrent:
		return concurrentRetry
	case a.rule.Every != Rolling:
		return time.Duration(a.rule.Every.end(now) - now)
	}
	// Whole periods and the part of one that remains, so that nothing overflows.
	whole := lack / a.rule.Limit
	hi, lo := bits.Mul64(uint64(lack%a.rule.Limit), uint64(a.rule.Per))
	part, rest := bits.Div64(hi, lo, uint64(a.rule.Limit))
	if rest > 0 {
		part++
	}
	return time.Duration(min(whole, maxPeriods))*a.rule.Per + time.Duration(part)
}

const (
	// concurrentRetry is when to try again after too many requests at a time: when
	// one ends is not known.
	concurrentRetry = time.Second
	maxPeriods      = 1000
)
