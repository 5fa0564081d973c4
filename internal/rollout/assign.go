// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"math"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Arm is one of the two versions.
type Arm uint8

// Arms.
const (
	Baseline Arm = iota
	Canary
)

var armNames = [...]string{"baseline", "canary"}

func (a Arm) String() string { return armNames[a] }

func (a Arm) other() Arm { return 1 - a }

// Share returns the share of the second weight, 0 to 1. Weights are relative: 90 and
// 10, 9 and 1, 900 and 100 are the same. A negative weight, one that is no number, or
// none above 0 is an error.
func Share(baseline, canary float64) (float64, error) {
	for _, w := range []float64{baseline, canary} {
		if !(w >= 0) || math.IsInf(w, 0) {
			return 0, errors.New("a weight must be a number that is not negative")
		}
	}
	if baseline+canary <= 0 {
		return 0, errors.New("one of the weights must be above 0")
	}
	return canary / (baseline + canary), nil
}

// Sticky says what keeps its version.
type Sticky uint8

// What a version sticks to. Where a request has none of it, the next wider one counts:
// session, user, tenant.
const (
	StickyTenant Sticky = iota
	StickyUser
	StickySession
)

var stickyNames = [...]string{"tenant", "user", "session"}

func (s Sticky) String() string { return stickyNames[s] }

// ParseSticky is the inverse of Sticky.String.
func ParseSticky(s string) (Sticky, bool) {
	for i, n := range stickyNames {
		if n == s {
			return Sticky(i), true
		}
	}
	return 0, false
}

// Key is whom a request is for. Hashes are 0 where there is none.
type Key struct {
	Tenant  string
	User    uint64
	Session uint64
}

// position places a key on [0, 1), the same in every router and at every weight: a
// key gets the canary while its position is below the weight, so raising a weight
// moves only the keys between the two.
func position(name string, s Sticky, k Key) float64 {
	b := make([]byte, 0, 96)
	b = append(b, name...)
	b = append(b, 0)
	switch {
	case s >= StickySession && k.Session != 0:
		b = appendHash(append(b, 's'), k.Session)
	case s >= StickyUser && k.User != 0:
		b = appendHash(append(b, 'u'), k.User)
	default:
		b = append(append(b, 't'), k.Tenant...)
	}
	return float64(xxh3.Hash(b)>>11) / (1 << 53)
}

func appendHash(b []byte, h uint64) []byte {
	for range 8 {
		b, h = append(b, byte(h)), h>>8
	}
	return b
}

// Pins: how many sessions are remembered and for how long after their last request.
const (
	maxPins = 1 << 16
	pinFor  = time.Hour
)

// pins remember which version a session began with. A fixed table of buckets: memory
// is bounded, and the session that was idle for longest makes room.
type pins struct {
	slots []pin
}

type pin struct {
	session uint64
	at      fleet.Time
	arm     Arm
}

const pinWays = 8

func (p *pins) bucket(session uint64) []pin {
	if p.slots == nil {
		p.slots = make([]pin, maxPins)
	}
	i := session % (maxPins / pinWays) * pinWays
	return p.slots[i : i+pinWays]
}

// get returns the version of a session that was seen within pinFor.
func (p *pins) get(now fleet.Time, session uint64) (Arm, bool) {
	for i, b := 0, p.bucket(session); i < len(b); i++ {
		if e := &b[i]; e.session == session && now.Sub(e.at) < pinFor {
			e.at = now
			return e.arm, true
		}
	}
	return Baseline, false
}

func (p *pins) set(now fleet.Time, session uint64, arm Arm) {
	b := p.bucket(session)
	oldest := 0
	for i := range b {
		if b[i].session == session {
			oldest = i
			break
		}
		if b[i].at < b[oldest].at {
			oldest = i
		}
	}
	b[oldest] = pin{session, now, arm}
}
