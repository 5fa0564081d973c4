// SPDX-License-Identifier: Apache-2.0

package prefix

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/zeebo/xxh3"
)

// The snapshot, all numbers unsigned varints unless said:
//
//	"PSPX", version, key check (8 bytes, little endian)
//	runs: count, then for each: 0 or 1 + number of the run above it, length,
//	      hashes (8 bytes each, little endian)
//	replicas: count, then for each: name (length, bytes), believed capacity in
//	      thousandths of the KV capacity, holds: count, then for each, oldest
//	      first: number of the run, leading blocks of it
//	xxh3 of everything before (8 bytes, little endian)
//
// A run above comes before the runs below it. There are hashes and names of
// replicas in it, never text.
const (
	snapshotMagic   = "PSPX"
	snapshotVersion = 1
	nameMax         = 1024
)

// ErrSnapshot is wrapped by every error of Load.
var ErrSnapshot = errors.New("prefix snapshot")

// Save appends a snapshot of the index to dst. check identifies how hashes were
// made (router key, block length); Load refuses another one. name gives a replica's
// stable identity, which should change when its process restarts; a replica
// without a name ("") is left out. It takes time proportional to the index: call
// it off the request path.
func (x *Index) Save(dst []byte, check uint64, name func(slot int32) string) []byte {
	start := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = binary.AppendUvarint(dst, snapshotVersion)
	dst = binary.LittleEndian.AppendUint64(dst, check)

	number := make([]uint32, x.s.nodeTop+1) // node -> 1 + its number
	var order []uint32                      // holds that name each run first
	var slots []int32
	for slot := range x.slotLane {
		l := x.lane(int32(slot))
		if l == nil || name(int32(slot)) == "" {
			continue
		}
		slots = append(slots, int32(slot))
		for i := l.pinNew; i != 0; i = x.s.hold(i).older {
			order = x.number(order, number, i)
		}
		for i := l.newest; i != 0; i = x.s.hold(i).older {
			order = x.number(order, number, i)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(order)))
	for _, i := range order {
		h := x.s.hold(i)
		above := uint32(0)
		if h.up != 0 {
			above = number[x.s.hold(h.up).node]
		}
		run := x.s.run(x.s.node(h.node))
		dst = binary.AppendUvarint(dst, uint64(above))
		dst = binary.AppendUvarint(dst, uint64(len(run)))
		for _, b := range run {
			dst = binary.LittleEndian.AppendUint64(dst, b)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(slots)))
	for _, slot := range slots {
		dst = x.saveReplica(dst, slot, name(slot), number)
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:]))
}

// number gives the node of a hold the next number, the nodes above it first.
func (x *Index) number(order []uint32, number []uint32, i uint32) []uint32 {
	h := x.s.hold(i)
	if number[h.node] != 0 {
		return order
	}
	if h.up != 0 {
		order = x.number(order, number, h.up)
	}
	number[h.node] = uint32(len(order)) + 1
	return append(order, i)
}

func (x *Index) saveReplica(dst []byte, slot int32, name string, number []uint32) []byte {
	l := x.lane(slot)
	dst = binary.AppendUvarint(dst, uint64(len(name)))
	dst = append(dst, name...)
	share := uint64(0)
	if l.kv > 0 {
		share = uint64(math.Round(1000 * l.capacity / l.kv))
	}
	dst = binary.AppendUvarint(dst, share)
	n := 0
	count := func(uint32, *hold) { n++ }
	save := func(_ uint32, h *hold) {
		dst = binary.AppendUvarint(dst, uint64(number[h.node]-1))
		dst = binary.AppendUvarint(dst, uint64(h.held))
	}
	x.eachHold(l, count)
	dst = binary.AppendUvarint(dst, uint64(n))
	x.eachHold(l, save)
	return dst
}

// eachHold visits the lane's holds, those that leave first first.
func (x *Index) eachHold(l *lane, visit func(i uint32, h *hold)) {
	for _, first := range [...]uint32{l.oldest, l.pinOld} {
		for i := first; i != 0; {
			h := x.s.hold(i)
			if h.held > 0 {
				visit(i, h)
			}
			i = h.newer
		}
	}
}

// run of a snapshot: where its hashes are in the data and how deep it ends.
type savedRun struct {
	above  int32 // -1: none
	at     int
	length int
	depth  int // blocks to the end of the run
}

// maxDepth bounds the length of a chain that Load accepts, in blocks.
const maxDepth = 1 << 20

// Load adds what a snapshot holds to the index, as if it had just been sent in the
// order of its last use. slot maps a name to the replica's slot, negative where
// there is no such replica any more. The data are checked in full before the
// first change; every error wraps ErrSnapshot.
func (x *Index) Load(data []byte, check uint64, slot func(name string) int32) error {
	r, runs, err := readSnapshot(data, check)
	if err != nil {
		return err
	}
	l := loader{x: x, data: r.data, runs: runs, slot: slot}
	r.replicas(runs, &l)
	return nil
}

