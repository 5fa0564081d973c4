// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Format names the format of a trace file.
type Format string

// Formats that ReadTrace knows. All of them are plain text; whoever opens a file
// unpacks it.
const (
	FormatAuto     Format = ""         // by the first bytes
	FormatMooncake Format = "mooncake" // JSON lines: timestamp ms, input_length, output_length, hash_ids of 512-token blocks
	FormatWeka     Format = "weka"     // JSON lines, one a session: bs, reqs with run-lengths of block ids
	FormatAzure    Format = "azure"    // CSV: TIMESTAMP, ContextTokens, GeneratedTokens
	FormatServeGen Format = "servegen" // CSV without header: start s, rate, CV, family, two parameters; one file a client
	FormatLog      Format = "log"      // CSV with header: arrival, prompt_tokens, output_tokens and more, see ReadTrace
	FormatJournal  Format = "journal"  // JSON lines of penstock/decision/v1
)

// Formats returns the names of all formats.
func Formats() []Format {
	return []Format{FormatMooncake, FormatWeka, FormatAzure, FormatServeGen, FormatLog, FormatJournal}
}

// ParseFormat is the inverse of string(Format); "auto" and "" mean detection, "csv"
// is another name of the log.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "", "auto":
		return FormatAuto, nil
	case "csv":
		return FormatLog, nil
	}
	var names []string
	for _, f := range Formats() {
		if string(f) == s {
			return f, nil
		}
		names = append(names, string(f))
	}
	return "", fmt.Errorf("format %q is unknown; use one of: auto, %s", s, strings.Join(names, ", "))
}

// TraceError says what is wrong in a trace, and where.
type TraceError struct {
	File  string
	Line  int    // from 1; 0 for the file as a whole
	Field string // "" for the line as a whole
	Err   error
}

func (e *TraceError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	if e.Field != "" {
		fmt.Fprintf(&b, ": %s", e.Field)
	}
	fmt.Fprintf(&b, ": %v", e.Err)
	return b.String()
}

// Unwrap returns the error without its place.
func (e *TraceError) Unwrap() error { return e.Err }

// ReadOptions say how to read a trace.
type ReadOptions struct {
	Name   string // of the file, for errors; also keeps the texts of two clients of ServeGen apart
	Format Format
	Seed   uint64 // for jitter and for the starts of weka sessions
	// NoJitter leaves quantised arrival times as they are.
	NoJitter bool
	// SessionRate is how many weka sessions start a second, since their file has no
	// common clock; 0 means 0.1.
	SessionRate float64
	// MaxRequests stops reading after so many requests; 0: all.
	MaxRequests int
}

// Limits of a trace: beyond them a number is a mistake, not a request.
const (
	maxTokens    = 16 << 20               // tokens of one prompt or answer
	maxTraceTime = 20 * 365 * 24 * 3600.0 // seconds from the first to the last request
	maxLine      = 64 << 20               // bytes
	quantumFloor = 10 * time.Millisecond  // finer time stamps need no jitter
	defaultGapS  = 10.0                   // seconds between starts of weka sessions
	bomPrefix    = "\xef\xbb\xbf"         // byte order mark
)

// Trace is recorded traffic.
type Trace struct {
	Format   Format
	Sessions []*Session   // ordered by Start; empty for ServeGen
	Clients  []RateClient // ServeGen only
	Requests int          // turns in Sessions, or the expected number of Clients
	Span     time.Duration
	// Quantum is the resolution of the arrival times where it was coarse; 0 otherwise.
	// Unless jitter was refused, arrivals are spread evenly over it.
	Quantum time.Duration
	// BlockTokens is the length of the blocks that the trace knows; 0: none.
	BlockTokens int
}

// ReadTrace reads one trace. A log is a CSV file whose header names the columns,
// in any order: arrival (seconds from any moment, or RFC 3339), prompt_tokens,
// output_tokens, and optionally cached_tokens, ttft and e2e (seconds), session,
// adapter, tenant. Other columns are ignored. Errors are *TraceError.
func ReadTrace(r io.Reader, o ReadOptions) (*Trace, error) {
	if o.Name == "" {
		o.Name = "trace"
	}
	l := newLines(r, o.Name)
	format := o.Format
	if format == FormatAuto {
		var err error
		if format, err = l.detect(); err != nil {
			return nil, err
		}
	}
	t := &Trace{Format: format}
	var err error
	switch format {
	case FormatMooncake:
		err = t.readMooncake(l, o)
	case FormatWeka:
		err = t.readWeka(l, o)
	case FormatAzure:
		err = t.readAzure(l, o)
	case FormatServeGen:
		err = t.readServeGen(l, o)
	case FormatLog:
		err = t.readLog(l, o)
	case FormatJournal:
		err = t.readJournal(l, o)
	default:
		err = fmt.Errorf("format %q is unknown", format)
	}
	if err != nil {
		return nil, err
	}
	if len(t.Sessions) == 0 && len(t.Clients) == 0 {
		return nil, &TraceError{File: o.Name, Err: errors.New("holds no request")}
	}
	t.finish(o)
	return t, nil
}

