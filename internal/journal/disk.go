// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/route"
)

// Schema is the schema name in the header line of a file.
const Schema = "penstock/journal/v1"

// Header is the first line of a file.
type Header struct {
	Schema  string    `json:"schema"`
	Records string    `json:"records"` // schema of the lines that follow
	Started time.Time `json:"started"`
	Router  string    `json:"router,omitempty"`
	Version string    `json:"version,omitempty"`
}

const (
	filePrefix = "penstock-"
	fileSuffix = ".jsonl"
	// A quarter of the limits is the coarsest step in which old records go.
	segments   = 4
	maxSegment = 64 << 20
	minSegment = 64 << 10
	retryAfter = 5 * time.Second
	pruneEvery = time.Minute
)

// disk writes records to files. One goroutine owns it.
type disk struct {
	dir      string
	maxAge   time.Duration
	maxBytes int64
	header   Header
	create   func(name string) (file, error)

	f       file
	w       *bufio.Writer
	name    string
	size    int64
	opened  time.Time
	retry   time.Time // no attempt before
	pruned  time.Time
	pending uint64 // records in w that no flush has confirmed

	written atomic.Uint64
	lastErr atomic.Pointer[string]
}

func newDisk(o Options) (*disk, error) {
	d := &disk{
		dir: o.Dir, maxAge: o.MaxAge, maxBytes: o.MaxBytes, create: o.create,
		header: Header{Schema: Schema, Records: route.Schema, Router: o.Router, Version: o.Version},
	}
	if d.create == nil {
		d.create = func(name string) (file, error) {
			return os.OpenFile(filepath.Join(o.Dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		}
		probe, err := os.CreateTemp(o.Dir, ".penstock-probe-*")
		if err != nil {
			return nil, fmt.Errorf("journal directory: %w", err)
		}
		probe.Close()
		os.Remove(probe.Name())
	}
	return d, nil
}

// writeAll is the goroutine that writes.
func (j *Journal) writeAll(ctx context.Context, s *reader) {
	defer s.close()
	defer j.disk.close()
	tick := time.NewTicker(pruneEvery)
	defer tick.Stop()
	for {
		j.drain(s)
		select {
		case <-ctx.Done():
			j.drain(s)
			return
		case <-s.wake:
		case <-tick.C:
		}
	}
}

// drain writes what there is, then flushes.
func (j *Journal) drain(s *reader) {
	d := j.disk
	lost := func(n uint64, err error) {
		j.dropped.Add(n)
		if err == nil {
			return
		}
		msg := err.Error()
		if old := d.lastErr.Swap(&msg); old == nil || *old != msg {
			j.log.Warn("journal cannot be written, records are kept in memory only", "dir", d.dir, "error", err)
		}
	}
	for {
		r, missed := s.read()
		lost(missed, nil)
		if r == nil {
			break
		}
		if n, err := d.write(time.Now(), r); err != nil {
			lost(n, err)
		}
	}
	if n, err := d.flush(); err != nil {
		lost(n, err)
	}
	if d.lastErr.Load() != nil && d.f != nil && d.size > 0 {
		d.lastErr.Store(nil)
		j.log.Info("journal is written again", "dir", d.dir)
	}
	d.prune(time.Now())
}

var errWaiting = errors.New("waiting before the next attempt")

// write appends a record and returns how many records were lost by an error.
func (d *disk) write(now time.Time, r *route.Record) (lost uint64, err error) {
	if now.Before(d.retry) {
		if e := d.lastErr.Load(); e != nil {
			return 1, errors.New(*e)
		}
		return 1, errWaiting
	}
	if d.f != nil && (d.size >= d.segmentBytes() || now.Sub(d.opened) >= d.maxAge/segments) {
		if n, err := d.flush(); err != nil {
			return n + 1, err
		}
		d.close()
	}
	if d.f == nil {
		if err := d.open(now); err != nil {
			d.retry = now.Add(retryAfter)
			return 1, err
		}
	}
	line, err := json.Marshal(r)
	if err != nil {
		return 1, err
	}
	line = append(line, '\n')
	if _, err := d.w.Write(line); err != nil {
		return d.fail(now) + 1, err
	}
	d.size += int64(len(line))
	d.pending++
	return 0, nil
}

func (d *disk) segmentBytes() int64 {
	return min(max(d.maxBytes/segments, minSegment), maxSegment)
}

func (d *disk) open(now time.Time) error {
	name := filePrefix + now.UTC().Format("20060102T150405.000000") + "Z" + fileSuffix
	f, err := d.create(name)
	if err != nil {
		return err
	}
	d.f, d.w, d.name, d.size, d.opened, d.pending = f, bufio.NewWriterSize(f, 64<<10), name, 0, now, 0
	h := d.header
	h.Started = now.UTC()
	line, err := json.Marshal(h)
	if err == nil {
		_, err = d.w.Write(append(line, '\n'))
	}
	if err != nil {
		d.fail(now)
	}
	return err
}

// fail gives the file up: what follows a torn line belongs into a new one.
func (d *disk) fail(now time.Time) (lost uint64) {
	lost, d.pending = d.pending, 0
	if d.f != nil {
		d.f.Close()
	}
	d.f, d.w = nil, nil
	d.retry = now.Add(retryAfter)
	return lost
}

func (d *disk) flush() (lost uint64, err error) {
	if d.w == nil || d.w.Buffered() == 0 && d.pending == 0 {
		return 0, nil
	}
	if err := d.w.Flush(); err != nil {
		return d.fail(time.Now()), err
	}
	d.written.Add(d.pending)
	d.pending = 0
	return 0, nil
}

func (d *disk) close() {
	if d.f != nil {
		_, _ = d.flush()
	}
	if d.f != nil {
		d.f.Close()
	}
	d.f, d.w = nil, nil
}

// prune deletes files that are too old, and the oldest while all together are too
// large. It touches only files of its own naming, never the one in use.
func (d *disk) prune(now time.Time) {
	if now.Sub(d.pruned) < pruneEvery {
		return
	}
	d.pruned = now
	names, err := Files(d.dir)
	if err != nil {
		return
	}
	var total int64
	for i := len(names) - 1; i >= 0; i-- {
		info, err := os.Stat(names[i])
		if err != nil {
			continue
		}
		total += info.Size()
		if filepath.Base(names[i]) == d.name {
			continue
		}
		if now.Sub(info.ModTime()) > d.maxAge || total > d.maxBytes {
			os.Remove(names[i])
			total -= info.Size()
		}
	}
}

// Files lists the journal files of a directory, the oldest first.
func Files(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		n := e.Name()
		if e.Type().IsRegular() && strings.HasPrefix(n, filePrefix) && strings.HasSuffix(n, fileSuffix) {
			out = append(out, filepath.Join(dir, n))
		}
	}
	slices.Sort(out) // the names sort by time
	return out, nil
}
