// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// blindFor is for how long a router and its peers do not know of each other's picks:
// twice what a note takes, for either may be the first.
const blindFor = 4 * time.Millisecond

// blindMemory is what is kept of the evidence at each pick of our own.
const blindMemory = 0.98

// blindness measures how many picks of other routers fall into the time in which a
// pick of our own is made without knowing of them.
type blindness struct {
	sent  [16]fleet.Time // last picks of our own
	next  int
	picks float64
	met   float64
}

func (b *blindness) ours(now fleet.Time) {
	b.sent[b.next] = now
	b.next = (b.next + 1) % len(b.sent)
	b.picks = b.picks*blindMemory + 1
	b.met *= blindMemory
}

func (b *blindness) theirs(now fleet.Time) {
	for _, t := range b.sent {
		if t != 0 && now.Sub(t) <= blindFor {
			b.met++
		}
	}
}

// ratio is the mean number of unknown picks at a pick, at most 1.
func (b *blindness) ratio() float64 {
	if b.picks == 0 {
		return 0
	}
	return min(1, b.met/b.picks)
}

// SetRank says which of n routers that share the traffic this one is, from 0. Each
// takes other endpoints where it has the choice and the others' picks of the same
// moment are not known yet; the parts are equal, and the same in every router that
// lists the same endpoints.
func (d *Dispatch) SetRank(rank, n int) {
	d.rank, d.routers = rank, n
	d.divide()
}

// divide marks the endpoints that this router takes first.
func (d *Dispatch) divide() {
	for i := range d.slots {
		d.slots[i].Mine = false
	}
	if d.routers < 2 || d.snap == nil {
		return
	}
	for k := range d.snap.Endpoints { // ordered by ID
		id := d.snap.Endpoints[k].ID
		if i, ok := d.names[id]; ok {
			d.slots[i].Mine = k%d.routers == d.rank
		}
		if h := d.homes[id]; h != nil {
			for r, i := range h.slots {
				if i >= 0 && d.aux[i].home == h {
					d.slots[i].Mine = (k+r)%d.routers == d.rank
				}
			}
		}
	}
}
