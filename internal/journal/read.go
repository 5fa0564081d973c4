// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"github.com/penstock-project/penstock/internal/route"
)

// maxLine bounds one line of a file.
const maxLine = 16 << 20

// ReadError says where a file is not a journal.
type ReadError struct {
	File string
	Line int
	Err  error
}

func (e *ReadError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

// Unwrap returns the error inside.
func (e *ReadError) Unwrap() error { return e.Err }

// Read yields the records of a journal in the order of the file. Errors come with
// file and line, and end it. A last line without its end, the trace of a crash or
// of a full disk, is left out. The header may be missing, so that records of
// `explain -o json` and cut files can be read, too.
func Read(name string, r io.Reader) iter.Seq2[*route.Record, error] {
	return func(yield func(*route.Record, error) bool) {
		br := bufio.NewReaderSize(r, 256<<10)
		for n := 1; ; n++ {
			line, err := readLine(br)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(nil, &ReadError{name, n, err})
				}
				return
			}
			if len(bytes.TrimSpace(line)) == 0 {
				continue
			}
			rec, err := parseLine(line)
			if err != nil {
				yield(nil, &ReadError{name, n, err})
				return
			}
			if rec != nil && !yield(rec, nil) {
				return
			}
		}
	}
}

// readLine returns a whole line. A line that the end of the file cuts counts only
// if it is whole JSON.
func readLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
			if len(line) > maxLine {
				return nil, errors.New("a line of more than 16 MiB")
			}
		case errors.Is(err, io.EOF) && len(line) > 0 && json.Valid(line):
			return line, nil
		default:
			return nil, err
		}
	}
}

// parseLine returns the record of a line, nil for the header and for records of
// other kinds.
func parseLine(line []byte) (*route.Record, error) {
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return nil, fmt.Errorf("not a line of JSON: %w", err)
	}
	kind, version, ok := strings.Cut(strings.TrimPrefix(head.Schema, "penstock/"), "/")
	switch {
	case !strings.HasPrefix(head.Schema, "penstock/") || !ok:
		return nil, fmt.Errorf("schema is %q, want %s or %s", head.Schema, Schema, route.Schema)
	case kind == "journal" && head.Schema != Schema, kind == "decision" && head.Schema != route.Schema:
		return nil, fmt.Errorf("schema %s is of another version (%s); this program reads %s", head.Schema, version, route.Schema)
	case kind != "decision":
		return nil, nil
	}
	r := new(route.Record)
	if err := json.Unmarshal(line, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Open yields the records of a file, or of all files of a directory, the oldest
// first.
func Open(path string) iter.Seq2[*route.Record, error] {
	return func(yield func(*route.Record, error) bool) {
		names := []string{path}
		if info, err := os.Stat(path); err != nil {
			yield(nil, err)
			return
		} else if info.IsDir() {
			if names, err = Files(path); err != nil {
				yield(nil, err)
				return
			}
		}
		for _, n := range names {
			f, err := os.Open(n)
			if err != nil {
				yield(nil, err)
				return
			}
			for r, err := range Read(n, f) {
				if !yield(r, err) || err != nil {
					f.Close()
					return
				}
			}
			f.Close()
		}
	}
}

// Find returns the newest record of a file or directory that passes the filter,
// nil where none does.
func Find(path string, f Filter) (*route.Record, error) {
	var last *route.Record
	for r, err := range Open(path) {
		if err != nil {
			return nil, err
		}
		if f.Match(r) {
			last = r
		}
	}
	return last, nil
}
