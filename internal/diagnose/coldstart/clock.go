// SPDX-License-Identifier: Apache-2.0

package coldstart

import "math"

// clock decides which of a log's times are used and puts them on one axis.
type clock struct {
	outer bool    // the collector's times
	shift float64 // seconds to add to the engine's own times
	year  bool    // the axis is Unix time and can be compared with events
}

// half a year in seconds: what lies further back has crossed New Year.
const halfYear = 183 * 86400

// at returns the time of a line on the axis of the clock.
func (c *clock) at(l *line) (float64, bool) {
	if c.outer {
		return l.outer, l.hasO
	}
	return l.inner + c.shift, l.hasI
}

// newClock looks at all lines. The collector's times win where half of the lines
// have one: they have a year, a zone and fractions of seconds.
func newClock(lines []line) clock {
	outer, inner := 0, 0
	for i := range lines {
		if lines[i].hasO {
			outer++
		}
		if lines[i].hasI {
			inner++
		}
	}
	c := clock{outer: outer > 0 && outer*2 >= len(lines) || outer > 0 && inner == 0}
	if c.outer {
		c.year = true
		return c
	}
	unroll(lines)
	for i := range lines {
		if lines[i].hasI && lines[i].year {
			c.year = true
			break
		}
	}
	return c
}

// unroll makes the engine's own times grow over New Year and over midnight where
// they have no year or no date.
func unroll(lines []line) {
	last, add, seen := 0.0, 0.0, false
	for i := range lines {
		l := &lines[i]
		if !l.hasI || l.rel || l.year {
			continue
		}
		v := l.inner + add
		switch {
		case seen && v < last-halfYear:
			add += 366 * 86400 // the year 2000 is a leap year
			v = l.inner + add
		case seen && v < last-43200 && v > last-86400*1.5 && sameDay(l.inner):
			add += 86400
			v = l.inner + add
		}
		l.inner = v
		last, seen = math.Max(last, v), true
	}
}

// sameDay reports whether a time without a year lies on the first of January 2000,
// which is where times without a date lie.
func sameDay(v float64) bool { return v < 946684800+86400 }

// align shifts times without a year, or of another zone, so that the log begins
// where the container was started. It reports whether the times can then be
// compared with those of events.
func (c *clock) align(first float64, has bool, started float64, knownStart bool) bool {
	if !has || !knownStart {
		return false
	}
	diff := first + c.shift - started
	if c.year && diff > -60 && diff < 900 {
		return true
	}
	if c.outer {
		return diff > -60 && diff < 7200
	}
	const zone = 1800 // zones differ by multiples of half an hour
	// The log begins after the start, by less than half an hour.
	k := math.Floor((diff + 5) / zone)
	rest := diff - k*zone
	if rest > 900 {
		return false
	}
	c.shift -= k * zone
	c.year = true
	return true
}
