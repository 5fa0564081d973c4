// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// TapeSchema is the schema name of a tape: a sequence of msgpack values, a TapeHeader
// and then items. There is no prompt text in it; block hashes are keyed.
const TapeSchema = "penstock/tape/v1"

// TapeSuffix ends the names of tapes.
const TapeSuffix = ".tape"

// TapeHeader is all that a dispatch was made with.
type TapeHeader struct {
	Schema  string
	Version string
	Router  string
	Pool    string
	Started fleet.Time

	Policy  string
	Seed    uint64
	Profile engine.Profile
	Fixed   bool
	Queue   bool
	MaxHold float64
	// HoldMost is 0 in tapes of versions before there was such a bound.
	HoldMost time.Duration
	HoldFor  time.Duration
	Share    bool
	Events   bool
	Index    int64 // bytes
	Block    int   // bytes
	Weights  map[string]float64
}

// item is one value of a tape after the header.
type item struct {
	Kind     uint8                `msgpack:"k"`
	At       fleet.Time           `msgpack:"t,omitempty"`
	Ticket   uint64               `msgpack:"n,omitempty"`
	Tokens   int                  `msgpack:"c,omitempty"`
	Fault    uint8                `msgpack:"f,omitempty"`
	Peer     int32                `msgpack:"p,omitempty"`
	Policy   string               `msgpack:"y,omitempty"`
	Seed     uint64               `msgpack:"s,omitempty"`
	Key      uint64               `msgpack:"x,omitempty"`
	Data     []byte               `msgpack:"d,omitempty"`
	Request  *fleet.Request       `msgpack:"q,omitempty"`
	Snapshot *fleet.Snapshot      `msgpack:"o,omitempty"`
	Outcome  *fleet.Outcome       `msgpack:"e,omitempty"`
	Note     *dispatch.Note       `msgpack:"m,omitempty"`
	Cache    *dispatch.CacheEvent `msgpack:"v,omitempty"`

	// Of kindResult.
	Verdict uint8  `msgpack:"w,omitempty"`
	Sum     uint64 `msgpack:"u,omitempty"`
	Picks   []Pick `msgpack:"r,omitempty"`
	// Of kindEnd.
	Reason string `msgpack:"z,omitempty"`
}

// Kinds of items that are no events.
const (
	kindResult = 0xE0 // what came of the event before
	kindEnd    = 0xE1 // the tape was stopped, and why
)

// Pick is one send: which request went where.
type Pick struct {
	Ticket   uint64 `msgpack:"n"`
	Request  string `msgpack:"q"`
	Endpoint string `msgpack:"e"` // "": refused after all
}

// Tape writes what happens to one dispatch to a file. Event and Result are called
// with the pool's lock held; they write into memory, and a goroutine writes to the
// file. It implements flow.Tape.
type Tape struct {
	most int64

	mu      sync.Mutex
	buf     *bytes.Buffer
	enc     *msgpack.Encoder
	sum     []byte
	written int64
	ended   bool
	reason  string

	f    *os.File
	quit chan struct{}
	done chan struct{}
}

const (
	tapeEvery = 200 * time.Millisecond
	// tapeBuffer bounds what waits for the disk.
	tapeBuffer = 64 << 20
)

// NewTape starts a tape in a new file that grows to at most so many bytes.
func NewTape(file string, most int64, h TapeHeader) (*Tape, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	t := &Tape{most: most, buf: &bytes.Buffer{}, f: f, quit: make(chan struct{}), done: make(chan struct{})}
	t.enc = msgpack.NewEncoder(t.buf)
	h.Schema = TapeSchema
	if err := t.enc.Encode(&h); err != nil {
		f.Close()
		return nil, err
	}
	go t.run()
	return t, nil
}

// put adds an item. The lock is held.
func (t *Tape) put(i *item) {
	if t.ended {
		return
	}
	before := t.buf.Len()
	if err := t.enc.Encode(i); err != nil {
		t.stop("an event could not be written: " + err.Error())
		return
	}
	t.written += int64(t.buf.Len() - before)
	switch {
	case t.written > t.most:
		t.stop(fmt.Sprintf("the tape reached its %d bytes", t.most))
	case t.buf.Len() > tapeBuffer:
		t.stop("the disk did not keep up")
	}
}

// stop ends the tape: what came later cannot be replayed without this.
func (t *Tape) stop(reason string) {
	if !t.ended {
		t.ended, t.reason = true, reason
		_ = t.enc.Encode(&item{Kind: kindEnd, Reason: reason})
	}
}

// Event writes down what is about to happen.
func (t *Tape) Event(e *dispatch.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Request != nil && e.Request.Private {
		// Without this request the rest cannot happen again, and it is not to be kept.
		t.stop("a request came whose tenant allows no records")
		return
	}
	i := item{
		Kind: uint8(e.Kind), At: e.At, Ticket: uint64(e.Ticket), Tokens: e.Tokens, Fault: uint8(e.Fault), Peer: e.Peer,
		Seed: e.Seed, Key: e.Key, Data: e.Data, Request: e.Request, Snapshot: e.Snapshot, Note: e.Note, Cache: e.Cache,
	}
	if e.Policy != nil {
		i.Policy = e.Policy.Name()
	}
	if e.Kind == dispatch.EventEnd {
		i.Outcome = &e.Outcome
	}
	t.put(&i)
}

// Result writes down what came of it.
func (t *Tape) Result(n dispatch.Ticket, v *dispatch.Verdict, sends []dispatch.Send) {
	if n == 0 && v.Decision == nil && v.Kind == dispatch.Sent && len(sends) == 0 {
		return // nothing was decided
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return
	}
	i := item{Kind: kindResult, Ticket: uint64(n), Verdict: uint8(v.Kind)}
	t.sum, i.Sum = sumOf(t.sum, n, v, sends)
	i.Picks = picksOf(sends)
	t.put(&i)
}

func picksOf(sends []dispatch.Send) []Pick {
	var out []Pick
	for k := range sends {
		s := &sends[k]
		out = append(out, Pick{Ticket: uint64(s.Ticket), Request: s.Request.ID, Endpoint: s.Endpoint})
	}
	return out
}

func (t *Tape) run() {
	defer close(t.done)
	tick := time.NewTicker(tapeEvery)
	defer tick.Stop()
	spare := &bytes.Buffer{}
	flush := func() {
		t.mu.Lock()
		full := t.buf
		t.buf = spare
		t.enc.ResetWriter(t.buf)
		t.mu.Unlock()
		if _, err := t.f.Write(full.Bytes()); err != nil {
			t.mu.Lock()
			t.ended, t.reason = true, err.Error() // the file cannot say so itself
			t.mu.Unlock()
		}
		full.Reset()
		spare = full
	}
	for {
		select {
		case <-tick.C:
			flush()
		case <-t.quit:
			flush()
			return
		}
	}
}

// Close writes what waits and ends the tape.
func (t *Tape) Close() error {
	close(t.quit)
	<-t.done
	return t.f.Close()
}

// Stats tells how much was written, and why the tape ended; "": it goes on.
func (t *Tape) Stats() (bytes int64, ended string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written, t.reason
}

// IsTape reports whether a file starts like a tape.
func IsTape(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = newTapeReader(bufio.NewReader(f))
	return err == nil
}
