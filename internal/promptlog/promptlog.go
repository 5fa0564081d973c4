// SPDX-License-Identifier: Apache-2.0

// Package promptlog records prompts and answers, as far as a policy allows: one
// choice for each request, made by tenant, key, model and surface.
//
// What a request may show at most comes from outside (the strictest of tenant, key
// and the client's own wish); the rules here choose within that, who is sampled and
// where it goes. Nothing is recorded where no rule names a sink. Text is kept in
// memory no longer than the request, and leaves it through the sinks only.
package promptlog

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/wire"
)

// Level is how much of a request is recorded.
type Level uint8

// Levels, the strictest first.
const (
	None     Level = iota // nothing at all
	Metadata              // who, what model, lengths, times
	Hash                  // also keyed hashes of prompt and answer
	Redacted              // also their text without what looks personal or secret
	Full                  // also their text
)

var levelNames = [...]string{"none", "metadata", "hash", "redacted", "full"}

func (l Level) String() string { return levelNames[min(int(l), len(levelNames)-1)] }

// ParseLevel reads a level; a word that is none is the strictest.
func ParseLevel(s string) Level {
	return Level(max(0, slices.Index(levelNames[:], s)))
}

// Rule chooses for the requests that it matches. Empty lists match everything; names
// may end in "*".
type Rule struct {
	Tenants, Keys, Models, Surfaces []string
	Level                           Level
	Sample                          float64 // share of the requests, 0 to 1
	Sinks                           []string
}

func (r *Rule) matches(w *Who) bool {
	return matches(r.Tenants, w.Tenant) && matches(r.Keys, w.Key) && matches(r.Models, w.Model) && matches(r.Surfaces, w.Surface)
}

func matches(list []string, name string) bool {
	if len(list) == 0 {
		return true
	}
	return slices.ContainsFunc(list, func(p string) bool {
		head, open := strings.CutSuffix(p, "*")
		return p == name || open && strings.HasPrefix(name, head)
	})
}

// Who is what a rule is chosen by.
type Who struct {
	Tenant, Key string // public id of the key
	Model       string // that the client asked for
	Surface     string
}

// Sink takes finished entries. It must not block.
type Sink interface {
	Take(e *Record)
	Close()
}

// Options of a Log.
type Options struct {
	Rules []Rule // the first that matches counts; none: nothing is recorded
	Sinks map[string]Sink
	// HashKey keys the hashes; nil: drawn at the start, so that hashes of two runs
	// cannot be compared.
	HashKey []byte
	MaxText int      // bytes of text of a prompt, and of an answer; 0: 64 KiB
	Redact  Redactor // nil: the built-in one
}

// Log makes entries. A nil *Log makes none. It is safe for concurrent use.
type Log struct {
	o     Options
	rules atomic.Pointer[[]Rule]
}

// New returns a Log.
func New(o Options) *Log {
	if o.MaxText <= 0 {
		o.MaxText = 64 << 10
	}
	if o.HashKey == nil {
		o.HashKey = make([]byte, 32)
		rand.Read(o.HashKey) // never fails
	}
	if o.Redact == nil {
		o.Redact = NewRedactor(nil)
	}
	l := &Log{o: o}
	l.rules.Store(&o.Rules)
	return l
}

// SetRules replaces the rules. Requests under way keep theirs.
func (l *Log) SetRules(r []Rule) { l.rules.Store(&r) }

// Close flushes and closes the sinks.
func (l *Log) Close() {
	if l == nil {
		return
	}
	for _, s := range l.o.Sinks {
		s.Close()
	}
}

// Choose returns what is recorded of a request, at most most; None where nothing is.
func (l *Log) Choose(w *Who, most Level, id string) (Level, []string) {
	if l == nil || most == None {
		return None, nil
	}
	for i := range *l.rules.Load() {
		r := &(*l.rules.Load())[i]
		if !r.matches(w) {
			continue
		}
		if r.Sample < 1 && float64(xxh3.HashString(id)>>11)/(1<<53) >= r.Sample {
			return None, nil
		}
		return min(most, r.Level), r.Sinks
	}
	return None, nil
}

// Entry gathers what is recorded of one request. A nil *Entry gathers nothing. It is
// for one goroutine at a time.
type Entry struct {
	l       *Log
	sinks   []string
	rec     Record
	level   Level
	sum     hash.Hash // of the answer
	answer  []byte
	dropped bool // some of the answer did not fit
	bytes   int64
}

// Record is one entry as it is written: schema penstock/prompt/v1.
type Record struct {
	Schema       string    `json:"schema"`
	Time         time.Time `json:"time"`
	ID           string    `json:"id"`
	Level        string    `json:"level"`
	Tenant       string    `json:"tenant"`
	Key          string    `json:"key,omitempty"`
	Model        string    `json:"model"`
	EngineModel  string    `json:"engine_model,omitempty"`
	Surface      string    `json:"surface"`
	Stream       bool      `json:"stream,omitempty"`
	Status       int       `json:"status"`
	Outcome      string    `json:"outcome"`
	PromptTokens *int      `json:"prompt_tokens"`
	OutputTokens *int      `json:"output_tokens"`
	TTFTMS       *float64  `json:"ttft_ms"`
	E2EMS        float64   `json:"e2e_ms"`
	Prompt       *Text     `json:"prompt,omitempty"`
	Answer       *Text     `json:"answer,omitempty"`
}

