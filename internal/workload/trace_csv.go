// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// row is one line of a CSV file with a header.
type row struct {
	l     *lines
	names []string
	cells []string
}

// csvCells splits the current line.
func (l *lines) csvCells() ([]string, error) {
	if !bytes.ContainsAny(l.text, "\"\r") { // what a reader would do, at a tenth of the cost
		return strings.Split(string(l.text), ","), nil
	}
	r := csv.NewReader(strings.NewReader(string(l.text)))
	r.TrimLeadingSpace = true
	cells, err := r.Read()
	if err != nil {
		var at int
		if pe, ok := err.(*csv.ParseError); ok {
			at, err = pe.Column, pe.Err
		}
		return nil, l.errorf(fmt.Sprintf("column %d", at), "%v", err)
	}
	return cells, nil
}

// header reads the first line and checks that it names all of want.
func (l *lines) header(want ...string) (*row, error) {
	if !l.next() {
		return nil, l.errorf("", "has no header")
	}
	cells, err := l.csvCells()
	if err != nil {
		return nil, err
	}
	r := &row{l: l}
	for _, c := range cells {
		r.names = append(r.names, columnName(c))
	}
	if want[0] == "arrival" {
		ownNames(r.names)
	}
	for _, w := range want {
		if !slices.Contains(r.names, w) {
			return nil, l.errorf(w, "the header has no such column; it has %s", strings.Join(r.names, ", "))
		}
	}
	return r, nil
}

// next moves to the next line of the file.
func (r *row) next() (bool, error) {
	if !r.l.next() {
		return false, r.l.err()
	}
	var err error
	if r.cells, err = r.l.csvCells(); err != nil {
		return false, err
	}
	if len(r.cells) != len(r.names) {
		return false, r.l.errorf("", "has %d columns, the header has %d", len(r.cells), len(r.names))
	}
	return true, nil
}

// text returns the cell of a column, "" where there is none.
func (r *row) text(name string) string {
	if i := slices.Index(r.names, name); i >= 0 {
		return strings.TrimSpace(r.cells[i])
	}
	return ""
}

// number returns the cell of a column, nil where it is empty.
func (r *row) number(name string) (*float64, error) {
	s := r.text(name)
	if s == "" {
		return nil, nil
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil, r.l.errorf(name, "%q is no number", s)
	}
	return &v, nil
}

func (r *row) tokens(name string, least int) (int, error) {
	v, err := r.number(name)
	if err != nil {
		return 0, err
	}
	return r.l.tokens(name, v, least)
}

// tokensOr is tokens for a column that may be empty or absent.
func (r *row) tokensOr(name string, def int) (int, error) {
	if r.text(name) == "" {
		return def, nil
	}
	return r.tokens(name, 0)
}

// secondsOr is a duration in seconds, -1 where the column is empty or absent.
func (r *row) secondsOr(name string) (time.Duration, error) {
	v, err := r.number(name)
	if err != nil || v == nil {
		return -1, err
	}
	return r.l.moment(name, v, 1)
}

// stamps are the layouts of absolute times that traces and logs use.
var stamps = [...]string{
	time.RFC3339Nano,
	"2006-01-02T15:04:05.999999999",
	"2006-01-02 15:04:05.999999999Z07:00",
	"2006-01-02 15:04:05.999999999",
}

// instant reads an absolute time, or a number of seconds, as nanoseconds.
func (r *row) instant(name string) (int64, error) {
	s := r.text(name)
	if s == "" {
		return 0, r.l.errorf(name, "is missing")
	}
	if v, err := strconv.ParseFloat(s, 64); err == nil {
		if !(math.Abs(v) < 9e9) {
			return 0, r.l.errorf(name, "%s is not a time in seconds", s)
		}
		whole := math.Floor(v)
		return int64(whole)*1e9 + int64((v-whole)*1e9), nil
	}
	for _, layout := range stamps {
		if at, err := time.Parse(layout, s); err == nil {
			if y := at.Year(); y < 1700 || y > 2200 {
				break
			}
			return at.UnixNano(), nil
		}
	}
	return 0, r.l.errorf(name, "%q is neither seconds nor a time like 2024-05-01T12:00:00.5Z", s)
}

func (t *Trace) readAzure(l *lines, o ReadOptions) error {
	r, err := l.header("timestamp", "contexttokens", "generatedtokens")
	if err != nil {
		return err
	}
	var rows []logRow
	for {
		ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok || o.MaxRequests > 0 && len(rows) >= o.MaxRequests {
			return t.fromLog(rows, l.name)
		}
		row := logRow{cached: -1, ttft: -1, e2e: -1, line: l.n}
		if row.at, err = r.instant("timestamp"); err != nil {
			return err
		}
		if row.prompt, err = r.tokens("contexttokens", 1); err != nil {
			return err
		}
		if row.output, err = r.tokens("generatedtokens", 0); err != nil {
			return err
		}
		rows = append(rows, row)
	}
}

// logColumns are the names under which public traces keep what a log needs, the
// log's own name first.
func logColumns() [][]string {
	return [][]string{
		{"arrival", "timestamp", "time", "t", "ts", "arrival_time", "arrival_timestamp", "arrived_at", "start_time", "arrival_s", "t_s"},
		{"prompt_tokens", "input_tokens", "request tokens", "contexttokens", "context_tokens", "input_length", "prompt_size",
			"prompt_length", "num_prefill_tokens", "prefill_tokens", "isl", "prompt", "input"},
		{"output_tokens", "response tokens", "generatedtokens", "generated_tokens", "completion_tokens", "output_length", "token_size",
			"response_length", "num_decode_tokens", "decode_tokens", "osl", "output", "response"},
	}
}