// finish spreads quantised arrivals, sorts, and makes the first one 0.
func (t *Trace) finish(o ReadOptions) {
	if len(t.Sessions) == 0 {
		return
	}
	t.Quantum = t.quantum()
	if t.Quantum > 0 && !o.NoJitter {
		for i, s := range t.Sessions {
			r := randAt(o.Seed, hashString("jitter"), uint64(i))
			by := time.Duration(r.Float64() * float64(t.Quantum))
			s.Start += by
			for j := range s.Turns {
				s.Turns[j].At += by
			}
		}
	}
	slices.SortStableFunc(t.Sessions, func(a, b *Session) int { return cmp.Compare(a.Start, b.Start) })
	first := t.Sessions[0].Start
	for _, s := range t.Sessions {
		s.Start -= first
		for j := range s.Turns {
			s.Turns[j].At -= first
			t.Span = max(t.Span, s.Turns[j].At)
		}
		t.Requests += len(s.Turns)
	}
	// One mean gap more, so that a copy that wraps round does not meet the first
	// request at once.
	t.Span += t.Span / time.Duration(max(len(t.Sessions), 1))
}

// quantum finds the resolution of the start times: the usual least gap between
// different ones, where at least two requests share a moment on average.
func (t *Trace) quantum() time.Duration {
	at := make([]time.Duration, len(t.Sessions))
	for i, s := range t.Sessions {
		at[i] = s.Start
	}
	slices.Sort(at)
	at = slices.Compact(at)
	if len(at) < 3 || len(t.Sessions) < 2*len(at) {
		return 0
	}
	gaps := make([]time.Duration, len(at)-1)
	for i := range gaps {
		gaps[i] = at[i+1] - at[i]
	}
	slices.Sort(gaps)
	n, _ := slices.BinarySearch(gaps, gaps[0]*3/2)
	if q := gaps[n/2]; q >= quantumFloor {
		return q
	}
	return 0
}

// lines reads a trace line by line and knows where it is.
type lines struct {
	name   string
	s      *bufio.Scanner
	n      int
	text   []byte
	peeked bool
}

func newLines(r io.Reader, name string) *lines {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return &lines{name: name, s: s}
}

// next moves to the next line that is not blank.
func (l *lines) next() bool {
	if l.peeked {
		l.peeked = false
		return true
	}
	for l.s.Scan() {
		l.n++
		l.text = l.s.Bytes()
		if l.n == 1 {
			l.text = bytes.TrimPrefix(l.text, []byte(bomPrefix))
		}
		l.text = bytes.TrimSpace(l.text)
		if len(l.text) > 0 {
			return true
		}
	}
	return false
}

func (l *lines) err() error {
	err := l.s.Err()
	if err == nil {
		return nil
	}
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("the line is longer than %d MiB", maxLine>>20)
	}
	return &TraceError{File: l.name, Line: l.n + 1, Err: err}
}

// errorf is a TraceError at the current line.
func (l *lines) errorf(field, format string, args ...any) error {
	return &TraceError{File: l.name, Line: l.n, Field: field, Err: fmt.Errorf(format, args...)}
}

// detect tells the format by the first line, which stays to be read.
func (l *lines) detect() (Format, error) {
	if !l.next() {
		if err := l.err(); err != nil {
			return "", err
		}
		return "", &TraceError{File: l.name, Err: errors.New("is empty")}
	}
	l.peeked = true
	has := func(s string) bool { return bytes.Contains(l.text, []byte(s)) }
	if l.text[0] == '{' {
		switch {
		case has(`"hash_ids"`):
			return FormatMooncake, nil
		case has(`"reqs"`):
			return FormatWeka, nil
		case has(`"penstock/decision/`):
			return FormatJournal, nil
		}
		return "", l.errorf("", "JSON of no known trace; expected hash_ids (mooncake), reqs (weka) or schema penstock/decision (journal)")
	}
	if bytes.HasPrefix(l.text, []byte{0x1f, 0x8b}) {
		return "", l.errorf("", "is compressed; unpack it first")
	}
	cells := strings.Split(string(l.text), ",")
	for i, c := range cells {
		cells[i] = columnName(c)
	}
	switch {
	case slices.Contains(cells, "contexttokens") && slices.Contains(cells, "generatedtokens"):
		return FormatAzure, nil
	case isLog(cells):
		return FormatLog, nil
	case len(cells) == 6 && isNumber(cells[0]) && isNumber(cells[1]):
		return FormatServeGen, nil
	}
	return "", l.errorf("", "header of no known trace; expected %s (log), TIMESTAMP,ContextTokens,GeneratedTokens (azure) or six columns of numbers (servegen)",
		"arrival,prompt_tokens,output_tokens")
}

// columnName is a header cell in the form in which columns are compared.
func columnName(s string) string {
	return strings.ToLower(strings.Trim(strings.TrimSpace(s), `"`))
}
