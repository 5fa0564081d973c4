// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// TapeReader reads a tape.
type TapeReader struct {
	Header TapeHeader
	dec    *msgpack.Decoder
}

// errNoTape is what a file that is no tape leads to.
var errNoTape = errors.New("not a tape of events")

// OpenTape reads the header of a tape.
func OpenTape(r io.Reader) (*TapeReader, error) { return newTapeReader(bufio.NewReaderSize(r, 1<<20)) }

func newTapeReader(r *bufio.Reader) (*TapeReader, error) {
	t := &TapeReader{dec: msgpack.NewDecoder(r)}
	if err := t.dec.Decode(&t.Header); err != nil || t.Header.Schema != TapeSchema {
		return nil, errNoTape
	}
	return t, nil
}

// Options are those of the dispatch that was recorded, with a fresh policy.
func (h *TapeHeader) Options() (dispatch.Options, error) {
	p, err := route.New(h.Policy, h.Seed)
	if err != nil {
		return dispatch.Options{}, err
	}
	return dispatch.Options{
		Pool: h.Pool, Policy: p, Profile: h.Profile, Fixed: h.Fixed, Queue: h.Queue, MaxHold: h.MaxHold, HoldMost: h.HoldMost, HoldFor: h.HoldFor,
		Share: h.Share, Events: h.Events, IndexBytes: h.Index, BlockBytes: h.Block, Weights: h.Weights,
	}, nil
}

// event makes an item an event again.
func (i *item) event() (dispatch.Event, error) {
	e := dispatch.Event{
		Kind: dispatch.EventKind(i.Kind), At: i.At, Ticket: dispatch.Ticket(i.Ticket), Tokens: i.Tokens,
		Fault: fleet.OutcomeKind(i.Fault), Peer: i.Peer, Seed: i.Seed, Key: i.Key, Data: i.Data,
		Request: i.Request, Snapshot: i.Snapshot, Note: i.Note, Cache: i.Cache,
	}
	if i.Outcome != nil {
		e.Outcome = *i.Outcome
	}
	if i.Policy != "" {
		p, err := route.New(i.Policy, i.Seed)
		if err != nil {
			return e, err
		}
		e.Policy = p
	}
	switch e.Kind {
	case dispatch.EventArrive, dispatch.EventPreview:
		if e.Request == nil {
			return e, errors.New("an arrival without its request")
		}
	case dispatch.EventSnapshot:
		if e.Snapshot == nil {
			return e, errors.New("a snapshot that is missing")
		}
	case dispatch.EventNote:
		if e.Note == nil {
			return e, errors.New("a peer message that is missing")
		}
	case dispatch.EventCache:
		if e.Cache == nil {
			return e, errors.New("a KV event that is missing")
		}
	}
	return e, nil
}

// Difference is the first decision of a replay that is another one than recorded.
type Difference struct {
	Number   int // of the event, from 1
	At       fleet.Time
	Event    string
	Request  string // of the first send that differs; "" where none does
	Recorded string // what was sent where
	Replayed string
}

// Replayed is what a replay found.
type Replayed struct {
	Events    int
	Decisions int
	First     *Difference // nil: every decision was the same in every byte
	Ended     string      // why the tape was stopped, "" where it just ends
	Cut       bool        // the last item is not whole: the process was killed
	Shadow    dispatch.ShadowStats
}

// Replay lets all that a tape holds happen again, to a dispatch of the options, and
// compares every decision. shadow, where not nil, decides beside. It stops at the
// first difference.
func (t *TapeReader) Replay(o dispatch.Options, shadow route.Policy) (Replayed, error) {
	d := dispatch.New(o)
	if shadow != nil {
		d.SetShadow(shadow)
	}
	var r Replayed
	var sends []dispatch.Send
	var last dispatch.Event
	var n dispatch.Ticket
	var v dispatch.Verdict
	var sum []byte
	for {
		var i item
		err := t.dec.Decode(&i)
		switch {
		case errors.Is(err, io.EOF):
			r.Shadow = d.Shadow()
			return r, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			r.Cut, r.Shadow = true, d.Shadow()
			return r, nil
		case err != nil:
			return r, fmt.Errorf("event %d: %w", r.Events+1, err)
		}
		switch i.Kind {
		case kindEnd:
			r.Ended = i.Reason
		case kindResult:
			r.Decisions++
			var got uint64
			if sum, got = sumOf(sum, n, &v, sends); got != i.Sum {
				r.First = differ(&i, &last, r.Events, n, &v, sends)
				r.Shadow = d.Shadow()
				return r, nil
			}
		default:
			if last, err = i.event(); err != nil {
				return r, fmt.Errorf("event %d: %w", r.Events+1, err)
			}
			r.Events++
			if last.Kind == dispatch.EventShadow && shadow != nil {
				n, v, sends = 0, dispatch.Verdict{}, sends[:0]
				continue // ours instead
			}
			n, v, sends = d.Apply(&last, sends[:0])
		}
	}
}

// differ describes a decision that is not the recorded one.
func differ(i *item, e *dispatch.Event, number int, n dispatch.Ticket, v *dispatch.Verdict, sends []dispatch.Send) *Difference {
	d := &Difference{Number: number, At: e.At, Event: e.Kind.String()}
	if e.Request != nil {
		d.Request = e.Request.ID
	}
	got := picksOf(sends)
	say := func(ps []Pick, ticket uint64, verdict uint8, sum string) string {
		s := fmt.Sprintf("ticket %d %s", ticket, dispatch.VerdictKind(verdict))
		for _, p := range ps {
			to := p.Endpoint
			if to == "" {
				to = "nowhere"
			}
			s += fmt.Sprintf(", %s to %s", p.Request, to)
		}
		return s + sum
	}
	d.Recorded = say(i.Picks, i.Ticket, i.Verdict, "")
	d.Replayed = say(got, uint64(n), uint8(v.Kind), "")
	if d.Recorded == d.Replayed {
		d.Replayed += " (the same pick, for other numbers)"
	}
	for k := range got {
		if k >= len(i.Picks) || got[k] != i.Picks[k] {
			d.Request = got[k].Request
			break
		}
	}
	return d
}
