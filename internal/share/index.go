// SPDX-License-Identifier: Apache-2.0

package share

import (
	"encoding/binary"
	"time"
)

// A router that starts with an empty prefix index asks another one for its own: a
// snapshot of hashes, of the same form as the one on disk. It asks one router at a
// time and takes what comes from that one only, over the connection on which that one
// proved that it knows the secret.
//
//	itemWant   nothing: send the index of the pool that was named last
//	itemIndex  total, offset, length (4 bytes each), bytes: a part of it; total 0: none
const (
	itemWant  = 0xF2
	itemIndex = 0xF3

	// indexMost bounds a snapshot in bytes, on both sides: about eight million blocks.
	indexMost = 64 << 20
	// indexPart is what one frame carries of it: notes pass between the parts.
	indexPart = 256 << 10
	// wantFor is how long an index is of use to a router that started; askAgain is how
	// long one router may take before the next one is asked, and asksMost how often the
	// same one is asked: one of an older version ends the connection instead.
	wantFor  = time.Minute
	askAgain = 5 * time.Second
	asksMost = 2
	// giveEvery is the least time between two snapshots for the same router and pool:
	// making one takes the pool's lock.
	giveEvery = 30 * time.Second
)

// Indexed is a Teller whose prefix index can be given to another router.
type Indexed interface {
	// SaveIndex appends a snapshot to dst; nothing where there is none.
	SaveIndex(dst []byte, check uint64) []byte
}

// want is the index of one pool that this router would like to have.
type want struct {
	take  func(data []byte) error
	until time.Time
	from  string // router that was asked last
	since time.Time
	asked map[string]int
	buf   []byte
	total int
}

// Want asks other routers for the prefix index of a pool and hands it to take, which
// says whether it is of use. Call it before Run.
func (x *Exchange) Want(pool string, take func(data []byte) error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.pools {
		if p.name == pool {
			x.wants[p.hash] = &want{take: take, until: time.Now().Add(wantFor), asked: map[string]int{}}
		}
	}
}

// Give lets other routers have the prefix index of a pool. Call it before Run.
func (x *Exchange) Give(pool string, check uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.pools {
		if p.name == pool {
			x.gives[p.hash] = check
		}
	}
}

// ask appends to out what is wanted of a router.
func (x *Exchange) ask(router string, out []byte) []byte {
	now := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	in := x.heard[router]
	if in == nil || !in.live || in.foreign {
		return out // it could not answer, or its hashes mean nothing here
	}
	for hash, w := range x.wants {
		switch {
		case now.After(w.until):
			delete(x.wants, hash)
			continue
		case w.asked[router] >= asksMost, w.from != "" && now.Sub(w.since) < askAgain:
			continue
		}
		w.from, w.since, w.buf, w.total = router, now, nil, 0
		w.asked[router]++
		out = append(appendPool(out, hash), itemWant)
	}
	return out
}

// wanted notes that a router wants the index of a pool.
func (x *Exchange) wanted(in *inbound, pool uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.gives[pool]; !ok || in.foreign || time.Since(in.given[pool]) < giveEvery {
		return
	}
	for _, l := range x.links {
		if l.router == in.router && l.up {
			if in.given == nil {
				in.given = map[uint64]time.Time{}
			}
			in.given[pool] = time.Now()
			l.asked = append(l.asked, pool)
			select {
			case l.wake <- struct{}{}:
			default:
			}
		}
	}
}

// give writes what the other side of a link asked for.
func (x *Exchange) give(f *framer, l *link) error {
	x.mu.Lock()
	asked := l.asked
	l.asked = nil
	x.mu.Unlock()
	for _, pool := range asked {
		x.mu.Lock()
		check := x.gives[pool]
		x.mu.Unlock()
		var data []byte
		if p, ok := x.pool(pool).(Indexed); ok {
			data = p.SaveIndex(nil, check)
		}
		if len(data) > indexMost {
			data = nil
		}
		x.o.Log.Info("a router asked for the prefix index", "router", l.router, "bytes", len(data))
		for at := 0; ; at += indexPart {
			part := data[min(at, len(data)):min(at+indexPart, len(data))]
			_ = f.c.SetWriteDeadline(time.Now().Add(goneAfter))
			if err := f.write(appendPart(appendPool(nil, pool), len(data), at, part)); err != nil {
				return err
			}
			if at+indexPart >= len(data) {
				break
			}
		}
	}
	return nil
}

// appendPart appends the part at offset at of an index of total bytes.
func appendPart(dst []byte, total, at int, part []byte) []byte {
	dst = append(dst, itemIndex)
	for _, v := range [...]int{total, at, len(part)} {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(v))
	}
	return append(dst, part...)
}

// part reads a part of an index.
func (r *noteReader) part() (total, at int, data []byte) {
	var v [3]uint32
	for i := range v {
		if b := r.take(4); b != nil {
			v[i] = binary.LittleEndian.Uint32(b)
		}
	}
	if v[0] > indexMost || v[1] > v[0] || v[2] > indexPart || v[2] > v[0]-v[1] {
		r.bad = true
	}
	return int(v[0]), int(v[1]), r.take(int(v[2]))
}

// gather takes a part of an index that came from a router. Parts that were not asked
// for, or come out of order, are passed over.
func (x *Exchange) gather(in *inbound, pool uint64, total, at int, data []byte) {
	x.mu.Lock()
	w := x.wants[pool]
	if w == nil || w.from != in.router || in.foreign || at != len(w.buf) || at > 0 && total != w.total {
		x.mu.Unlock()
		return
	}
	w.total, w.since = total, time.Now()
	w.buf = append(w.buf, data...)
	if total == 0 { // it has none: the next one is asked
		w.from = ""
	}
	if total == 0 || len(w.buf) < total {
		x.mu.Unlock()
		return
	}
	buf := w.buf
	w.buf = nil
	x.mu.Unlock()
	err := w.take(buf)
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.o.Log.Warn("the prefix index of another router is of no use", "router", in.router, "error", err)
		w.from = ""
		return
	}
	delete(x.wants, pool)
	x.o.Log.Info("took the prefix index of another router", "router", in.router, "bytes", len(buf))
}
