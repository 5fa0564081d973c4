// SPDX-License-Identifier: Apache-2.0

package dispatch

import "math"

// An answer that does not stream shows nothing before its end: its prompt counts as
// computed once that is due, whether or not the replica works. So a replica that stands
// still would look as if it had no prompt before it, and draw what comes next. What
// tells is that nothing comes from it any more: while such answers are due there, the
// time since its last sign of life is held against what is usual in the pool.
const (
	// quietLeast is how many answers must have been seen before anything is judged.
	quietLeast = 20
	// quietSpread is how many standard deviations above the mean are still usual, and
	// quietSlack the seconds on top: what a busy machine takes to come round.
	quietSpread = 6
	quietSlack  = 0.1
	// quietMost bounds what one answer says, as a multiple of what is usual: the end of
	// a standstill must not make the next one look usual.
	quietMost = 2
)

// gaps are the times between signs of life of replicas that owe an answer which does
// not stream, in seconds.
type gaps struct{ first, second mean }

// usual is how long such a replica may show nothing; 0 where too little is known.
func (g *gaps) usual() float64 {
	if g.first.n < quietLeast {
		return 0
	}
	m := g.first.v
	return m + quietSpread*math.Sqrt(max(0, g.second.v-m*m)) + quietSlack
}

func (g *gaps) add(v float64) {
	if u := g.usual(); u > 0 {
		v = min(v, quietMost*u)
	}
	g.first.add(v)
	g.second.add(v * v)
}

// owes counts an answer of our own that does not stream as due from a slot.
func (d *Dispatch) owes(i int32) {
	s, a := &d.slots[i], &d.aux[i]
	if a.quiet == 0 {
		s.QuietSince = d.now
	}
	a.quiet++
	s.QuietMost = d.learned.gaps.usual()
}

// owesLess takes one back.
func (d *Dispatch) owesLess(i int32) {
	s, a := &d.slots[i], &d.aux[i]
	if a.quiet--; a.quiet == 0 {
		s.QuietSince, s.QuietMost = 0, 0
	}
}

// lives notes that bytes came from a slot.
func (d *Dispatch) lives(i int32) {
	s := &d.slots[i]
	if d.aux[i].quiet == 0 {
		return
	}
	d.learned.gaps.add(d.now.Seconds(s.QuietSince))
	s.QuietSince, s.QuietMost = d.now, d.learned.gaps.usual()
}

// still reports whether a slot shows nothing for longer than is usual.
func (d *Dispatch) still(i int32) bool { return d.slots[i].Overdue(d.now) > 0 }