// isLog reports whether a header names every column that a log needs.
func isLog(names []string) bool {
	for _, known := range logColumns() {
		if !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(known, n) }) {
			return slices.Contains(names, "arrival") // it means to be one: say what is missing
		}
	}
	return true
}

// ownNames gives the columns of a header the names of the log where they have
// another one and none has the log's.
func ownNames(names []string) {
	for _, known := range logColumns() {
		if slices.Contains(names, known[0]) {
			continue
		}
		for _, k := range known[1:] {
			if i := slices.Index(names, k); i >= 0 {
				names[i] = known[0]
				break
			}
		}
	}
}

func (t *Trace) readLog(l *lines, o ReadOptions) error {
	r, err := l.header("arrival", "prompt_tokens", "output_tokens")
	if err != nil {
		return err
	}
	var rows []logRow
	for {
		ok, err := r.next()
		if err != nil {
			return err
		}
		if !ok || o.MaxRequests > 0 && len(rows) >= o.MaxRequests {
			return t.fromLog(rows, l.name)
		}
		row := logRow{session: r.text("session"), adapter: r.text("adapter"), tenant: r.text("tenant"), line: l.n}
		if row.at, err = r.instant("arrival"); err != nil {
			return err
		}
		if row.prompt, err = r.tokens("prompt_tokens", 1); err != nil {
			return err
		}
		if row.output, err = r.tokens("output_tokens", 0); err != nil {
			return err
		}
		if row.cached, err = r.tokensOr("cached_tokens", -1); err != nil {
			return err
		}
		if row.cached > row.prompt {
			return l.errorf("cached_tokens", "%d is more than the prompt's %d tokens", row.cached, row.prompt)
		}
		if row.ttft, err = r.secondsOr("ttft"); err != nil {
			return err
		}
		if row.e2e, err = r.secondsOr("e2e"); err != nil {
			return err
		}
		rows = append(rows, row)
	}
}

// logRow is one request of a log that knows lengths but no text.
type logRow struct {
	at                     int64 // nanoseconds, absolute
	prompt, output, cached int   // tokens; cached -1 unknown
	ttft, e2e              time.Duration
	session                string
	adapter, tenant        string
	line                   int
}

// fromLog makes sessions of the rows of a log and gives their prompts texts with
// which a cache finds about what the log says: the first cached tokens of a prompt
// come from a text that its session shares (without a session: that all requests
// of its tenant and adapter share), the rest is new. A session without
// cached_tokens repeats its whole history.
func (t *Trace) fromLog(rows []logRow, name string) error {
	slices.SortStableFunc(rows, func(a, b logRow) int { return cmp.Compare(a.at, b.at) })
	bySession := map[string]*Session{}
	seen := map[string]int{} // tokens of a session's text that were sent
	for i := range rows {
		r := &rows[i]
		at := time.Duration(r.at - rows[0].at)
		if at < 0 || at.Seconds() > maxTraceTime {
			return &TraceError{File: name, Line: r.line, Field: "arrival",
				Err: fmt.Errorf("is more than 20 years after the first request")}
		}
		turn := Turn{
			At: at, PromptTokens: r.prompt, OutputTokens: max(r.output, 1),
			Logged: &Logged{CachedTokens: r.cached, TTFT: r.ttft, E2E: r.e2e},
		}
		shared := max(r.cached, 0)
		text := "log/" + r.tenant + "/" + r.adapter
		if r.session != "" {
			text = "session/" + r.session
			if r.cached < 0 {
				shared = min(seen[text], r.prompt)
			}
		}
		turn.Prompt = t.logPrompt(hashString(text), uint64(i), shared, r, seen[text])
		seen[text] = max(seen[text], r.prompt)
		s := bySession[r.session]
		if r.session == "" || s == nil {
			s = &Session{ID: mix(uint64(i) + 1), Start: at, Tenant: r.tenant, Adapter: r.adapter}
			t.add(s)
			if r.session != "" {
				bySession[r.session] = s
			}
		} else {
			last := &s.Turns[len(s.Turns)-1]
			if last.Logged.E2E >= 0 {
				turn.Think = max(0, at-last.At-last.Logged.E2E)
			}
		}
		s.Turns = append(s.Turns, turn)
	}
	return nil
}

// logPrompt splits a prompt into what it shares and what is new. Within a session
// new text continues the session's text, so that a later turn can repeat it.
func (t *Trace) logPrompt(text, n uint64, shared int, r *logRow, seen int) []Segment {
	if r.session != "" && shared >= min(seen, r.prompt) {
		return []Segment{{ID: text, Tokens: int32(r.prompt)}}
	}
	own := Segment{ID: mix(text ^ mix(n+1)), Tokens: int32(r.prompt - shared)}
	if shared == 0 {
		return []Segment{own}
	}
	if shared == r.prompt {
		return []Segment{{ID: text, Tokens: int32(shared)}}
	}
	return []Segment{{ID: text, Tokens: int32(shared)}, own}
}

func isNumber(s string) bool {
	_, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	return err == nil
}
