// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// blindFor is for how long a router and its peers do not know of each other's picks:
// twice what a note takes, for either may be the first.
const blindFor = 4 * time.Millisecond

// blindMemory is what is kept of the evidence at each pick of our own.
const blindMemory = 0.98

// kinShare is the share of picks that begin alike from which on they decide. Alike ones
// that part compute the same prompt again, others that meet only wait for each other.
const kinShare = 0.08

// blindness measures how many picks of other routers fall into the time in which a
// pick of our own is made without knowing of them.
type blindness struct {
	sent  [16]ownPick // last picks of our own
	next  int
	picks float64
	met   float64
	cold  kin // of picks of which little is cached anywhere
	warm  kin // of others
}

// kin is how many of the other routers' picks that fall into that time begin as our own
// pick did.
type kin struct{ met, alike float64 }

// mostly reports whether they are so many that they decide: alike ones want the same
// endpoint, as others want different ones.
func (k *kin) mostly() bool { return k.alike > kinShare*k.met }

func (b *blindness) kin(cold bool) *kin {
	if cold {
		return &b.cold
	}
	return &b.warm
}

// ownPick is a pick of our own: when, and the first block of the prompt, by number and
// hash, that was believed to be nowhere when the request came.
type ownPick struct {
	at    fleet.Time
	block int32
	hash  uint64
	cold  bool
}

func (b *blindness) ours(now fleet.Time, blocks []uint64, hit int32) {
	o := ownPick{at: now, block: -1, cold: route.Cold(hit, len(blocks))}
	k := b.kin(o.cold)
	k.met, k.alike = k.met*blindMemory, k.alike*blindMemory
	if n := int32(len(blocks)); n > 0 {
		o.block = min(hit, n-1)
		o.hash = blocks[o.block]
	}
	b.sent[b.next] = o
	b.next = (b.next + 1) % len(b.sent)
	b.picks = b.picks*blindMemory + 1
	b.met *= blindMemory
}

func (b *blindness) theirs(now fleet.Time, blocks []uint64) {
	for i := range b.sent {
		o := &b.sent[i]
		if o.at == 0 || now.Sub(o.at) > blindFor {
			continue
		}
		b.met++
		k := b.kin(o.cold)
		k.met++
		if o.block >= 0 && int(o.block) < len(blocks) && blocks[o.block] == o.hash {
			k.alike++
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
	d.in.Part, d.in.Parts = 0, 0
	if d.routers < 2 || d.snap == nil {
		return
	}
	d.in.Part, d.in.Parts = int32(d.rank), int32(d.routers)
	for k := range d.snap.Endpoints { // ordered by ID
		id := d.snap.Endpoints[k].ID
		if i, ok := d.names[id]; ok {
			d.slots[i].Part = int32(k % d.routers)
		}
		if h := d.homes[id]; h != nil {
			for r, i := range h.slots {
				if i >= 0 && d.aux[i].home == h {
					d.slots[i].Part = int32((k + r) % d.routers)
				}
			}
		}
	}
}
