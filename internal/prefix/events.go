// SPDX-License-Identifier: Apache-2.0

package prefix

// StoreBlocks records the event that a replica stored blocks: hashes are chained
// and follow the block parent, 0 for the beginning of a prompt. Blocks whose
// parent is not known at the replica are dropped, as nothing could reach them.
// From the first event on the replica's engine, not the index, says what leaves.
func (x *Index) StoreBlocks(slot int32, parent uint64, hashes []uint64) {
	l := x.lane(slot)
	if l == nil || !x.o.Events || len(hashes) == 0 {
		return
	}
	l.fed = true
	x.sweep(sweepStep)
	if !x.room() {
		x.stats.Refused++
		return
	}
	id := x.slotLane[slot]
	up := uint32(0)
	if parent != 0 {
		if up = x.end(id, parent); up == 0 {
			x.stats.Orphans += uint64(len(hashes))
			return
		}
	}
	for len(hashes) > 0 {
		node := x.findHead(hashes[0], x.below(up))
		if node == 0 {
			up = x.grow(id, up, hashes)
			break
		}
		run := x.s.run(x.s.node(node))
		m := common(run, hashes)
		if m < len(run) {
			node = x.split(node, m)
		}
		if h := x.findHold(node, id); h != 0 {
			x.fill(h)
			up = h
		} else {
			up = x.newHold(node, id, up)
		}
		hashes = hashes[m:]
	}
	x.touch(up)
	x.evict(id)
}

// end returns the lane's hold whose run ends with the block, after a split if need
// be; 0 if the lane does not have the block.
func (x *Index) end(id uint16, block uint64) uint32 {
	node, off := x.findBlock(block)
	if node == 0 {
		return 0
	}
	h := x.findHold(node, id)
	if h == 0 || int(x.s.hold(h).held) <= off {
		return 0
	}
	if off+1 < int(x.s.node(node).len) {
		node = x.split(node, off+1)
	}
	return x.findHold(node, id)
}

// RemoveBlocks records the event that a replica removed blocks. Blocks of requests
// in flight there stay: the engine uses them or is about to compute them again.
func (x *Index) RemoveBlocks(slot int32, hashes []uint64) {
	l := x.lane(slot)
	if l == nil || !x.o.Events {
		return
	}
	l.fed = true
	id := x.slotLane[slot]
	for _, b := range hashes {
		node, off := x.findBlock(b)
		if node == 0 {
			continue
		}
		i := x.findHold(node, id)
		if i == 0 || int(x.s.hold(i).held) <= off || x.s.hold(i).pins > 0 {
			continue
		}
		if off+1 < int(x.s.hold(i).held) {
			i = x.findHold(x.split(node, off+1), id)
		}
		h := x.s.hold(i)
		x.holes = x.holes || h.kids > 0
		if off == 0 && h.kids == 0 {
			x.drop(i)
			continue
		}
		l.used -= int64(int(h.held) - off)
		x.stats.Entries -= int64(int(h.held) - off)
		h.held = uint16(off)
	}
}

// findBlock returns the node of a block and its place in the run.
func (x *Index) findBlock(hash uint64) (node uint32, off int) {
	tag := tagOf(hash)
	seg := x.every.seg(tag)
	for i := tag & segMask; ; i = (i + 1) & segMask {
		v := seg.slots[i]
		if v == 0 {
			return 0, 0
		}
		if uint32(v>>32) != tag {
			continue
		}
		// Engines remove the end of a chain first, so look there first.
		run := x.s.run(x.s.node(uint32(v)))
		for o := len(run) - 1; o >= 0; o-- {
			if run[o] == hash {
				return uint32(v), o
			}
		}
	}
}

// MarkUnsure records a gap in the replica's event sequence: until Clear, MarkSure
// or enough agreeing answers its hits count half, for some are surely wrong.
func (x *Index) MarkUnsure(slot int32) {
	if l := x.lane(slot); l != nil {
		l.unsure = true
		l.agree.good = 0
	}
}

// MarkSure takes MarkUnsure back, for instance after a replay of the lost events.
func (x *Index) MarkSure(slot int32) {
	if l := x.lane(slot); l != nil {
		l.unsure = false
	}
}

// Unsure reports whether events of the replica were lost.
func (x *Index) Unsure(slot int32) bool {
	l := x.lane(slot)
	return l != nil && l.unsure
}
