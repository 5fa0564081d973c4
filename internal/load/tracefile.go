// SPDX-License-Identifier: Apache-2.0

package load

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/penstock-project/penstock/internal/workload"
)

// ReadTraceFile reads a trace from a file, "-" being stdin. Gzip and tar are unpacked; of an
// archive the members whose name contains member are read, one client each.
func ReadTraceFile(name string, stdin io.Reader, member string, o workload.ReadOptions) (*workload.Trace, error) {
	in := stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	o.Name = filepath.Base(name)
	if name == "-" {
		o.Name = "stdin"
	}
	r := bufio.NewReaderSize(in, 64<<10)
	if magic, _ := r.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		defer z.Close()
		r = bufio.NewReaderSize(z, 64<<10)
	}
	// A tar header has its magic at byte 257.
	if head, _ := r.Peek(262); len(head) == 262 && string(head[257:262]) == "ustar" {
		return readArchive(tar.NewReader(r), member, o)
	}
	return workload.ReadTrace(r, o)
}

func readArchive(a *tar.Reader, member string, o workload.ReadOptions) (*workload.Trace, error) {
	archive := o.Name
	var all *workload.Trace
	for {
		h, err := a.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", archive, err)
		}
		if h.Typeflag != tar.TypeReg || strings.HasPrefix(path.Base(h.Name), ".") || !strings.Contains(h.Name, member) {
			continue
		}
		o.Name = h.Name
		t, err := workload.ReadTrace(a, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", archive, err)
		}
		if all == nil {
			all = t
		} else if err := all.Add(t); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", archive, h.Name, err)
		}
	}
	if all == nil {
		if member != "" {
			return nil, fmt.Errorf("%s: no member's name contains %q", archive, member)
		}
		return nil, fmt.Errorf("%s: %w", archive, errors.New("the archive holds no file"))
	}
	return all, nil
}
