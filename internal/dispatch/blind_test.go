// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Picks of the same moment that begin alike are told from others, those of which little
// is cached apart from those of which most is.
func TestKin(t *testing.T) {
	var b blindness
	now := fleet.Time(1e9)
	mine := []uint64{1, 2, 3, 4}
	b.ours(now, mine, 0)                 // cold
	b.theirs(now+1e6, []uint64{1, 2, 9}) // begins alike
	b.theirs(now+1e6, []uint64{7})       // does not
	b.theirs(now+fleet.Time(1e9), mine)  // too late to have been unknown
	b.ours(now+2e9, mine, 3)             // warm
	b.theirs(now+2e9, []uint64{1, 2, 3}) // what is new of it is something else
	b.theirs(now+2e9, []uint64{1, 2, 3}) // and again
	b.ours(now+3e9, nil, 0)              // without blocks
	b.theirs(now+3e9, nil)
	if b.cold.alike != 1 || b.cold.met != 2 || b.warm.alike != 0 || b.warm.met < 2 || !b.cold.mostly() || b.warm.mostly() {
		t.Errorf("cold %+v, warm %+v", b.cold, b.warm)
	}
	if r := b.ratio(); r != 1 {
		t.Errorf("ratio %v", r)
	}
}

// Two routers that decide at the same moment come to part, for they would meet in one
// place, until what they part turns out to begin alike: then they meet.
func TestKinMeet(t *testing.T) {
	p := newPair(8)
	for k := range p.d {
		p.d[k].SetRank(k, 2)
	}
	for n := range 80 {
		alike := n >= 40
		p.now = p.now.AddSeconds(30) // nothing of the last one is left
		p.went = p.went[:0]
		for k := range p.d {
			id := 1000 + 2*n
			if !alike {
				id += k
			}
			_, _, out := p.d[k].Arrive(p.now, prompt(16, part{uint64(id), 3000}), nil)
			p.carry(k, out)
		}
		p.now = p.now.AddSeconds(0.002)
		p.talk()
		if meet := p.went[0].slot == p.went[1].slot; n%40 >= 30 && meet != alike {
			t.Errorf("burst %d goes to %d and %d", n, p.went[0].slot, p.went[1].slot)
		}
		p.serve()
	}
}
