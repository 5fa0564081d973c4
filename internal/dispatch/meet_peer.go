// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/route"
)

// A request that leads is told to other routers with what theirs need to follow it: the
// key by which it is found, and some hashes of its blocks. Blocks are chained, so the
// hash of one stands for all before it, and every so many of them tell closely enough
// how much of another prompt is the same.

// MarksMost bounds the hashes of a request that leads, as they are told.
const MarksMost = 64

// meetKey is the key under which requests find the one that leads them: of the first
// block that no replica holds, and of what parts turns in a queue.
func (d *Dispatch) meetKey(e *entry, tie uint64) uint64 {
	if tie == 0 || len(e.req.Blocks) == 0 {
		return 0
	}
	who := uint64(e.req.Class) + 1
	if e.req.Tenant != "" {
		who = route.Mix(who, xxh3.HashString(e.req.Tenant))
	}
	return route.Mix(tie, who)
}

// mark notes what is told of the blocks of an entry that leads: the hash of each last
// of stride blocks.
func (e *entry) mark() {
	n := len(e.req.Blocks)
	e.stride = int32((n + MarksMost - 1) / MarksMost)
	e.marks = e.marks[:0]
	for k := int(e.stride) - 1; k < n; k += int(e.stride) {
		e.marks = append(e.marks, e.req.Blocks[k])
	}
}

// commonMarks is a number of leading blocks that a prompt shares with one of which
// marks tell; at most stride-1 less than there are.
func commonMarks(blocks, marks []uint64, stride int) int {
	n := 0
	for k := range marks {
		at := (k+1)*stride - 1
		if at >= len(blocks) || blocks[at] != marks[k] {
			break
		}
		n = at + 1
	}
	return n
}

// hearLead lets requests follow one that another router holds, unless another one leads
// them already.
func (d *Dispatch) hearLead(i int32, n *Note) {
	e := &d.entries[i]
	if n.Lead == 0 || n.Stride < 1 || len(n.Blocks) == 0 {
		return
	}
	if _, ok := d.leaders[n.Lead]; ok {
		return
	}
	e.stride = n.Stride
	e.marks = append(e.marks[:0], n.Blocks[:min(len(n.Blocks), MarksMost)]...)
	d.crown(i, n.Lead)
}

// hearFollow puts a request that another router holds behind the one that it follows.
func (d *Dispatch) hearFollow(i int32, n *Note) {
	e := &d.entries[i]
	e.bucket = max(e.bucket, min(int8(n.Line&0x7f), buckets-1))
	if k, ok := d.leaders[n.Follow]; ok && d.entries[k].slot == e.slot {
		d.waitBehind(i, k)
	}
}

// waitBehind keeps entry i behind the one that leads it, which waits at the same slot.
func (d *Dispatch) waitBehind(i, led int32) {
	e, o := &d.entries[i], &d.entries[led]
	e.bucket = max(e.bucket, o.bucket)
	if e.peer != 0 || o.peer != 0 { // else their common bucket does that
		e.behind, e.behindGen = led+1, o.gen
	}
}

// waitsBehind returns the entry that e waits behind, of another router or before one of
// another router; nil where it waits for none, or that one waits there no more.
func (d *Dispatch) waitsBehind(e *entry) *entry {
	if e.behind == 0 {
		return nil
	}
	o := &d.entries[e.behind-1]
	if o.state != statePeerHeld && o.state != stateQueued || o.gen != e.behindGen || o.slot != e.slot {
		e.behind = 0
		return nil
	}
	return o
}
