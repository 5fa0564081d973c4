// SPDX-License-Identifier: Apache-2.0

// Package journal keeps the records of decisions: the last ones in memory, and on
// disk as lines of JSON where a directory is given.
//
// The path of a request only swaps a pointer in a ring. The ring is also the
// queue of everybody who reads: the goroutine that writes to disk and each
// subscriber walk behind the newest record with a place of their own. Who is too
// slow is overtaken and told how many records it missed; nobody waits for a disk.
package journal

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/route"
)

// Options of a Journal.
type Options struct {
	Memory   int           // records in memory; 0: 10,000
	Dir      string        // directory of the files; "": nothing on disk
	MaxAge   time.Duration // files older than this are deleted; 0: 24 h
	MaxBytes int64         // most bytes on disk; 0: 1 GiB
	Router   string        // name of this router, for the header of a file
	Version  string        // version of this program, for the header of a file
	Log      *slog.Logger  // nil: discard

	create func(name string) (file, error) // nil: a new file on disk
}

// file is what the writer needs of a file.
type file interface {
	Write(p []byte) (int, error)
	Close() error
}

// Journal implements the recorders of package flow. All methods are safe for
// concurrent use.
type Journal struct {
	log  *slog.Logger
	opts Options

	mu   sync.Mutex
	ring []entry
	head uint64 // sequence number of the next record
	subs map[*reader]struct{}

	disk    *disk
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	dropped atomic.Uint64 // records that the disk missed
}

// entry is one place of the ring: a capture, or a record that came expanded.
type entry struct {
	seq    uint64
	c      *route.Capture
	r      *route.Record
	pinned int // readers that expand the capture at this moment
}

// New starts a journal. Close ends it. An error means that the directory cannot
// be used.
func New(o Options) (*Journal, error) {
	if o.Memory <= 0 {
		o.Memory = 10_000
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 24 * time.Hour
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 30
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	j := &Journal{log: o.Log, opts: o, ring: make([]entry, o.Memory), subs: map[*reader]struct{}{}}
	ctx, cancel := context.WithCancel(context.Background())
	j.cancel = cancel
	if o.Dir != "" {
		if err := os.MkdirAll(o.Dir, 0o750); err != nil {
			cancel()
			return nil, err
		}
		d, err := newDisk(o)
		if err != nil {
			cancel()
			return nil, err
		}
		j.disk = d
		rd := j.reader()
		j.wg.Go(func() { j.writeAll(ctx, rd) })
	}
	return j, nil
}

// Close writes what is still in memory, for at most a second, and ends the
// journal. Records that come later stay in memory only.
func (j *Journal) Close() error {
	j.cancel()
	done := make(chan struct{})
	go func() { j.wg.Wait(); close(done) }()
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		j.log.Warn("journal did not reach the disk in time")
	}
	return nil
}

// Capture keeps a capture and returns one that is no longer needed, or nil. It
// never blocks on anything but the lock of the ring.
func (j *Journal) Capture(c *route.Capture) *route.Capture {
	j.mu.Lock()
	e := &j.ring[j.head%uint64(len(j.ring))]
	old := e.c
	if e.pinned > 0 {
		old = nil // somebody reads it; the garbage collector takes it afterwards
	}
	*e = entry{seq: j.head, c: c}
	j.head++
	j.wakeAll()
	j.mu.Unlock()
	return old
}

// Record keeps an expanded record, which the caller does not change any more.
func (j *Journal) Record(r *route.Record) {
	j.mu.Lock()
	j.ring[j.head%uint64(len(j.ring))] = entry{seq: j.head, r: r}
	j.head++
	j.wakeAll()
	j.mu.Unlock()
}

