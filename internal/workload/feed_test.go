// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Every turn of every session is handed out once, in order within a closed
// session, and never before it is due.
func TestFeedConservesTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sessions []*Session
		total := 0
		at := time.Duration(0)
		for range rapid.IntRange(0, 12).Draw(t, "sessions") {
			at += time.Duration(rapid.IntRange(0, 3).Draw(t, "gap"))
			s := &Session{ID: uint64(len(sessions)), Start: at, Closed: rapid.Bool().Draw(t, "closed")}
			for i := range rapid.IntRange(1, 4).Draw(t, "turns") {
				s.Turns = append(s.Turns, Turn{At: at + time.Duration(i*2), Think: time.Duration(i)})
			}
			total += len(s.Turns)
			sessions = append(sessions, s)
		}
		users := rapid.IntRange(0, 3).Draw(t, "users")
		f := NewFeed(NewList(sessions), FeedOptions{Users: users})
		next := map[uint64]int{}
		now, popped := time.Duration(0), 0
		var running []Item
		for !f.Exhausted() {
			for it, ok := f.Pop(now); ok; it, ok = f.Pop(now) {
				if it.At > now {
					t.Fatalf("handed out at %v, due at %v", now, it.At)
				}
				if it.Session.Closed || users > 0 {
					if it.Turn != next[it.Session.ID] {
						t.Fatalf("turn %d of session %d before turn %d", it.Turn, it.Session.ID, next[it.Session.ID])
					}
				}
				next[it.Session.ID]++
				popped++
				running = append(running, it)
			}
			if users > 0 && len(running) > users {
				t.Fatalf("%d requests run with %d users", len(running), users)
			}
			if len(running) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(running)-1).Draw(t, "which")
				f.Done(running[i], now)
				running = append(running[:i], running[i+1:]...)
			}
			now++
		}
		if popped != total {
			t.Fatalf("%d of %d turns were handed out", popped, total)
		}
	})
}

func TestFeedLimits(t *testing.T) {
	list := func() Source {
		var s []*Session
		for i := range 10 {
			s = append(s, &Session{Start: time.Duration(i), Turns: make([]Turn, 1)})
		}
		return NewList(s)
	}
	for _, tc := range []struct {
		opt  FeedOptions
		want int
	}{
		{FeedOptions{}, 10},
		{FeedOptions{Limit: 4}, 4},
		{FeedOptions{Until: 6}, 7},
	} {
		f := NewFeed(list(), tc.opt)
		n := 0
		for it, ok := f.PopAny(); ok; it, ok = f.PopAny() {
			f.Done(it, it.At)
			n++
		}
		if n != tc.want || f.Issued() != tc.want || !f.Exhausted() {
			t.Errorf("%+v: %d handed out, want %d; exhausted %v", tc.opt, n, tc.want, f.Exhausted())
		}
	}
}

func TestAbandonEndsTheSession(t *testing.T) {
	s := &Session{Closed: true, Turns: make([]Turn, 3)}
	f := NewFeed(NewList([]*Session{s}), FeedOptions{})
	it, _ := f.PopAny()
	f.Abandon(it, 0)
	if !f.Exhausted() {
		t.Error("the session goes on after it was abandoned")
	}
}
