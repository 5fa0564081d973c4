// SPDX-License-Identifier: Apache-2.0

package prefix

// Keep lets blocks leave, the least recently used first, until at most so many are
// believed to be at the replica: its engine said that it caches no more than that.
// Blocks of requests in flight stay.
func (x *Index) Keep(slot int32, blocks int) {
	l := x.lane(slot)
	if l == nil {
		return
	}
	for steps := 0; l.used > int64(max(blocks, 0)) && l.oldest != 0 && steps < evictStep; steps++ {
		x.giveUp(l.oldest, l.used-int64(max(blocks, 0)))
	}
}

// evictStep bounds the runs that one call lets leave, some fifty microseconds of work;
// the next calls go on.
const evictStep = 256
