// SPDX-License-Identifier: Apache-2.0

package engine

// kvPool is the paged KV cache of one replica. Blocks whose content has a hash
// ("named") form a radix forest: a node is a run of consecutive blocks of one
// chain, shared by all sequences that pass it. Blocks without a name (the open
// block of a prompt, decode blocks) are only counted.
//
// Since hashes are chained and a sequence holds a whole path from a root, a named
// block is never evicted before its children: a node leaves use after the nodes
// below it, so the oldest unused node is always a leaf, and trimming it from its
// tail is exactly "least recently freed first, tail first". A plain list suffices,
// and one request costs a few nodes, not hundreds of blocks.
type kvPool struct {
	total  int // blocks
	anon   int // unnamed blocks in use
	named  int // named blocks, in use or not
	pinned int // named blocks in use
	nodes  []kvNode
	free   int32 // head of the list of free nodes, through next
	index  table // first hash of a run -> node
	oldest int32 // unused nodes in the order in which they left use
	newest int32

	record  bool
	changes []BlockChange
}

type kvNode struct {
	run        []uint64 // hashes; aliases the Blocks of the sequence that computed them
	parent     int32
	active     int32 // sequences whose deepest named block is the run's last, plus children in use
	children   int32
	prev, next int32 // in the list of unused nodes
}

// BlockChangeKind says what happened to named KV blocks.
type BlockChangeKind uint8

// Kinds of BlockChange.
const (
	BlocksStored  BlockChangeKind = iota
	BlocksRemoved                 // evicted
	BlocksCleared                 // the whole cache is gone; no hashes
)

// BlockChange tells of named blocks that entered or left the cache. Blocks aliases
// memory of the core and of submitted sequences: read it, do not keep or change it
// after the next Advance of a replica that was Reset.
type BlockChange struct {
	Kind      BlockChangeKind
	HasParent bool
	Parent    uint64   // hash of the block before Blocks[0], where HasParent
	Blocks    []uint64 // consecutive blocks of one chain
}

func (k *kvPool) init(total int, record bool) {
	*k = kvPool{total: total, free: -1, oldest: -1, newest: -1, record: record,
		nodes: k.nodes[:0], index: k.index, changes: k.changes}
	k.index.reset()
}

// available is how many blocks can still be taken without preempting anybody.
func (k *kvPool) available() int { return k.total - k.anon - k.pinned }

// match finds the longest cached prefix of blocks[:limit]: its length, how much of
// it is unused (and would have to be pinned), and where it ends: off blocks into
// node tip.
func (k *kvPool) match(blocks []uint64, limit int) (hit, unused int, tip int32, off int) {
	tip = -1
	for hit < limit {
		id, ok := k.index.get(blocks[hit])
		if !ok {
			return hit, unused, tip, off
		}
		nd := &k.nodes[id]
		l := common(nd.run, blocks[hit:limit])
		if nd.active == 0 {
			unused += l
		}
		hit += l
		tip, off = id, l
		if l < len(nd.run) {
			return hit, unused, tip, off
		}
	}
	return hit, unused, tip, off
}

