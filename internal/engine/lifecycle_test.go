// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/fleet"
)

// TestSameCallsSameBytes checks that two replicas driven alike tell exactly the same.
func TestSameCallsSameBytes(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtx4090")
	var logs [2]string
	for i := range logs {
		seqs, at := chatLoad(400, p.BlockTokens, 6)
		c := NewCore(p, CoreOptions{})
		var ev []Event
		for k := range seqs {
			ev = c.Advance(at[k], ev)
			c.Submit(at[k], seqs[k])
		}
		ev = c.Advance(fleet.Never-1, ev)
		logs[i] = fmt.Sprint(ev, c.Stats(fleet.Never-1))
	}
	if logs[0] != logs[1] {
		t.Error("two runs differ")
	}
}

// TestLateCaller checks that a caller that never asks Next loses nothing and that the
// events have the moments at which they happened.
func TestLateCaller(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	seqs, at := chatLoad(200, p.BlockTokens, 6)
	prompt, late := NewCore(p, CoreOptions{}), NewCore(p, CoreOptions{})
	var want, got []Event
	for k := range seqs {
		for prompt.Next() < at[k] {
			want = prompt.Advance(prompt.Next(), want)
		}
		prompt.Submit(at[k], seqs[k])
		late.Submit(at[k], seqs[k])
	}
	want, got = prompt.Advance(fleet.Never-1, want), late.Advance(fleet.Never-1, got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("events (-prompt +late):\n%s", d)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	seqs, at := chatLoad(3000, p.BlockTokens, 9)
	c := NewCore(p, CoreOptions{})
	n := fleet.Time(0)
	ev := replay(c, seqs, at, 0, nil)
	span := 2 * at[len(at)-1]
	if a := testing.AllocsPerRun(3, func() { n++; ev = replay(c, seqs, at, n*span, ev) }); a > 3 {
		t.Errorf("%v allocations in 3000 requests", a)
	}
}

func TestReset(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	p.MaxSeqs = 1
	c := NewCore(p, CoreOptions{BlockEvents: true})
	blocks := chain(make([]int, 10))
	submit := func(now fleet.Time, id uint64) {
		c.Submit(now, Seq{ID: id, PromptTokens: 170, OutputTokens: 50, Blocks: blocks})
	}
	submit(0, 1)
	submit(0, 2)
	ev := c.Advance(50e6, nil)
	if c.Submit(50e6, Seq{ID: 2, PromptTokens: 1, OutputTokens: 1}) {
		t.Error("an ID in flight is taken again")
	}
	c.Reset(50e6)
	if ev = c.Advance(50e6, ev[:0]); len(ev) != 2 || ev[0].Kind != EventRejected || ev[1].Kind != EventRejected {
		t.Errorf("events of a reset: %+v", ev)
	}
	if d := cmp.Diff(Stats{KVTokens: p.KVTokens}, c.Stats(50e6)); d != "" {
		t.Errorf("stats after a reset (-want +got):\n%s", d)
	}
	if c.Next() != fleet.Never {
		t.Errorf("next event at %d", c.Next())
	}
	changes := c.TakeBlockChanges(nil)
	if len(changes) != 2 || changes[0].Kind != BlocksStored || len(changes[0].Blocks) != 10 || changes[1].Kind != BlocksCleared {
		t.Errorf("block changes %+v", changes)
	}
	submit(60e6, 3)
	ev = c.Advance(60e6, ev[:0])
	if len(ev) != 1 || ev[0].Kind != EventAdmitted || ev[0].Cached != 0 {
		t.Errorf("after a reset the cache is warm: %+v", ev)
	}
}

// TestAdapterSlots checks the order in which adapters enter slots: one that nobody
// uses makes room, one that waits does not hold up others.
func TestAdapterSlots(t *testing.T) {
	p, _ := Lookup("llama-3.1-8b-rtxpro6000")
	p.LoRASlots = 1
	c := NewCore(p, CoreOptions{})
	for i, a := range []string{"a", "b", "", "a"} {
		c.Submit(0, Seq{ID: uint64(i + 1), PromptTokens: 10, OutputTokens: 100, Adapter: a})
	}
	ev := c.Advance(0, nil)
	var admitted []uint64
	for _, e := range ev {
		admitted = append(admitted, e.Seq)
	}
	if d := cmp.Diff([]uint64{1, 3, 4}, admitted); d != "" {
		t.Errorf("admitted (-want +got):\n%s", d)
	}
	st := c.Stats(0)
	if st.Waiting != 1 || st.Deferred != 1 || st.AdapterLoads != 1 {
		t.Errorf("%+v", st)
	}
	if d := cmp.Diff([]AdapterState{{Name: "a", Resident: true, Running: 2}, {Name: "b", Waiting: 1}}, c.Adapters(nil)); d != "" {
		t.Errorf("adapters (-want +got):\n%s", d)
	}
	first := c.Next()
	if least := fleet.Time(p.LoRALoad * 1e9); first < least {
		t.Errorf("the step that loads an adapter ends at %d, the load alone takes %d", first, least)
	}
	c.Advance(fleet.Never-1, ev[:0])
	if d := cmp.Diff([]AdapterState{{Name: "a"}, {Name: "b", Resident: true}}, c.Adapters(nil)); d != "" {
		t.Errorf("adapters at the end (-want +got):\n%s", d)
	}
	c.Submit(fleet.Never-1, Seq{ID: 9, PromptTokens: p.KVTokens, OutputTokens: 1})
	if ev = c.Advance(fleet.Never-1, ev[:0]); len(ev) != 1 || ev[0].Kind != EventRejected {
		t.Errorf("a prompt that never fits: %+v", ev)
	}
}
