// SPDX-License-Identifier: Apache-2.0

package journal

import "github.com/penstock-project/penstock/internal/route"

// Head is the sequence number that the next record gets.
func (j *Journal) Head() uint64 {
	_, next := j.bounds()
	return next
}

// Briefs calls each for the records from the sequence number from on that pass f,
// oldest first, until limit were passed on; 0: no limit. It returns where to go on
// and how many records were gone before they could be read. A filter that passes
// all costs no expansion of records.
func (j *Journal) Briefs(from uint64, limit int, f Filter, each func(route.Brief)) (next, missed uint64) {
	first, end := j.bounds()
	if from < first {
		missed, from = first-from, first
	}
	n := 0
	for seq := from; seq < end; seq++ {
		if limit > 0 && n == limit {
			return seq, missed
		}
		if len(f.terms) > 0 {
			r := j.at(seq)
			if r == nil {
				missed++
			} else if f.Match(r) {
				n++
				each(r.Brief())
			}
			continue
		}
		b, ok := j.briefAt(seq)
		if !ok {
			missed++
			continue
		}
		n++
		each(b)
	}
	return end, missed
}

// briefAt condenses one entry; false where it is gone.
func (j *Journal) briefAt(seq uint64) (route.Brief, bool) {
	r, c := j.pin(seq)
	switch {
	case r != nil:
		return r.Brief(), true
	case c != nil:
		defer j.unpin(seq)
		return c.Brief(), true
	}
	return route.Brief{}, false
}