// common returns the length of the common prefix of two chains that agree in their
// first hash. Chained hashes that agree at a depth agree before it.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	lo, hi := 1, n-1 // a[lo-1] == b[lo-1], a[hi] != b[hi]
	for lo < hi {
		m := (lo + hi) / 2
		if a[m] == b[m] {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// pin takes the prefix that match found into use and returns its last node.
func (k *kvPool) pin(tip int32, off int) int32 {
	if tip < 0 {
		return tip
	}
	tip = k.split(tip, off)
	k.acquire(tip)
	return tip
}

// split cuts a node off blocks into its run and returns the upper part; the lower
// part keeps the identity that sequences and children refer to.
func (k *kvPool) split(id int32, off int) int32 {
	if off == len(k.nodes[id].run) {
		return id
	}
	up := k.newNode()
	lo, u := &k.nodes[id], &k.nodes[up]
	u.run, lo.run = lo.run[:off:off], lo.run[off:]
	u.parent, lo.parent = lo.parent, up
	u.children, u.active = 1, 0
	k.index.put(u.run[0], up)
	k.index.put(lo.run[0], id)
	if lo.active > 0 {
		u.active = 1
	} else {
		k.linkAfter(id, up)
	}
	return up
}

// extend names blocks[from:to], which follow the last block of node tip, as
// computed by a sequence that holds tip. Where another sequence has named some of
// them already, they are shared. It returns the new last node.
func (k *kvPool) extend(tip int32, blocks []uint64, from, to int) int32 {
	for from < to {
		id, ok := k.index.get(blocks[from])
		if ok {
			l := common(k.nodes[id].run, blocks[from:to])
			id = k.split(id, l)
			k.acquire(id)
			if tip >= 0 {
				k.nodes[tip].active-- // the child in use counts instead
			}
			tip, from = id, from+l
			continue
		}
		n := to - from
		if tip >= 0 && k.nodes[tip].active == 1 && k.nodes[tip].children == 0 {
			nd := &k.nodes[tip]
			k.stored(blocks[from-1], true, blocks[from:to])
			nd.run = blocks[from-len(nd.run) : to : to]
		} else {
			child := k.newNode()
			nd := &k.nodes[child]
			nd.run, nd.parent, nd.active, nd.children = blocks[from:to:to], tip, 1, 0
			k.index.put(blocks[from], child)
			if tip >= 0 {
				k.nodes[tip].children++
				k.stored(blocks[from-1], true, nd.run)
			} else {
				k.stored(0, false, nd.run)
			}
			tip = child
		}
		k.named += n
		k.pinned += n
		from = to
	}
	return tip
}

func (k *kvPool) acquire(id int32) {
	for id >= 0 {
		nd := &k.nodes[id]
		nd.active++
		if nd.active > 1 {
			return
		}
		k.unlink(id)
		k.pinned += len(nd.run)
		id = nd.parent
	}
}

// release is the inverse of pin: the path is not in use by this sequence any more.
func (k *kvPool) release(id int32) {
	for id >= 0 {
		nd := &k.nodes[id]
		nd.active--
		if nd.active > 0 {
			return
		}
		k.pinned -= len(nd.run)
		k.linkAfter(k.newest, id)
		id = nd.parent
	}
}

// evict drops unused named blocks until what is in use fits.
func (k *kvPool) evict() {
	for over := k.anon + k.named - k.total; over > 0; {
		id := k.oldest
		nd := &k.nodes[id]
		n := min(over, len(nd.run))
		keep := len(nd.run) - n
		if k.record {
			k.changes = append(k.changes, BlockChange{Kind: BlocksRemoved, Blocks: nd.run[keep:]})
		}
		k.named -= n
		over -= n
		if keep > 0 {
			nd.run = nd.run[:keep:keep]
			continue
		}
		k.index.del(nd.run[0])
		if nd.parent >= 0 {
			k.nodes[nd.parent].children--
		}
		k.unlink(id)
		k.freeNode(id)
	}
}

func (k *kvPool) stored(parent uint64, has bool, run []uint64) {
	if k.record {
		k.changes = append(k.changes, BlockChange{Kind: BlocksStored, Parent: parent, HasParent: has, Blocks: run})
	}
}

func (k *kvPool) newNode() int32 {
	if k.free < 0 {
		k.nodes = append(k.nodes, kvNode{})
		return int32(len(k.nodes) - 1)
	}
	id := k.free
	k.free = k.nodes[id].next
	return id
}

func (k *kvPool) freeNode(id int32) {
	k.nodes[id] = kvNode{next: k.free}
	k.free = id
}

// linkAfter puts an unused node behind another one of the list; -1 means the front
// of an empty list.
func (k *kvPool) linkAfter(at, id int32) {
	nd := &k.nodes[id]
	nd.prev = at
	if at < 0 {
		nd.next, k.oldest = k.oldest, id
	} else {
		nd.next, k.nodes[at].next = k.nodes[at].next, id
	}
	if nd.next < 0 {
		k.newest = id
	} else {
		k.nodes[nd.next].prev = id
	}
}

func (k *kvPool) unlink(id int32) {
	nd := &k.nodes[id]
	if nd.prev < 0 {
		k.oldest = nd.next
	} else {
		k.nodes[nd.prev].next = nd.next
	}
	if nd.next < 0 {
		k.newest = nd.prev
	} else {
		k.nodes[nd.next].prev = nd.prev
	}
}
