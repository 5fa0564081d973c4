// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// history makes events at random, as a live pool would, and lets them happen under a
// tape.
type history struct {
	t       *rapid.T
	d       *dispatch.Dispatch
	tape    *Tape
	now     fleet.Time
	version uint64
	sent    []dispatch.Ticket
	stream  []dispatch.Ticket
	arrived int
}

func (h *history) do(e dispatch.Event) dispatch.Verdict {
	e.At = h.now
	h.tape.Event(&e)
	t, v, sends := h.d.Apply(&e, nil)
	h.tape.Result(t, &v, sends)
	for _, s := range sends {
		if s.Slot >= 0 {
			h.sent = append(h.sent, s.Ticket)
		}
	}
	return v
}

func (h *history) take(list *[]dispatch.Ticket) dispatch.Ticket {
	i := rapid.IntRange(0, len(*list)-1).Draw(h.t, "which")
	x := (*list)[i]
	*list = append((*list)[:i:i], (*list)[i+1:]...)
	return x
}

func (h *history) snapshot() {
	h.version++
	s := &fleet.Snapshot{Pool: "p", Version: h.version, At: h.now}
	for i := range 4 {
		if rapid.IntRange(0, 7).Draw(h.t, "absent") == 0 {
			continue
		}
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: fmt.Sprintf("r%d", i), URL: fmt.Sprintf("http://r%d:1", i), Models: []string{"m"}, Phase: fleet.PhaseReady}}
		e.ScrapedAt = h.now
		e.KVTokens = fleet.Known(30000, h.now)
		e.Running = fleet.Known(float64(rapid.IntRange(0, 5).Draw(h.t, "running")), h.now)
		e.Waiting = fleet.Known(float64(rapid.IntRange(0, 3).Draw(h.t, "waiting")), h.now)
		e.StartTime = fleet.Known(float64(100*rapid.IntRange(1, 2).Draw(h.t, "start")), h.now)
		s.Endpoints = append(s.Endpoints, e)
	}
	h.do(dispatch.Event{Kind: dispatch.EventSnapshot, Snapshot: s})
}

func (h *history) blocks() []uint64 {
	app := uint64(rapid.IntRange(1, 3).Draw(h.t, "app"))
	n, shared := rapid.IntRange(0, 30).Draw(h.t, "blocks"), rapid.IntRange(0, 20).Draw(h.t, "shared")
	var out []uint64
	for i := range n {
		b := app<<32 | uint64(i)
		if i >= shared {
			b |= uint64(h.arrived) << 40
		}
		out = append(out, b)
	}
	return out
}

func (h *history) request() *fleet.Request {
	h.arrived++
	b := h.blocks()
	return &fleet.Request{
		ID: fmt.Sprintf("q%d", h.arrived), Tenant: "t", Model: "m", Stream: rapid.Bool().Draw(h.t, "stream"),
		PromptBytes: 512*len(b) + 100, Blocks: b, MaxTokens: 50, Arrived: h.now,
	}
}

func (h *history) step() {
	h.now += fleet.Time(rapid.IntRange(0, 200).Draw(h.t, "ms")) * 1e6
	switch k := rapid.IntRange(0, 15).Draw(h.t, "what"); {
	case k < 5:
		h.do(dispatch.Event{Kind: dispatch.EventArrive, Request: h.request()})
	case k == 5:
		h.snapshot()
	case k == 6 && len(h.sent) > 0:
		t := h.take(&h.sent)
		h.stream = append(h.stream, t)
		h.do(dispatch.Event{Kind: dispatch.EventFirst, Ticket: t})
	case k == 7 && len(h.stream) > 0:
		h.do(dispatch.Event{Kind: dispatch.EventProgress, Ticket: h.stream[0], Tokens: 7})
	case k == 8 && len(h.sent) > 0:
		h.do(dispatch.Event{Kind: dispatch.EventRetry, Ticket: h.take(&h.sent), Fault: fleet.OutcomeConnectError})
	case k <= 10 && len(h.stream) > 0:
		h.do(dispatch.Event{Kind: dispatch.EventEnd, Ticket: h.take(&h.stream), Outcome: fleet.Outcome{
			End: h.now, PromptTokens: 400, CachedTokens: rapid.IntRange(0, 300).Draw(h.t, "cached"), OutputTokens: 20}})
	case k == 11:
		h.do(dispatch.Event{Kind: dispatch.EventTick})
	case k == 12:
		h.do(dispatch.Event{Kind: dispatch.EventPreview, Request: h.request()})
	case k == 13:
		n := dispatch.Note{Kind: dispatch.NoteKind(rapid.IntRange(1, 7).Draw(h.t, "note")), Ticket: dispatch.Ticket(rapid.IntRange(1, 4).Draw(h.t, "theirs")),
			Prompt: 500, Uncached: 300, BlockTokens: 128, Stream: true, Blocks: h.blocks(), Work: 0.1, Tokens: 3}
		h.do(dispatch.Event{Kind: dispatch.EventNote, Peer: 1, Note: &n})
	case k == 14:
		c := dispatch.CacheEvent{Kind: dispatch.CacheKind(rapid.IntRange(1, 6).Draw(h.t, "cache")), Endpoint: "r1", Blocks: h.blocks(), Tokens: 2000}
		h.do(dispatch.Event{Kind: dispatch.EventCache, Cache: &c})
	default:
		p, _ := route.New(rapid.SampledFrom([]string{"penstock", "random", "power-of-two"}).Draw(h.t, "policy"), 9)
		kind := rapid.SampledFrom([]dispatch.EventKind{dispatch.EventPolicy, dispatch.EventShadow}).Draw(h.t, "for")
		h.do(dispatch.Event{Kind: kind, Policy: p, Seed: 9})
	}
}

