// SPDX-License-Identifier: Apache-2.0

package prefix

// Each lane has two lists of holds: those that may leave, least recently used
// first, and those that are pinned. In both a hold stands before the one above
// it, so taking from the old end never leaves a hold without its parent.

func (x *Index) ends(h *hold) (oldest, newest *uint32) {
	l := &x.lanes[h.lane]
	if h.pins > 0 {
		return &l.pinOld, &l.pinNew
	}
	return &l.oldest, &l.newest
}

func (x *Index) listNewest(i uint32) {
	h := x.s.hold(i)
	oldest, newest := x.ends(h)
	h.older, h.newer = *newest, 0
	if *newest != 0 {
		x.s.hold(*newest).newer = i
	} else {
		*oldest = i
	}
	*newest = i
}

// listAfter puts a hold right behind another one of the same list.
func (x *Index) listAfter(i, older uint32) {
	h, o := x.s.hold(i), x.s.hold(older)
	_, newest := x.ends(h)
	h.older, h.newer = older, o.newer
	if o.newer != 0 {
		x.s.hold(o.newer).older = i
	} else {
		*newest = i
	}
	o.newer = i
}

// listPinned puts a hold into the pinned list: behind the hold below it, or in
// front of all where it is the end of its way.
func (x *Index) listPinned(i, below uint32) {
	if below != 0 {
		x.listAfter(i, below)
		return
	}
	h := x.s.hold(i)
	oldest, newest := x.ends(h)
	h.older, h.newer = 0, *oldest
	if *oldest != 0 {
		x.s.hold(*oldest).older = i
	} else {
		*newest = i
	}
	*oldest = i
}

func (x *Index) unlist(i uint32) {
	h := x.s.hold(i)
	oldest, newest := x.ends(h)
	if h.older != 0 {
		x.s.hold(h.older).newer = h.newer
	} else {
		*oldest = h.newer
	}
	if h.newer != 0 {
		x.s.hold(h.newer).older = h.older
	} else {
		*newest = h.older
	}
}