// Check reports why Load would refuse a snapshot.
func (x *Index) Check(data []byte, check uint64) error {
	_, _, err := readSnapshot(data, check)
	return err
}

// readSnapshot checks a snapshot in full. It returns a reader that stands before the
// replicas.
func readSnapshot(data []byte, check uint64) (*reader, []savedRun, error) {
	const tail = 8
	no := func(format string, a ...any) (*reader, []savedRun, error) {
		return nil, nil, fmt.Errorf("%w: "+format, append([]any{ErrSnapshot}, a...)...)
	}
	if len(data) < len(snapshotMagic)+1+8+tail || string(data[:len(snapshotMagic)]) != snapshotMagic {
		return no("not a snapshot")
	}
	body, sum := data[:len(data)-tail], binary.LittleEndian.Uint64(data[len(data)-tail:])
	if xxh3.Hash(body) != sum {
		return no("checksum does not match")
	}
	r := &reader{data: body, at: len(snapshotMagic)}
	if v := r.uvarint(math.MaxUint32); v != snapshotVersion {
		return no("version %d, want %d", v, snapshotVersion)
	}
	if c := r.fixed(); !r.bad && c != check {
		return no("made with another key or block length")
	}
	runs := r.runs()
	replicas := r.at
	r.replicas(runs, nil)
	if r.bad || r.at != len(body) {
		return no("malformed at byte %d", r.at)
	}
	r.at = replicas
	return r, runs, nil
}

// reader reads the snapshot and stays bad after the first malformed number.
type reader struct {
	data []byte
	at   int
	bad  bool
}

func (r *reader) uvarint(most uint64) uint64 {
	v, n := binary.Uvarint(r.data[min(r.at, len(r.data)):])
	if r.bad || n <= 0 || v > most {
		r.bad = true
		return 0
	}
	r.at += n
	return v
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.data)-r.at {
		r.bad = true
		return nil
	}
	r.at += n
	return r.data[r.at-n : r.at]
}

func (r *reader) fixed() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// left bounds a count of things of at least one byte each.
func (r *reader) left() uint64 { return uint64(len(r.data) - min(r.at, len(r.data))) }

func (r *reader) runs() []savedRun {
	n := int(r.uvarint(r.left()))
	runs := make([]savedRun, 0, min(n, int(r.left())/10))
	for i := 0; i < n && !r.bad; i++ {
		s := savedRun{above: int32(r.uvarint(uint64(i))) - 1, length: int(r.uvarint(maxRun))}
		s.depth = s.length
		if s.above >= 0 {
			s.depth += runs[s.above].depth
		}
		s.at = r.at
		r.take(8 * s.length)
		r.bad = r.bad || s.length == 0 || s.depth > maxDepth
		runs = append(runs, s)
	}
	return runs
}

func (r *reader) replicas(runs []savedRun, l *loader) {
	n := r.uvarint(r.left())
	for i := uint64(0); i < n && !r.bad; i++ {
		name := r.take(int(r.uvarint(nameMax)))
		share := r.uvarint(1000)
		if l != nil {
			l.replica(string(name), float64(share)/1000)
		}
		holds := r.uvarint(r.left())
		for j := uint64(0); j < holds && !r.bad; j++ {
			run, held := int(r.uvarint(math.MaxInt32)), int(r.uvarint(maxRun))
			if run >= len(runs) || held == 0 || held > runs[run].length {
				r.bad = true
				return
			}
			if l != nil {
				l.hold(run, held)
			}
		}
	}
}

type loader struct {
	x     *Index
	data  []byte
	runs  []savedRun
	slot  func(name string) int32
	to    int32
	chain []uint64
}

func (l *loader) replica(name string, share float64) {
	l.to = l.slot(name)
	if lane := l.x.lane(l.to); lane != nil && share > 0 && lane.kv > 0 {
		lane.capacity = max(min(share, maxShare), minShare) * lane.kv
	}
}

func (l *loader) hold(run, held int) {
	if l.to < 0 {
		return
	}
	n := l.runs[run].depth - l.runs[run].length + held
	if cap(l.chain) < n {
		l.chain = make([]uint64, n+n/2)
	}
	l.chain = l.chain[:n]
	for n > 0 {
		s := &l.runs[run]
		n -= held
		for k := range held {
			l.chain[n+k] = binary.LittleEndian.Uint64(l.data[s.at+8*k:])
		}
		if s.above < 0 {
			break
		}
		run, held = int(s.above), l.runs[s.above].length
	}
	l.x.Insert(fleet.Time(0), l.to, l.chain)
}
