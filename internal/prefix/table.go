// SPDX-License-Identifier: Apache-2.0

package prefix

// table is a multimap from a 32-bit tag to an id. It does extendible hashing: a
// directory over segments of fixed size, of which one at a time splits when it is
// full. So it grows in steps of a few microseconds, whatever its size. Callers
// check the id they get against the full key; ids are never 0.
type table struct {
	dir   []*segment
	shift uint8 // 32 - log2(len(dir))
	n     int
	segs  int
}

const (
	segBits  = 10
	segSlots = 1 << segBits
	segMask  = segSlots - 1
	segFull  = segSlots * 7 / 8
)

type segment struct {
	slots [segSlots]uint64 // tag<<32 | id; 0 free
	n     int
	depth uint8
}

// tagOf spreads a 64-bit key; the low bits find the slot, the high ones the segment.
func tagOf(key uint64) uint32 { return uint32((key * chainMul) >> 32) }

func newTable() table { return table{dir: []*segment{{}}, shift: 32, segs: 1} }

func (t *table) seg(tag uint32) *segment { return t.dir[tag>>t.shift] }

func (t *table) insert(tag, id uint32) {
	s := t.seg(tag)
	for s.n >= segFull {
		// A segment whose tags are all alike cannot be split further; the last
		// eighth takes a few of them, and 22 bits of directory are enough for
		// four thousand million entries.
		if s.depth >= 32-segBits {
			break
		}
		t.split(tag)
		s = t.seg(tag)
	}
	i := tag & segMask
	for s.slots[i] != 0 {
		i = (i + 1) & segMask
	}
	s.slots[i] = uint64(tag)<<32 | uint64(id)
	s.n++
	t.n++
}

func (t *table) split(tag uint32) {
	s := t.seg(tag)
	if int(s.depth) == 32-int(t.shift) {
		dir := make([]*segment, 2*len(t.dir))
		for i, p := range t.dir {
			dir[2*i], dir[2*i+1] = p, p
		}
		t.dir = dir
		t.shift--
	}
	bit := uint32(1) << (31 - s.depth)
	lo, hi := &segment{depth: s.depth + 1}, &segment{depth: s.depth + 1}
	for _, v := range s.slots {
		if v == 0 {
			continue
		}
		to := lo
		if uint32(v>>32)&bit != 0 {
			to = hi
		}
		i := uint32(v>>32) & segMask
		for to.slots[i] != 0 {
			i = (i + 1) & segMask
		}
		to.slots[i] = v
		to.n++
	}
	first := int(tag>>t.shift) &^ (1<<(32-int(t.shift)-int(s.depth)) - 1)
	count := 1 << (32 - int(t.shift) - int(s.depth))
	for i := range count {
		if i < count/2 {
			t.dir[first+i] = lo
		} else {
			t.dir[first+i] = hi
		}
	}
	t.segs++
}

// replace changes the id of the entry (tag, from).
func (t *table) replace(tag, from, to uint32) {
	s := t.seg(tag)
	for i := tag & segMask; s.slots[i] != 0; i = (i + 1) & segMask {
		if s.slots[i] == uint64(tag)<<32|uint64(from) {
			s.slots[i] = uint64(tag)<<32 | uint64(to)
			return
		}
	}
}

// remove deletes the entry (tag, id) and closes the gap.
func (t *table) remove(tag, id uint32) {
	s := t.seg(tag)
	i := tag & segMask
	for s.slots[i] != uint64(tag)<<32|uint64(id) {
		if s.slots[i] == 0 {
			return
		}
		i = (i + 1) & segMask
	}
	s.n--
	t.n--
	for j := i; ; {
		j = (j + 1) & segMask
		v := s.slots[j]
		if v == 0 {
			break
		}
		home := uint32(v>>32) & segMask
		if (j-home)&segMask >= (j-i)&segMask {
			s.slots[i] = v
			i = j
		}
	}
	s.slots[i] = 0
}

func (t *table) bytes() int64 { return int64(t.segs)*(segSlots*8+16) + int64(len(t.dir))*8 }
