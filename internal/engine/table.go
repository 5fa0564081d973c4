// SPDX-License-Identifier: Apache-2.0

package engine

import "math/bits"

// table maps 64-bit keys to slot numbers >= 0: open addressing with linear probing
// and backward-shift deletion, so that a long run of inserts and deletes neither
// allocates nor leaves tombstones. Iteration order does not exist.
type table struct {
	keys  []uint64
	vals  []int32 // -1: empty
	used  int
	shift uint
}

const tableMinBits = 6

func (t *table) reset() {
	for i := range t.vals {
		t.vals[i] = -1
	}
	t.used = 0
}

// home spreads keys that are small integers as well as hashes.
func (t *table) home(key uint64) uint64 { return key * 0x9e3779b97f4a7c15 >> t.shift }

func (t *table) get(key uint64) (int32, bool) {
	if t.used == 0 {
		return -1, false
	}
	mask := uint64(len(t.keys) - 1)
	for i := t.home(key); ; i = (i + 1) & mask {
		if t.vals[i] < 0 {
			return -1, false
		}
		if t.keys[i] == key {
			return t.vals[i], true
		}
	}
}

// put sets key to val, overwriting what was there.
func (t *table) put(key uint64, val int32) {
	if (t.used+1)*2 > len(t.keys) {
		t.grow()
	}
	mask := uint64(len(t.keys) - 1)
	for i := t.home(key); ; i = (i + 1) & mask {
		if t.vals[i] < 0 {
			t.keys[i], t.vals[i] = key, val
			t.used++
			return
		}
		if t.keys[i] == key {
			t.vals[i] = val
			return
		}
	}
}

func (t *table) del(key uint64) {
	if t.used == 0 {
		return
	}
	mask := uint64(len(t.keys) - 1)
	i := t.home(key)
	for t.keys[i] != key || t.vals[i] < 0 {
		if t.vals[i] < 0 {
			return
		}
		i = (i + 1) & mask
	}
	t.used--
	for j := i; ; {
		j = (j + 1) & mask
		if t.vals[j] < 0 {
			break
		}
		// An entry may move into the gap unless its home lies after the gap.
		if h := t.home(t.keys[j]); (j-h)&mask >= (j-i)&mask {
			t.keys[i], t.vals[i] = t.keys[j], t.vals[j]
			i = j
		}
	}
	t.vals[i] = -1
}

func (t *table) grow() {
	n := max(1<<tableMinBits, 2*len(t.keys))
	keys, vals := t.keys, t.vals
	t.keys, t.vals = make([]uint64, n), make([]int32, n)
	t.shift = uint(64 - bits.TrailingZeros(uint(n)))
	t.reset()
	for i, v := range vals {
		if v >= 0 {
			t.put(keys[i], v)
		}
	}
}
