// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// Arrivals is when the variants of a model were asked for.
type Arrivals struct {
	Names []string    // in the order of the number of requests, most first
	At    [][]float64 // seconds from the first of all, rising
	Span  float64     // seconds from the first to the last, and one mean gap
}

// arrivalColumns are the names under which files keep the time and the variant.
func arrivalColumns() [2][]string {
	return [2][]string{
		append([]string{"time", "timestamp_ms", "arrival_ms"}, logColumns()[0]...),
		{"variant", "model", "adapter", "lora", "lora_id", "model_id", "model_name", "app", "application_id", "service", "tenant"},
	}
}

// HasVariants reports whether the first line of a file is the header of a list of
// arrivals, or such a list without one: a time and a name.
func HasVariants(line string) bool {
	cells := strings.Split(strings.TrimPrefix(line, bomPrefix), ",")
	for i := range cells {
		cells[i] = columnName(cells[i])
	}
	t, v := arrivalIndex(cells)
	return t >= 0 && v >= 0 || bareArrival(cells)
}

func arrivalIndex(names []string) (at, variant int) {
	find := func(known []string) int {
		for _, k := range known {
			if i := slices.Index(names, k); i >= 0 {
				return i
			}
		}
		return -1
	}
	c := arrivalColumns()
	return find(c[0]), find(c[1])
}

// bareArrival reports whether two cells are a time and a name.
func bareArrival(cells []string) bool {
	if len(cells) != 2 || cells[1] == "" || isNumber(cells[1]) {
		return false
	}
	_, err := (&row{l: &lines{}, names: []string{"time"}, cells: cells[:1]}).instant("time")
	return err == nil
}

// ReadArrivals reads a CSV file with a time (seconds, or an absolute time) and the
// name of a variant on each line, in any order. A header may name the columns and
// stand among others; without one the time comes first. Errors are *TraceError.
func ReadArrivals(r io.Reader, name string) (*Arrivals, error) {
	l := newLines(bufio.NewReader(r), name)
	if !l.next() {
		if err := l.err(); err != nil {
			return nil, err
		}
		return nil, &TraceError{File: name, Err: errors.New("is empty")}
	}
	cells, err := l.csvCells()
	if err != nil {
		return nil, err
	}
	names := make([]string, len(cells))
	for i, c := range cells {
		names[i] = columnName(c)
	}
	at, variant := arrivalIndex(names)
	bare := at < 0 || variant < 0
	if bare {
		if !bareArrival(names) {
			return nil, l.errorf("", "the header has no time and no variant; it has %s", strings.Join(names, ", "))
		}
		at, variant, names = 0, 1, []string{"time", "variant"}
		l.peeked = true
	}
	unit := 1.0
	if strings.HasSuffix(names[at], "_ms") {
		unit = 1e-3
	}
	w := &row{l: l, names: names}
	by := map[string][]int64{}
	for {
		ok, err := w.next()
		if err != nil {
			return nil, err
		}
		if !ok {
			return gather(by, unit, name)
		}
		v := strings.TrimSpace(w.cells[variant])
		if v == "" {
			return nil, l.errorf(names[variant], "is missing")
		}
		ns, err := w.instantAt(at)
		if err != nil {
			return nil, err
		}
		by[v] = append(by[v], ns)
	}
}

// instantAt is instant by the place of a column.
func (r *row) instantAt(i int) (int64, error) {
	c := row{l: r.l, names: r.names[i : i+1], cells: r.cells[i : i+1]}
	return c.instant(c.names[0])
}

// gather makes the times relative to the first and sorts.
func gather(by map[string][]int64, unit float64, name string) (*Arrivals, error) {
	first, last, n := int64(math.MaxInt64), int64(math.MinInt64), 0
	a := &Arrivals{}
	for v, times := range by {
		slices.Sort(times)
		first, last = min(first, times[0]), max(last, times[len(times)-1])
		n += len(times)
		a.Names = append(a.Names, v)
	}
	if n < 2 {
		return nil, &TraceError{File: name, Err: errors.New("holds fewer than two requests")}
	}
	slices.SortFunc(a.Names, func(x, y string) int {
		return cmp.Or(cmp.Compare(len(by[y]), len(by[x])), strings.Compare(x, y))
	})
	for _, v := range a.Names {
		at := make([]float64, len(by[v]))
		for i, ns := range by[v] {
			at[i] = float64(ns-first) / 1e9 * unit
		}
		a.At = append(a.At, at)
	}
	a.Span = float64(last-first) / 1e9 * unit
	if a.Span > maxTraceTime {
		return nil, &TraceError{File: name, Err: fmt.Errorf("spans %.0f years", a.Span/365/86400)}
	}
	a.Span += a.Span / float64(n)
	if a.Span <= 0 {
		return nil, &TraceError{File: name, Err: errors.New("all requests have the same time")}
	}
	return a, nil
}

// VariantArrivals takes the arrivals out of a trace of another kind: by adapter
// where it names some, else by tenant or client. At most limit requests of a trace
// of rates are drawn, thinned in proportion.
func (t *Trace) VariantArrivals(seed uint64, limit int) (*Arrivals, error) {
	if t.Requests > limit && len(t.Clients) > 0 {
		k := float64(limit) / float64(t.Requests)
		for i := range t.Clients {
			for j := range t.Clients[i].Windows {
				t.Clients[i].Windows[j].Rate *= k
			}
		}
	}
	adapters := slices.ContainsFunc(t.Sessions, func(s *Session) bool { return s.Adapter != "" })
	by := map[string][]int64{}
	src := t.Source(Play{Open: true, Seed: seed})
	for s := src.Next(); s != nil; s = src.Next() {
		name := s.Tenant
		if adapters {
			name = s.Adapter
		}
		if name == "" {
			name = "all"
		}
		for i := range s.Turns {
			by[name] = append(by[name], int64(s.Turns[i].At/time.Nanosecond))
		}
	}
	return gather(by, 1, "trace")
}

// FirstLine is the first line of a file that is not blank, for a look at its kind.
func FirstLine(head []byte) string {
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, []byte("\n"))
		if s := strings.TrimSpace(string(line)); s != "" {
			return s
		}
		head = rest
	}
	return ""
}
