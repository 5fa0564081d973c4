// SPDX-License-Identifier: Apache-2.0

package promptlog

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// FileOptions describe a directory of files.
type FileOptions struct {
	Dir      string
	MaxAge   time.Duration // no entry is kept for longer; 0: 72 h
	MaxBytes int64         // of all files; the oldest go first; 0: 1 GiB
	FileSize int64         // a file is closed at this size; 0: an eighth of MaxBytes, 64 MiB at most
	Log      *slog.Logger  // nil: discard
	Clock    func() time.Time
}

const (
	fileQueue  = 4096 // entries that wait to be written; more are dropped and counted
	filePrefix = "prompts-"
	fileSuffix = ".jsonl"
	fileStamp  = "20060102T150405.000000000Z"
	fileParts  = 8 // files in the time that entries are kept
)

// File writes entries as JSON lines, and deletes them when their time is over. Files
// are readable by their owner only.
type File struct {
	o       FileOptions
	queue   chan []byte
	done    chan struct{}
	closed  sync.Once
	Written atomic.Uint64
	Dropped atomic.Uint64

	f     *os.File
	w     *bufio.Writer
	size  int64
	began time.Time
}

// NewFile opens the directory, and deletes what is over.
func NewFile(o FileOptions) (*File, error) {
	if o.MaxAge <= 0 {
		o.MaxAge = 72 * time.Hour
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 30
	}
	if o.FileSize <= 0 {
		o.FileSize = min(max(o.MaxBytes/8, 1<<10), 64<<20)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	f := &File{o: o, queue: make(chan []byte, fileQueue), done: make(chan struct{})}
	if err := f.expire(o.Clock()); err != nil {
		return nil, err
	}
	go f.run()
	return f, nil
}

// Take implements Sink.
func (f *File) Take(r *Record) {
	select {
	case f.queue <- append(r.AppendJSON(make([]byte, 0, 768)), '\n'):
	default:
		f.Dropped.Add(1)
	}
}

// Close writes what waits and ends.
func (f *File) Close() {
	f.closed.Do(func() {
		close(f.queue)
		<-f.done
	})
}

// run writes until the queue is closed.
func (f *File) run() {
	defer close(f.done)
	defer f.finish()
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case line, ok := <-f.queue:
			if !ok {
				return
			}
			if err := f.write(line); err != nil {
				f.Dropped.Add(1)
				f.o.Log.Error("the prompt log cannot be written", "dir", f.o.Dir, "error", err)
			}
		case <-t.C:
			if f.w != nil {
				_ = f.w.Flush() // the next write tells of an error
			}
			if err := f.expire(f.o.Clock()); err != nil {
				f.o.Log.Error("old prompts cannot be deleted", "dir", f.o.Dir, "error", err)
			}
		}
	}
}

func (f *File) finish() {
	if f.f != nil {
		_ = f.w.Flush()
		f.f.Close()
		f.f, f.w = nil, nil
	}
}

func (f *File) write(line []byte) error {
	now := f.o.Clock()
	if f.f != nil && (f.size+int64(len(line)) > f.o.FileSize || now.Sub(f.began) > f.o.MaxAge/fileParts) {
		f.finish()
	}
	if f.f == nil {
		path := filepath.Join(f.o.Dir, filePrefix+now.UTC().Format(fileStamp)+fileSuffix)
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		f.f, f.w, f.size, f.began = file, bufio.NewWriter(file), 0, now
		if err := f.expire(now); err != nil {
			return err
		}
	}
	n, err := f.w.Write(line)
	f.size += int64(n)
	if err == nil {
		f.Written.Add(1)
	}
	return err
}

// expire deletes files whose oldest entry is over, and the oldest ones beyond MaxBytes.
// A file's name is the time of its first entry, so that no entry outlives its time by
// waiting for younger ones.
func (f *File) expire(now time.Time) error {
	list, err := os.ReadDir(f.o.Dir)
	if err != nil {
		return err
	}
	type old struct {
		path  string
		began time.Time
		size  int64
	}
	var files []old
	var total int64
	for _, d := range list {
		stamp, ok := strings.CutPrefix(d.Name(), filePrefix)
		stamp, isLog := strings.CutSuffix(stamp, fileSuffix)
		began, err := time.Parse(fileStamp, stamp)
		if !ok || !isLog || err != nil {
			continue // not ours
		}
		info, err := d.Info()
		if err != nil {
			continue // deleted meanwhile
		}
		files = append(files, old{filepath.Join(f.o.Dir, d.Name()), began, info.Size()})
		total += info.Size()
	}
	slices.SortFunc(files, func(a, b old) int { return a.began.Compare(b.began) })
	for _, x := range files {
		if now.Sub(x.began) < f.o.MaxAge && total <= f.o.MaxBytes {
			break
		}
		if f.f != nil && x.path == f.f.Name() {
			f.finish()
		}
		if err := os.Remove(x.path); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("%s: %w", filepath.Base(x.path), err)
		}
		total -= x.size
	}
	return nil
}
