// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Levels of a prompt double in length and leave no block out.
func TestLevels(t *testing.T) {
	for b := int32(0); b < 40_000; b++ {
		k := level(b)
		if b < begin(k) || k < levels-1 && b >= begin(k+1) {
			t.Fatalf("block %d is at level %d, which begins at %d", b, k, begin(k))
		}
	}
}

// An account that is paid up takes the price of a copy off where there is none.
func TestPaidCopyCostsNothing(t *testing.T) {
	w := newWorld(t, 2, testProfile(), Options{Fixed: true})
	first := prompt(16, part{1, 4000}, part{2, 100})
	w.arrive(first, 50)
	w.run(fleet.Never)
	d := w.d
	r := prompt(16, part{1, 4000}, part{3, 100})
	dec := &route.Decision{}
	d.Preview(w.now, r, dec)
	d.rents.accounts = make([]account, 1<<accountBits)
	for k := range level(int32(4000/16-1)) + 1 {
		a, key := d.rents.of(r.Blocks, k)
		*a = account{key: key, paid: 1, n: 9, at: w.now}
	}
	paid := &route.Decision{}
	d.Preview(w.now, r, paid)
	warm, cold := w.picks[0], 1-w.picks[0]
	if dec.Candidates[cold].Credit != 0 || dec.Candidates[warm].Hit == 0 {
		t.Fatalf("before: %+v", dec.Candidates)
	}
	if c := &paid.Candidates[cold]; c.Credit < 3900 || c.CostMS >= dec.Candidates[cold].CostMS || paid.Candidates[warm].Credit != 0 {
		t.Errorf("credit %v, cost %v, before %v", c.Credit, c.CostMS, dec.Candidates[cold].CostMS)
	}
}
