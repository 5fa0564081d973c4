// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// clock is the engine's time: it runs rate times as fast as the wall, so that a
// speed factor or a slowed replica needs no other profile. A rate of zero stands still.
// It is guarded by the lock of the server.
type clock struct {
	wall time.Time
	core fleet.Time
	rate float64
}

func newClock(rate float64) clock {
	now := time.Now()
	return clock{wall: now, core: fleet.At(now), rate: rate}
}

func (c *clock) at(wall time.Time) fleet.Time {
	return c.core + fleet.Time(float64(wall.Sub(c.wall))*c.rate)
}

// wallOf is when the engine's clock shows t at the present rate; ok is false where
// it stands still.
func (c *clock) wallOf(t fleet.Time) (wall time.Time, ok bool) {
	if c.rate <= 0 || t == fleet.Never {
		return time.Time{}, false
	}
	// Round up: a timer that fires a moment early would only have to be set again.
	return c.wall.Add(time.Duration(float64(t-c.core)/c.rate) + 1), true
}

func (c *clock) setRate(wall time.Time, rate float64) {
	c.core = c.at(wall)
	c.wall, c.rate = wall, rate
}
