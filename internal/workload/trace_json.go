// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// mooncakeBlock is the block length of Mooncake's traces in tokens.
const mooncakeBlock = 512

// decode parses the current line into v and names the field that does not fit.
func (l *lines) decode(v any) error {
	err := json.Unmarshal(l.text, v)
	if err == nil {
		return nil
	}
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return l.errorf(te.Field, "is a %s, want %s", te.Value, te.Type)
	}
	return l.errorf("", "%v", err)
}

// tokens checks a number of tokens.
func (l *lines) tokens(field string, v *float64, least int) (int, error) {
	if v == nil {
		return 0, l.errorf(field, "is missing")
	}
	if !(*v >= float64(least) && *v <= maxTokens) || *v != math.Trunc(*v) {
		return 0, l.errorf(field, "%v is not a number of tokens within %d and %d", *v, least, maxTokens)
	}
	return int(*v), nil
}

// moment checks a time and converts it from units of a second.
func (l *lines) moment(field string, v *float64, unit float64) (time.Duration, error) {
	if v == nil {
		return 0, l.errorf(field, "is missing")
	}
	s := *v * unit
	if !(s >= 0 && s <= maxTraceTime) {
		return 0, l.errorf(field, "%v is not a time from 0 to 20 years", *v)
	}
	return time.Duration(s * 1e9), nil
}

func (t *Trace) readMooncake(l *lines, o ReadOptions) error {
	t.BlockTokens = mooncakeBlock
	for l.next() {
		var row struct {
			Timestamp    *float64 `json:"timestamp"`
			InputLength  *float64 `json:"input_length"`
			OutputLength *float64 `json:"output_length"`
			HashIDs      []uint64 `json:"hash_ids"`
		}
		if err := l.decode(&row); err != nil {
			return err
		}
		at, err := l.moment("timestamp", row.Timestamp, 1e-3)
		if err != nil {
			return err
		}
		in, err := l.tokens("input_length", row.InputLength, 1)
		if err != nil {
			return err
		}
		out, err := l.tokens("output_length", row.OutputLength, 0)
		if err != nil {
			return err
		}
		if want := (in + mooncakeBlock - 1) / mooncakeBlock; len(row.HashIDs) != want {
			return l.errorf("hash_ids", "has %d ids, want %d for %d tokens", len(row.HashIDs), want, in)
		}
		turn := Turn{At: at, PromptTokens: in, OutputTokens: max(out, 1), Prompt: make([]Segment, len(row.HashIDs))}
		for i, id := range row.HashIDs {
			n := min(in-i*mooncakeBlock, mooncakeBlock)
			turn.Prompt[i] = Segment{ID: mix(id), Tokens: int32(n)}
		}
		t.add(&Session{ID: uint64(l.n), Start: at, Turns: []Turn{turn}})
		if o.MaxRequests > 0 && len(t.Sessions) >= o.MaxRequests {
			return nil
		}
	}
	return l.err()
}

func (t *Trace) add(s *Session) { t.Sessions = append(t.Sessions, s) }

// readWeka reads agent sessions. Block ids belong to a session and its
// sub-sessions, so sessions share nothing with each other. A file has no common
// clock: sessions start as a Poisson process of o.SessionRate, and a sub-session is
// a session of its own.
func (t *Trace) readWeka(l *lines, o ReadOptions) error {
	r := NewRand(o.Seed, "weka", 0)
	gap := defaultGapS
	if o.SessionRate > 0 {
		gap = 1 / o.SessionRate
	}
	start, requests := time.Duration(0), 0
	for l.next() {
		var row struct {
			ID     *string           `json:"id"`
			Parent *string           `json:"parent"`
			Block  *float64          `json:"bs"`
			Reqs   []json.RawMessage `json:"reqs"`
		}
		if err := l.decode(&row); err != nil {
			return err
		}
		if row.ID == nil {
			return l.errorf("id", "is missing")
		}
		bs, err := l.tokens("bs", row.Block, 1)
		if err != nil {
			return err
		}
		if bs > math.MaxUint16 {
			return l.errorf("bs", "%d is not a block size within 1 and %d", bs, math.MaxUint16)
		}
		if len(row.Reqs) == 0 {
			return l.errorf("reqs", "is missing or empty")
		}
		space := *row.ID
		if row.Parent != nil {
			space = *row.Parent
		}
		s := &Session{ID: hashString(*row.ID), Start: start, Closed: true}
		for i, raw := range row.Reqs {
			turn, err := l.wekaTurn(raw, fmt.Sprintf("reqs[%d]", i), bs, hashString(space), start)
			if err != nil {
				return err
			}
			s.Turns = append(s.Turns, turn)
			if requests++; o.MaxRequests > 0 && requests >= o.MaxRequests {
				break
			}
		}
		t.BlockTokens = bs
		t.add(s)
		if o.MaxRequests > 0 && requests >= o.MaxRequests {
			return nil
		}
		start += seconds(r.Exp() * gap)
	}
	return l.err()
}