func (j *Journal) wakeAll() {
	for s := range j.subs {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// at returns the record with sequence number seq, nil where it is gone or not yet
// there. Expanding happens outside the lock.
func (j *Journal) at(seq uint64) *route.Record {
	r, c := j.pin(seq)
	if c != nil {
		defer j.unpin(seq)
		return c.Record()
	}
	return r
}

// pin returns what is kept under a sequence number: an expanded record, or a capture
// that nobody takes for another request before unpin; neither where it is gone or not
// yet there.
func (j *Journal) pin(seq uint64) (*route.Record, *route.Capture) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := &j.ring[seq%uint64(len(j.ring))]
	if e.seq != seq || seq >= j.head {
		return nil, nil
	}
	if e.r == nil && e.c != nil {
		e.pinned++
		return nil, e.c
	}
	return e.r, nil
}

func (j *Journal) unpin(seq uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e := &j.ring[seq%uint64(len(j.ring))]; e.seq == seq {
		e.pinned--
	}
}

// bounds returns the sequence numbers of the oldest record and of the next one.
func (j *Journal) bounds() (first, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := uint64(len(j.ring))
	if j.head > n {
		first = j.head - n
	}
	return first, j.head
}

// Get returns the newest record of a request, false where memory holds none.
func (j *Journal) Get(id string) (*route.Record, bool) {
	first, next := j.bounds()
	for seq := next; seq > first; seq-- {
		if j.idAt(seq-1) == id {
			if r := j.at(seq - 1); r != nil && r.ID == id {
				return r, true
			}
		}
	}
	return nil, false
}

func (j *Journal) idAt(seq uint64) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := &j.ring[seq%uint64(len(j.ring))]
	switch {
	case e.seq != seq:
		return ""
	case e.r != nil:
		return e.r.ID
	case e.c != nil:
		return e.c.ID
	}
	return ""
}

// Last returns the newest record that passes the filter.
func (j *Journal) Last(f Filter) (*route.Record, bool) {
	if l := j.Query(f, 1); len(l) > 0 {
		return l[0], true
	}
	return nil, false
}

// Query returns up to limit records that pass the filter, the newest first.
func (j *Journal) Query(f Filter, limit int) []*route.Record {
	first, next := j.bounds()
	out := []*route.Record{}
	for seq := next; seq > first && len(out) < limit; seq-- {
		if r := j.at(seq - 1); r != nil && f.Match(r) {
			out = append(out, r)
		}
	}
	return out
}

// reader is one who walks behind the newest record.
type reader struct {
	j    *Journal
	next uint64
	wake chan struct{}
}

// reader starts at the newest record.
func (j *Journal) reader() *reader {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := &reader{j: j, next: j.head, wake: make(chan struct{}, 1)}
	j.subs[s] = struct{}{}
	return s
}

func (s *reader) close() {
	s.j.mu.Lock()
	defer s.j.mu.Unlock()
	delete(s.j.subs, s)
}

// read returns the next record and how many were missed before it; nil when there
// is none.
func (s *reader) read() (r *route.Record, missed uint64) {
	for {
		first, next := s.j.bounds()
		if s.next < first {
			missed += first - s.next
			s.next = first
		}
		if s.next >= next {
			return nil, missed
		}
		r = s.j.at(s.next)
		s.next++
		if r != nil {
			return r, missed
		}
		missed++
	}
}

// Subscribe returns the records that pass the filter from now on, until ctx ends;
// then the channel closes. A subscriber that falls behind by more than the memory
// misses records.
func (j *Journal) Subscribe(ctx context.Context, f Filter) <-chan *route.Record {
	out := make(chan *route.Record)
	s := j.reader()
	j.wg.Go(func() {
		defer close(out)
		defer s.close()
		for {
			r, _ := s.read()
			if r == nil {
				select {
				case <-ctx.Done():
					return
				case <-s.wake:
				}
				continue
			}
			if !f.Match(r) {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case out <- r:
			}
		}
	})
	return out
}

// Stats is the state of a journal.
type Stats struct {
	Records  uint64 `json:"records"`   // since the start
	InMemory int    `json:"in_memory"` // now
	Memory   int    `json:"memory"`    // at most
	Dir      string `json:"dir,omitempty"`
	Written  uint64 `json:"written"` // to disk
	Dropped  uint64 `json:"dropped"` // not written: the disk was full, broken or too slow
	Error    string `json:"error,omitempty"`
}

// Stats returns the state at this moment.
func (j *Journal) Stats() Stats {
	first, next := j.bounds()
	s := Stats{Records: next, InMemory: int(next - first), Memory: len(j.ring), Dropped: j.dropped.Load()}
	if j.disk != nil {
		s.Dir = j.opts.Dir
		s.Written = j.disk.written.Load()
		if e := j.disk.lastErr.Load(); e != nil {
			s.Error = *e
		}
	}
	return s
}

// Dir returns the directory of the files, "" where there is none.
func (j *Journal) Dir() string { return j.opts.Dir }
