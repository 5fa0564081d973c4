// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
)

// Lines is a file of JSON lines that is bounded: when it is full it becomes NAME.1 and
// a new one begins. It is safe for concurrent use.
type Lines struct {
	name string
	most int64

	mu   sync.Mutex
	f    *os.File
	w    *bufio.Writer
	size int64
}

// OpenLines appends to a file in dir; most bounds it in bytes, twice that is kept.
func OpenLines(dir, name string, most int64) (*Lines, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	l := &Lines{name: filepath.Join(dir, name), most: most}
	return l, l.open()
}

func (l *Lines) open() error {
	f, err := os.OpenFile(l.name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.w, l.size = f, bufio.NewWriter(f), st.Size()
	return nil
}

// Write appends one value. fresh reports that a new file was begun with it: a reader
// of that file alone has seen nothing before.
func (l *Lines) Write(v any) (fresh bool, err error) {
	b, err := json.Marshal(v)
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return false, os.ErrClosed
	}
	if l.size > 0 && l.size+int64(len(b)) > l.most {
		if err := l.close(); err != nil {
			return false, err
		}
		if err := os.Rename(l.name, l.name+".1"); err != nil {
			return false, err
		}
		if err := l.open(); err != nil {
			return false, err
		}
	}
	fresh = l.size == 0
	if _, err = l.w.Write(append(b, '\n')); err == nil {
		err = l.w.Flush()
	}
	l.size += int64(len(b)) + 1
	return fresh, err
}

func (l *Lines) close() error {
	err := l.w.Flush()
	if cerr := l.f.Close(); err == nil {
		err = cerr
	}
	l.f = nil
	return err
}

// Close ends the file.
func (l *Lines) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	return l.close()
}