// wekaTurn reads [t, input, output, think, api, model, [start, count, ...]].
func (l *lines) wekaTurn(raw json.RawMessage, field string, bs int, space uint64, start time.Duration) (Turn, error) {
	var cells []json.RawMessage
	var turn Turn
	if err := json.Unmarshal(raw, &cells); err != nil {
		return turn, l.errorf(field, "is no list: %v", err)
	}
	if len(cells) < 7 {
		return turn, l.errorf(field, "has %d elements, want 7", len(cells))
	}
	var nums [5]float64
	for i := range nums {
		if err := json.Unmarshal(cells[i], &nums[i]); err != nil {
			return turn, l.errorf(fmt.Sprintf("%s[%d]", field, i), "is no number")
		}
	}
	at, err := l.moment(field+"[0]", &nums[0], 1)
	if err != nil {
		return turn, err
	}
	in, err := l.tokens(field+"[1]", &nums[1], 1)
	if err != nil {
		return turn, err
	}
	out, err := l.tokens(field+"[2]", &nums[2], 0)
	if err != nil {
		return turn, err
	}
	think, err := l.moment(field+"[3]", &nums[3], 1)
	if err != nil {
		return turn, err
	}
	api, err := l.moment(field+"[4]", &nums[4], 1)
	if err != nil {
		return turn, err
	}
	var runs []uint64
	if err := json.Unmarshal(cells[6], &runs); err != nil || len(runs)%2 != 0 {
		return turn, l.errorf(field+"[6]", "is no list of pairs start, count")
	}
	turn = Turn{
		At: start + at, Think: think, PromptTokens: in, OutputTokens: max(out, 1),
		Logged: &Logged{CachedTokens: -1, TTFT: -1, E2E: api},
	}
	left := in
	for i := 0; i < len(runs) && left > 0; i += 2 {
		if runs[i+1] > maxTokens {
			return turn, l.errorf(field+"[6]", "a run of %d blocks is longer than any prompt", runs[i+1])
		}
		n := min(int(runs[i+1])*bs, left)
		if n > 0 {
			turn.Prompt = append(turn.Prompt, Segment{ID: space + runs[i], Tokens: int32(n), Unit: uint16(bs)})
			left -= n
		}
	}
	if left > 0 { // what does not fill a block has no id
		turn.Prompt = append(turn.Prompt, Segment{ID: mix(space ^ mix(uint64(in)<<32^uint64(at))), Tokens: int32(left)})
	}
	return turn, nil
}

// decisionRecord is what is read of a decision record.
type decisionRecord struct {
	Schema  string     `json:"schema"`
	Time    *time.Time `json:"time"`
	Request *struct {
		Tenant       string   `json:"tenant"`
		Adapter      string   `json:"adapter"`
		PromptTokens *float64 `json:"prompt_tokens"`
	} `json:"request"`
	Outcome *struct {
		TTFT   *float64 `json:"ttft_ms"`
		E2E    *float64 `json:"e2e_ms"`
		Queue  float64  `json:"queue_ms"`
		Prompt *float64 `json:"prompt_tokens"`
		Cached *float64 `json:"cached_tokens"`
		Output *float64 `json:"output_tokens"`
	} `json:"outcome"`
}

// row is the request of a record that has a time, a request and an outcome.
func (rec *decisionRecord) row(l *lines) (row logRow, err error) {
	out := rec.Outcome
	row = logRow{
		at: rec.Time.UnixNano() - int64(max(msOr(&out.Queue), 0)), output: 1, cached: -1,
		ttft: msOr(out.TTFT), e2e: msOr(out.E2E),
		tenant: rec.Request.Tenant, adapter: rec.Request.Adapter, line: l.n,
	}
	prompt := rec.Request.PromptTokens
	if out.Prompt != nil {
		prompt = out.Prompt
	}
	if row.prompt, err = l.tokens("request.prompt_tokens", prompt, 1); err != nil {
		return row, err
	}
	if out.Cached != nil {
		if row.cached, err = l.tokens("outcome.cached_tokens", out.Cached, 0); err != nil {
			return row, err
		}
	}
	if out.Output != nil {
		row.output, err = l.tokens("outcome.output_tokens", out.Output, 0)
	}
	return row, err
}

// readJournal reads decision records: when a request came, how long it was and what
// became of it. Records of previews and of requests that have not ended have no
// outcome and are left out.
func (t *Trace) readJournal(l *lines, o ReadOptions) error {
	var rows []logRow
	for l.next() {
		var rec decisionRecord
		if err := l.decode(&rec); err != nil {
			return err
		}
		if rec.Schema != "" && !strings.HasPrefix(rec.Schema, "penstock/decision/") {
			continue // the header of a journal, or a record of another kind
		}
		if rec.Time == nil {
			return l.errorf("time", "is missing")
		}
		if y := rec.Time.Year(); y < 1700 || y > 2200 {
			return l.errorf("time", "the year %d is out of range", y)
		}
		if rec.Request == nil {
			return l.errorf("request", "is missing")
		}
		if rec.Outcome == nil {
			continue
		}
		row, err := rec.row(l)
		if err != nil {
			return err
		}
		rows = append(rows, row)
		if o.MaxRequests > 0 && len(rows) >= o.MaxRequests {
			break
		}
	}
	if err := l.err(); err != nil {
		return err
	}
	return t.fromLog(rows, l.name)
}

func msOr(v *float64) time.Duration {
	if v == nil || !(*v >= 0 && *v < maxTraceTime*1e3) {
		return -1
	}
	return time.Duration(*v * 1e6)
}
