// SPDX-License-Identifier: Apache-2.0

package prefix

// Match sets hits[slot] to the number of leading blocks believed to be at the
// replica, for all slots at once. hits has at least Slots elements; all of it is
// written. It does not allocate once the longest way was seen.
//
// Hits are monotone: whoever has a block has all before it. So the sets of holders
// on the way down are nested; a node with as many holders as the one below it has
// the same ones and need not be looked at.
func (x *Index) Match(blocks []uint64, hits []int32) { x.MatchPinned(blocks, hits, nil) }

// MatchPinned is Match that also sets pinned[slot] to the number of leading blocks
// that requests in flight at the replica use. pinned may be nil.
func (x *Index) MatchPinned(blocks []uint64, hits, pinned []int32) {
	clear(hits)
	clear(pinned)
	x.walk(blocks)
	if x.holes {
		x.matchDown(hits, pinned)
	} else {
		x.matchUp(hits, pinned)
	}
	for slot := range min(len(hits), len(x.slotLane)) {
		if l := x.slotLane[slot]; l != 0 && x.lanes[l].unsure {
			hits[slot] /= 2
		}
	}
}

// matchUp goes from the deepest node upwards; the first sight of a replica decides.
func (x *Index) matchUp(hits, pinned []int32) {
	holders, pins := -1, -1
	for k := len(x.path) - 1; k >= 0; k-- {
		s := &x.path[k]
		n := x.s.node(s.node)
		if int(n.nHold) == holders && (pinned == nil || int(n.nPin) == pins) {
			continue
		}
		holders, pins = int(n.nHold), int(n.nPin)
		for i := n.holders; i != 0; {
			h := x.s.hold(i)
			if slot := x.laneSlot[h.lane]; slot >= 0 && int(slot) < len(hits) {
				if hits[slot] == 0 {
					hits[slot] = s.pos + min(int32(h.held), s.m)
				}
				if pinned != nil && h.pins > 0 && pinned[slot] == 0 {
					pinned[slot] = s.pos + s.m
				}
			}
			i = h.next
		}
	}
}

// matchDown goes from the first node downwards and counts a replica only as long
// as it has everything before: for use where events made holes.
func (x *Index) matchDown(hits, pinned []int32) {
	for k := range x.path {
		s := &x.path[k]
		n := x.s.node(s.node)
		for i := n.holders; i != 0; {
			h := x.s.hold(i)
			if slot := x.laneSlot[h.lane]; slot >= 0 && int(slot) < len(hits) {
				if hits[slot] == s.pos {
					hits[slot] = s.pos + min(int32(h.held), s.m)
				}
				if pinned != nil && h.pins > 0 {
					pinned[slot] = s.pos + s.m
				}
			}
			i = h.next
		}
	}
}

// MatchOne returns the number of leading blocks believed to be at one replica.
func (x *Index) MatchOne(slot int32, blocks []uint64) int {
	l := x.lane(slot)
	if l == nil {
		return 0
	}
	x.walk(blocks)
	hit := 0
	for _, s := range x.path {
		i := x.findHold(s.node, x.slotLane[slot])
		if i == 0 {
			break
		}
		held := min(int32(x.s.hold(i).held), s.m)
		hit += int(held)
		if held < s.m {
			break
		}
	}
	if l.unsure {
		hit /= 2
	}
	return hit
}

// PinnedPrefix returns how many leading blocks requests in flight at the replica use.
func (x *Index) PinnedPrefix(slot int32, blocks []uint64) int {
	if x.lane(slot) == nil {
		return 0
	}
	x.walk(blocks)
	pinned := 0
	for _, s := range x.path {
		i := x.findHold(s.node, x.slotLane[slot])
		if i == 0 || x.s.hold(i).pins == 0 {
			break
		}
		pinned += int(s.m)
	}
	return pinned
}
