// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Play says how a trace is played.
type Play struct {
	// Speedup plays the trace's clock so many times faster; 0 means 1.
	Speedup float64
	// Factor lays so many copies of the trace over each other; 0 means 1. Copy k
	// is shifted by k/Factor of the trace's span, and what runs over the end begins
	// at the start. Copies share no text.
	Factor int
	// Open sends every turn at its recorded time, whatever the answers do.
	Open bool
	Seed uint64 // for the arrivals of ServeGen
	// MaxContext cuts prompts and answers that do not fit; 0: no limit.
	MaxContext int
}

// Source returns the sessions of t as p plays them. Several sources of one trace
// are independent.
func (t *Trace) Source(p Play) Source {
	if p.Speedup <= 0 {
		p.Speedup = 1
	}
	p.Factor = max(p.Factor, 1)
	if len(t.Clients) > 0 {
		return newRateSource(t, p)
	}
	s := &traceSource{t: t, p: p}
	for k := range p.Factor {
		shift := time.Duration(float64(t.Span) * float64(k) / float64(p.Factor))
		first, _ := slices.BinarySearchFunc(t.Sessions, t.Span-shift, func(s *Session, at time.Duration) int {
			if s.Start < at {
				return -1
			}
			return 1
		})
		s.copies = append(s.copies, traceCopy{shift: shift, pos: first, left: len(t.Sessions), k: uint64(k)})
	}
	return s
}

// traceCopy walks once round the sessions of a trace, from pos on.
type traceCopy struct {
	shift     time.Duration
	pos, left int
	k         uint64
}

type traceSource struct {
	t      *Trace
	p      Play
	copies []traceCopy
}

// start returns when the copy's next session begins on the trace's clock.
func (c *traceCopy) start(t *Trace) time.Duration {
	at := t.Sessions[c.pos%len(t.Sessions)].Start + c.shift
	if c.pos < len(t.Sessions) && c.shift > 0 {
		at -= t.Span
	}
	return at
}

// Next implements Source.
func (s *traceSource) Next() *Session {
	best, at := -1, time.Duration(math.MaxInt64)
	for i := range s.copies {
		c := &s.copies[i]
		if c.left > 0 {
			if a := c.start(s.t); a < at {
				best, at = i, a
			}
		}
	}
	if best < 0 {
		return nil
	}
	c := &s.copies[best]
	from := s.t.Sessions[c.pos%len(s.t.Sessions)]
	c.pos++
	c.left--
	if s.p.Factor == 1 && s.p.Speedup == 1 && s.p.MaxContext == 0 && !s.p.Open {
		return from
	}
	return s.copySession(from, at, c.k)
}

func (s *traceSource) copySession(from *Session, at time.Duration, k uint64) *Session {
	c := *from
	scale := func(d time.Duration) time.Duration { return time.Duration(float64(d) / s.p.Speedup) }
	c.Start = scale(at)
	c.ID = from.ID + k*0x9e3779b97f4a7c15
	c.Closed = from.Closed && !s.p.Open
	c.Turns = slices.Clone(from.Turns)
	for i := range c.Turns {
		turn := &c.Turns[i]
		turn.At = scale(at + from.Turns[i].At - from.Start)
		turn.Think = scale(turn.Think)
		if k == 0 && s.p.MaxContext == 0 {
			continue
		}
		turn.Prompt = slices.Clone(turn.Prompt)
		for j := range turn.Prompt {
			turn.Prompt[j].ID += k * 0xd1342543de82ef95
		}
		if s.p.MaxContext > 0 {
			turn.clip(s.p.MaxContext)
		}
	}
	return &c
}

// RateClient is one client of a ServeGen trace: how often it sends, window by
// window.
type RateClient struct {
	Name    string
	Windows []RateWindow // ordered by Start
}

// RateWindow is the traffic of one client until the next window starts.
type RateWindow struct {
	Start  time.Duration
	Rate   float64 // requests a second
	CV     float64 // of the gaps
	Family string  // "Gamma", "Weibull", or "" where the rate is 0
	A, B   float64 // shape and scale of the gaps
}

func (t *Trace) readServeGen(l *lines, o ReadOptions) error {
	c := RateClient{Name: o.Name}
	for l.next() {
		cells, err := l.csvCells()
		if err != nil {
			return err
		}
		w, err := l.rateWindow(cells)
		if err != nil {
			return err
		}
		if n := len(c.Windows); n > 0 && w.Start <= c.Windows[n-1].Start {
			return l.errorf("start", "%s is not after the window before", cells[0])
		}
		c.Windows = append(c.Windows, w)
	}
	if err := l.err(); err != nil {
		return err
	}
	if len(c.Windows) == 0 {
		return nil
	}
	expect := 0.0
	for i, w := range c.Windows {
		end := w.Start + servegenWindow
		if i+1 < len(c.Windows) {
			end = c.Windows[i+1].Start
		}
		expect += w.Rate * (end - w.Start).Seconds()
		t.Span = end
	}
	t.Clients = []RateClient{c}
	t.Requests = int(min(expect, 1e15))
	return nil
}

// servegenWindow is the length of the windows of ServeGen's clients.
const servegenWindow = 600 * time.Second

func (l *lines) rateWindow(cells []string) (RateWindow, error) {
	names := [...]string{"start", "rate", "cv", "family", "shape", "scale"}
	var w RateWindow
	if len(cells) != len(names) {
		return w, l.errorf("", "has %d columns, want %d: %s", len(cells), len(names), strings.Join(names[:], ", "))
	}
	var v [6]float64
	for i, s := range cells {
		if i == 3 {
			continue
		}
		var err error
		if v[i], err = strconv.ParseFloat(strings.TrimSpace(s), 64); err != nil {
			return w, l.errorf(names[i], "%q is no number", s)
		}
	}
	start, err := l.moment("start", &v[0], 1)
	if err != nil {
		return w, err
	}
	if !(v[1] >= 0 && v[1] <= 1e6) {
		return w, l.errorf("rate", "%v is not a rate within 0 and 1e6 requests a second", v[1])
	}
	w = RateWindow{Start: start, Rate: v[1], CV: v[2], Family: strings.TrimSpace(cells[3]), A: v[4], B: v[5]}
	switch w.Family {
	case "":
		if w.Rate > 0 {
			return w, l.errorf("family", "is missing, with a rate of %v", w.Rate)
		}
	case "Gamma", "Weibull":
		if !(w.A > 0 && w.A < 1e9) {
			return w, l.errorf("shape", "%v is not positive", w.A)
		}
	default:
		return w, l.errorf("family", "%q is neither Gamma nor Weibull", w.Family)
	}
	return w, nil
}

// Add puts the clients or sessions of another trace of the same format beside
// those of t, as when a trace comes in several files.
func (t *Trace) Add(o *Trace) error {
	if t.Format != o.Format {
		return fmt.Errorf("a %s trace cannot be added to a %s trace", o.Format, t.Format)
	}
	t.Clients = append(t.Clients, o.Clients...)
	t.Sessions = append(t.Sessions, o.Sessions...)
	slices.SortStableFunc(t.Sessions, func(a, b *Session) int { return cmp.Compare(a.Start, b.Start) })
	t.Requests += o.Requests
	t.Span = max(t.Span, o.Span)
	t.BlockTokens = max(t.BlockTokens, o.BlockTokens)
	return nil
}