// Text is a prompt or an answer, as far as the level shows it.
type Text struct {
	Bytes     int64  `json:"bytes"`
	HMAC      string `json:"hmac_sha256,omitempty"`
	Text      string `json:"text,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
}

// AppendJSON appends the record as JSON, without reflection: it stands on the way of
// requests.
func (r *Record) AppendJSON(b []byte) []byte {
	text := func(key, v string) {
		b = append(append(append(b, ',', '"'), key...), `":`...)
		b = wire.AppendString(b, v)
	}
	optional := func(key, v string) {
		if v != "" {
			text(key, v)
		}
	}
	number := func(key string, v *int) {
		b = append(append(append(b, ',', '"'), key...), `":`...)
		if v == nil {
			b = append(b, "null"...)
		} else {
			b = strconv.AppendInt(b, int64(*v), 10)
		}
	}
	b = append(b, `{"schema":`...)
	b = wire.AppendString(b, r.Schema)
	b = append(b, `,"time":"`...)
	b = append(r.Time.AppendFormat(b, time.RFC3339Nano), '"')
	text("id", r.ID)
	text("level", r.Level)
	text("tenant", r.Tenant)
	optional("key", r.Key)
	text("model", r.Model)
	optional("engine_model", r.EngineModel)
	text("surface", r.Surface)
	if r.Stream {
		b = append(b, `,"stream":true`...)
	}
	number("status", &r.Status)
	text("outcome", r.Outcome)
	number("prompt_tokens", r.PromptTokens)
	number("output_tokens", r.OutputTokens)
	b = append(b, `,"ttft_ms":`...)
	if r.TTFTMS == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendFloat(b, *r.TTFTMS, 'f', -1, 64)
	}
	b = append(b, `,"e2e_ms":`...)
	b = strconv.AppendFloat(b, r.E2EMS, 'f', -1, 64)
	b = r.Prompt.appendJSON(b, "prompt")
	b = r.Answer.appendJSON(b, "answer")
	return append(b, '}')
}

func (t *Text) appendJSON(b []byte, key string) []byte {
	if t == nil {
		return b
	}
	b = append(append(append(b, ',', '"'), key...), `":{"bytes":`...)
	b = strconv.AppendInt(b, t.Bytes, 10)
	if t.HMAC != "" {
		b = append(append(append(b, `,"hmac_sha256":"`...), t.HMAC...), '"')
	}
	if t.Text != "" {
		b = wire.AppendString(append(b, `,"text":`...), t.Text)
	}
	if t.Truncated {
		b = append(b, `,"truncated":true`...)
	}
	return append(b, '}')
}

// Schema is the schema name of a Record.
const Schema = "penstock/prompt/v1"

// Begin opens the entry of a request whose body is known; nil where nothing is to be
// recorded. body is not kept.
func (l *Log) Begin(w *Who, most Level, id string, body []byte) *Entry {
	level, sinks := l.Choose(w, most, id)
	if level == None || len(sinks) == 0 {
		return nil
	}
	e := &Entry{l: l, sinks: sinks, level: level}
	e.rec = Record{Schema: Schema, Time: time.Now().UTC(), ID: id, Level: level.String(), Tenant: w.Tenant, Key: w.Key, Model: w.Model, Surface: w.Surface}
	if level >= Hash {
		e.sum = hmac.New(sha256.New, l.o.HashKey)
		h := hmac.New(sha256.New, l.o.HashKey)
		h.Write(body)
		e.rec.Prompt = &Text{Bytes: int64(len(body)), HMAC: hex.EncodeToString(h.Sum(nil))}
	}
	switch level {
	case Redacted:
		e.rec.Prompt.set(redactBody(l.o.Redact, body), l.o.MaxText)
	case Full:
		e.rec.Prompt.set(string(body[:min(len(body), l.o.MaxText)]), l.o.MaxText)
		e.rec.Prompt.Truncated = len(body) > l.o.MaxText
	}
	return e
}

func (t *Text) set(s string, most int) {
	if len(s) > most {
		s, t.Truncated = s[:most], true
	}
	t.Text = strings.ToValidUTF8(s, "\ufffd")
}

// Answer takes the next bytes of the answer as the client gets them.
func (e *Entry) Answer(p []byte) {
	if e == nil || e.level < Hash {
		return
	}
	e.bytes += int64(len(p))
	e.sum.Write(p)
	if e.level < Redacted {
		return
	}
	// Frames around the text take most of a stream, so its room is larger.
	room := 16*e.l.o.MaxText - len(e.answer)
	if len(p) > room {
		p, e.dropped = p[:room], true
	}
	e.answer = append(e.answer, p...)
}

// End fills in how the request ended and hands the entry to its sinks. set is given
// the record to complete.
func (e *Entry) End(set func(r *Record)) {
	if e == nil {
		return
	}
	set(&e.rec)
	if e.level >= Hash {
		e.rec.Answer = &Text{Bytes: e.bytes, HMAC: hex.EncodeToString(e.sum.Sum(nil))}
	}
	switch e.level {
	case Redacted:
		e.rec.Answer.set(e.l.o.Redact.Redact(answerText(e.answer)), e.l.o.MaxText)
	case Full:
		e.rec.Answer.set(string(e.answer), e.l.o.MaxText)
	}
	if e.rec.Answer != nil {
		e.rec.Answer.Truncated = e.rec.Answer.Truncated || e.dropped
	}
	e.answer = nil
	for _, name := range e.sinks {
		if s := e.l.o.Sinks[name]; s != nil {
			s.Take(&e.rec)
		}
	}
}