// record makes a history and returns its tape.
func record(t *rapid.T, dir string, most int64) []byte {
	h := TapeHeader{Pool: "p", Policy: "penstock", Seed: 3, Queue: rapid.Bool().Draw(t, "queue"), HoldFor: 1e9, Share: true, Events: true,
		Weights: map[string]float64{"t": 1}}
	file := filepath.Join(dir, rapid.StringMatching(`[a-z]{16}`).Draw(t, "name")+TapeSuffix)
	defer os.Remove(file)
	tape, err := NewTape(file, most, h)
	if err != nil {
		t.Fatal(err)
	}
	o, err := h.Options()
	if err != nil {
		t.Fatal(err)
	}
	w := &history{t: t, d: dispatch.New(o), tape: tape, now: 1e9}
	w.snapshot()
	for range rapid.IntRange(1, 120).Draw(t, "steps") {
		w.step()
	}
	if err := tape.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func replay(t *rapid.T, b []byte, change func(*dispatch.Options), shadow route.Policy) Replayed {
	r, err := OpenTape(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	o, err := r.Header.Options()
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&o)
	}
	out, err := r.Replay(o, shadow)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestTape: whatever happens, a replay of the tape decides the same in every byte; a
// shadow beside changes nothing; another queue is noticed or makes no difference; half
// a tape is as good as far as it goes.
func TestTape(t *testing.T) {
	dir := t.TempDir()
	noticed := 0
	rapid.Check(t, func(t *rapid.T) {
		b := record(t, dir, 1<<30)
		r := replay(t, b, nil, nil)
		if r.First != nil {
			t.Fatalf("differs: %+v", *r.First)
		}
		if r.Events == 0 || r.Ended != "" || r.Cut {
			t.Fatalf("replayed %+v", r)
		}
		if r := replay(t, b, nil, route.Penstock()); r.First != nil {
			t.Fatalf("differs with a shadow: %+v", *r.First)
		}
		if r := replay(t, b, func(o *dispatch.Options) { o.Profile.Base, o.Profile.PTok, o.Profile.ChunkTokens = 0.1, 1e-3, 512 }, nil); r.First != nil {
			noticed++
			if r.First.Number < 1 || r.First.Recorded == r.First.Replayed {
				t.Fatalf("difference %+v", *r.First)
			}
		}
		half := b[:len(b)/2]
		if r, err := OpenTape(bytes.NewReader(half)); err == nil {
			o, _ := r.Header.Options()
			if out, err := r.Replay(o, nil); err != nil || out.First != nil {
				t.Fatalf("half a tape: %+v %v", out, err)
			}
		}
	})
	if noticed == 0 {
		t.Error("a replay with another engine was never noticed")
	}
}

// TestTapeEnds: a tape that is full, or that would have to keep what must not be kept,
// ends and says why.
func TestTapeEnds(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		b := record(t, dir, 3000)
		if r := replay(t, b, nil, nil); r.First != nil || r.Ended != "" && !strings.Contains(r.Ended, "3000 bytes") {
			t.Fatalf("%+v", r)
		}
	})
	tape, err := NewTape(filepath.Join(dir, "x"+TapeSuffix), 1<<20, TapeHeader{Policy: "penstock"})
	if err != nil {
		t.Fatal(err)
	}
	defer tape.Close()
	tape.Event(&dispatch.Event{Kind: dispatch.EventArrive, Request: &fleet.Request{Private: true}})
	if n, why := tape.Stats(); n != 0 || !strings.Contains(why, "allows no records") {
		t.Errorf("%d bytes, %q", n, why)
	}
}

func FuzzTape(f *testing.F) {
	f.Add([]byte{0x81})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := OpenTape(bytes.NewReader(b))
		if err != nil {
			return
		}
		if o, err := r.Header.Options(); err == nil {
			_, _ = r.Replay(o, nil)
		}
	})
}
