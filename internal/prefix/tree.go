// SPDX-License-Identifier: Apache-2.0

package prefix

// step is one node on the way of a prompt.
type step struct {
	node uint32
	pos  int32 // blocks of the prompt before this node
	m    int32 // blocks of the node that the prompt has, >= 1
}

// walk fills x.path with the nodes on the way of blocks and returns how many
// blocks lie on it. Only the last step can have m below the node's length.
func (x *Index) walk(blocks []uint64) int {
	x.path = x.path[:0]
	pos := 0
	for pos < len(blocks) {
		id := x.findHead(blocks[pos], pos)
		if id == 0 {
			break
		}
		run := x.s.run(x.s.node(id))
		m := common(run, blocks[pos:])
		x.path = append(x.path, step{node: id, pos: int32(pos), m: int32(m)})
		pos += m
		if m < len(run) {
			break
		}
	}
	return pos
}

// common returns the length of the common beginning of two chains whose first
// hashes are equal. Hashes are chained, so equal at k means equal up to k: the
// length is found by bisection over depth.
func common(run, blocks []uint64) int {
	n := min(len(run), len(blocks))
	if run[n-1] == blocks[n-1] {
		return n
	}
	lo, hi := 1, n-1 // equal up to lo, different at hi
	for lo < hi {
		mid := (lo + hi) / 2
		if run[mid] == blocks[mid] {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// findHead returns the node whose run starts with the block after pos others. The
// depth is checked so that no input, however it came to repeat a hash, can make a
// way lead back to itself.
func (x *Index) findHead(hash uint64, pos int) uint32 {
	tag := tagOf(hash)
	seg := x.heads.seg(tag)
	for i := tag & segMask; ; i = (i + 1) & segMask {
		v := seg.slots[i]
		if v == 0 {
			return 0
		}
		if uint32(v>>32) == tag {
			n := x.s.node(uint32(v))
			if int(n.start) == pos && x.s.runs[n.run>>runPageBits][n.run&(runPage-1)] == hash {
				return uint32(v)
			}
		}
	}
}

func pairTag(node uint32, lane uint16) uint32 { return tagOf(uint64(node)<<16 | uint64(lane)) }

func (x *Index) findHold(node uint32, lane uint16) uint32 {
	tag := pairTag(node, lane)
	seg := x.pairs.seg(tag)
	for i := tag & segMask; ; i = (i + 1) & segMask {
		v := seg.slots[i]
		if v == 0 {
			return 0
		}
		if uint32(v>>32) == tag {
			if h := x.s.hold(uint32(v)); h.node == node && h.lane == lane {
				return uint32(v)
			}
		}
	}
}

// extend makes the lane hold all of blocks and returns the hold of the last one,
// 0 if there are none or MaxBytes does not allow it. After it a node ends where
// blocks end, so pins and touches are always of whole nodes.
func (x *Index) extend(id uint16, blocks []uint64) uint32 {
	if len(blocks) == 0 {
		return 0
	}
	if !x.room() {
		x.stats.Refused++
		return 0
	}
	pos := x.walk(blocks)
	if k := len(x.path) - 1; k >= 0 {
		last := &x.path[k]
		if int(last.m) < int(x.s.node(last.node).len) {
			last.node = x.split(last.node, int(last.m))
		}
	}
	up, below := x.deepest(id)
	for i := up; i != 0; i = x.s.hold(i).up {
		if !x.fill(i) && !x.holes {
			break // what lies above a whole hold is whole, unless events made holes
		}
	}
	for _, s := range x.path[below:] {
		up = x.newHold(s.node, id, up)
	}
	return x.grow(id, up, blocks[pos:])
}

// deepest returns the lane's deepest hold on the path, and the number of steps
// down to it.
func (x *Index) deepest(id uint16) (uint32, int) {
	for k := len(x.path); k > 0; k-- {
		if h := x.findHold(x.path[k-1].node, id); h != 0 {
			return h, k
		}
	}
	return 0, 0
}

// fill makes a hold whole and reports whether it was not.
func (x *Index) fill(i uint32) bool {
	h := x.s.hold(i)
	n := x.s.node(h.node)
	add := int64(n.len - h.held)
	h.held = n.len
	x.lanes[h.lane].used += add
	x.stats.Entries += add
	return add > 0
}

// grow appends blocks below a whole hold and returns the last hold.
func (x *Index) grow(id uint16, up uint32, blocks []uint64) uint32 {
	if up != 0 && len(blocks) > 0 {
		blocks = x.lengthen(up, blocks)
	}
	for len(blocks) > 0 {
		n := min(len(blocks), maxRun)
		up = x.newHold(x.addNode(blocks[:n], x.below(up)), id, up)
		blocks = blocks[n:]
	}
	return up
}

// lengthen appends blocks to the run of a hold that nobody else uses or builds
// on, so that a conversation stays one run, and returns the rest.
func (x *Index) lengthen(i uint32, blocks []uint64) []uint64 {
	h := x.s.hold(i)
	n := x.s.node(h.node)
	add := min(len(blocks), maxRun-int(n.len))
	if add == 0 || n.nHold != 1 || h.kids != 0 || h.pins != 0 {
		return blocks
	}
	old := int(n.len)
	if old+add <= int(runSizes[n.class]) {
		n.len += uint16(add)
	} else {
		from, class, run := x.s.run(n), n.class, n.run
		c := runClass(old + add)
		n.run, n.class, n.len = x.s.newRun(c), c, uint16(old+add)
		copy(x.s.run(n), from)
		x.s.releaseRun(run, class)
	}
	copy(x.s.run(n)[old:], blocks[:add])
	x.note(h.node, blocks[:add])
	x.stats.Blocks += int64(add)
	x.fill(i)
	return blocks[add:]
}

// below returns the number of blocks down to the end of a hold's run.
func (x *Index) below(i uint32) int {
	if i == 0 {
		return 0
	}
	n := x.s.node(x.s.hold(i).node)
	return int(n.start) + int(n.len)
}

func (x *Index) addNode(blocks []uint64, start int) uint32 {
	id, n := x.s.newNode()
	n.start = uint32(start)
	x.s.setRun(n, blocks)
	x.heads.insert(tagOf(blocks[0]), id)
	x.note(id, blocks)
	x.stats.Blocks += int64(len(blocks))
	return id
}

// note files every block of a run under its node, if events are wanted.
func (x *Index) note(id uint32, blocks []uint64) {
	if !x.o.Events {
		return
	}
	for _, b := range blocks {
		x.every.insert(tagOf(b), id)
	}
}

func (x *Index) unnote(id uint32, blocks []uint64) {
	if !x.o.Events {
		return
	}
	for _, b := range blocks {
		x.every.remove(tagOf(b), id)
	}
}

// newHold makes the lane hold the whole node. The hold is the most recently used.
func (x *Index) newHold(node uint32, id uint16, up uint32) uint32 {
	n := x.s.node(node)
	i, h := x.s.newHold()
	h.lane, h.held, h.up = id, n.len, up
	x.attach(i, node)
	x.listNewest(i)
	if up != 0 {
		if p := x.s.hold(up); p.kids < maxCount {
			p.kids++
		}
	}
	x.lanes[id].used += int64(n.len)
	x.stats.Entries += int64(n.len)
	return i
}

// attach puts a hold among the holds of a node.
func (x *Index) attach(i, node uint32) {
	n, h := x.s.node(node), x.s.hold(i)
	h.node, h.prev, h.next = node, 0, n.holders
	if n.holders != 0 {
		x.s.hold(n.holders).prev = i
	}
	n.holders = i
	n.nHold++
	x.pairs.insert(pairTag(node, h.lane), i)
}

func (x *Index) detach(i uint32) {
	h := x.s.hold(i)
	n := x.s.node(h.node)
	x.pairs.remove(pairTag(h.node, h.lane), i)
	if h.prev != 0 {
		x.s.hold(h.prev).next = h.next
	} else {
		n.holders = h.next
	}
	if h.next != 0 {
		x.s.hold(h.next).prev = h.prev
	}
	n.nHold--
}

// drop removes a hold without kids, and its node if it was the last one.
func (x *Index) drop(i uint32) {
	h := x.s.hold(i)
	id, up, node := h.lane, h.up, h.node
	n := x.s.node(node)
	l := &x.lanes[id]
	x.unlist(i)
	if h.pins > 0 {
		n.nPin--
		l.pinned -= int64(n.len)
	}
	l.used -= int64(h.held)
	x.stats.Entries -= int64(h.held)
	x.detach(i)
	x.s.releaseHold(i)
	if n.nHold == 0 {
		x.freeNode(node)
	}
	if up == 0 {
		return
	}
	p := x.s.hold(up)
	if p.kids < maxCount {
		p.kids--
	}
	if p.kids == 0 && p.held == 0 && p.pins == 0 {
		x.drop(up) // kept only for its kids
	}
}

func (x *Index) freeNode(id uint32) {
	n := x.s.node(id)
	run := x.s.run(n)
	x.heads.remove(tagOf(run[0]), id)
	x.unnote(id, run)
	x.stats.Blocks -= int64(n.len)
	x.s.releaseNode(id)
}

// split cuts a node after k blocks and returns the upper part. The lower part
// keeps the id, so what lies below it and Refs to it stay as they are. If nobody
// holds the lower part it goes.
func (x *Index) split(id uint32, k int) uint32 {
	n := x.s.node(id)
	run := x.s.run(n)
	deep := false
	for i := n.holders; i != 0 && !deep; i = x.s.hold(i).next {
		h := x.s.hold(i)
		deep = int(h.held) > k || h.kids > 0
	}
	if !deep {
		x.unnote(id, run[k:])
		x.stats.Blocks -= int64(len(run) - k)
		n.len = uint16(k)
		return id
	}
	upper, un := x.s.newNode()
	x.s.setRun(un, run[:k])
	un.start = n.start
	n.start += uint32(k)
	x.heads.replace(tagOf(run[0]), id, upper)
	x.unnote(id, run[:k])
	x.note(upper, run[:k])
	class, old := n.class, n.run
	x.s.setRun(n, run[k:])
	x.s.releaseRun(old, class)
	x.heads.insert(tagOf(x.s.run(n)[0]), id)
	for i := n.holders; i != 0; {
		next := x.s.hold(i).next
		x.splitHold(i, upper, k)
		i = next
	}
	return upper
}

func (x *Index) splitHold(i, upper uint32, k int) {
	h := x.s.hold(i)
	if int(h.held) <= k && h.kids == 0 {
		x.detach(i)
		x.attach(i, upper)
		return
	}
	j, u := x.s.newHold()
	u.lane, u.up, u.pins, u.kids = h.lane, h.up, h.pins, 1
	u.held = min(h.held, uint16(k))
	h.held -= u.held
	h.up = j
	x.attach(j, upper)
	if u.pins > 0 {
		x.s.node(upper).nPin++
	}
	x.listAfter(j, i)
}
