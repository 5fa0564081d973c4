// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// dump writes everything that a source says, so that two streams can be compared.
func dump(src Source, sessions int) []byte {
	var b bytes.Buffer
	for range sessions {
		s := src.Next()
		if s == nil {
			break
		}
		fmt.Fprintf(&b, "%x %v %v %q %q %d\n", s.ID, s.Start, s.Closed, s.Tenant, s.Adapter, s.Class)
		for _, t := range s.Turns {
			fmt.Fprintf(&b, " %v %v %d %d %v\n", t.At, t.Think, t.PromptTokens, t.OutputTokens, t.Prompt)
		}
	}
	return b.Bytes()
}

func anySpec(t *rapid.T) Spec {
	return Spec{
		Kind:       rapid.SampledFrom(Kinds()).Draw(t, "kind"),
		Seed:       rapid.Uint64().Draw(t, "seed"),
		Rate:       rapid.SampledFrom([]float64{0, 0, 20}).Draw(t, "rate"),
		CV:         rapid.SampledFrom([]float64{0, 1, 4}).Draw(t, "cv"),
		Share:      rapid.SampledFrom([]float64{0, 0.3, 0.7}).Draw(t, "share"),
		Adapters:   rapid.IntRange(0, 8).Draw(t, "adapters"),
		Tenants:    rapid.IntRange(0, 3).Draw(t, "tenants"),
		Siblings:   rapid.SampledFrom([]int{0, 3}).Draw(t, "siblings"),
		MaxContext: rapid.SampledFrom([]int{0, 2048}).Draw(t, "max"),
		Steady:     rapid.Bool().Draw(t, "steady"),
		Open:       rapid.Bool().Draw(t, "open"),
	}
}

func TestSameSeedSameBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := anySpec(t)
		a, err := NewGenerator(spec)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := NewGenerator(spec)
		if !bytes.Equal(dump(a, 6), dump(b, 6)) {
			t.Fatal("the same specification gave two different streams")
		}
	})
}

func TestSessionsAreWellFormed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := anySpec(t)
		g, err := NewGenerator(spec)
		if err != nil {
			t.Fatal(err)
		}
		var last time.Duration
		for range 12 {
			s := g.Next()
			if s.Start < last {
				t.Fatalf("session starts at %v, before the one in front of it at %v", s.Start, last)
			}
			last = s.Start
			if len(s.Turns) == 0 || s.Turns[0].At != s.Start {
				t.Fatalf("%d turns, first at %v, start %v", len(s.Turns), s.Turns[0].At, s.Start)
			}
			for i, turn := range s.Turns {
				sum := 0
				for _, seg := range turn.Prompt {
					sum += int(seg.Tokens)
				}
				if sum != turn.PromptTokens || sum < 1 || turn.OutputTokens < 1 {
					t.Fatalf("turn %d: %d tokens in segments, %d said, %d output", i, sum, turn.PromptTokens, turn.OutputTokens)
				}
				if spec.MaxContext > 0 && turn.PromptTokens+turn.OutputTokens > spec.MaxContext {
					t.Fatalf("turn %d: %d+%d tokens exceed %d", i, turn.PromptTokens, turn.OutputTokens, spec.MaxContext)
				}
			}
		}
	})
}

func TestShareIsReached(t *testing.T) {
	for _, kind := range []Kind{KindChat, KindShared, KindAgent, KindCode, KindReason} {
		for _, share := range []float64{0.3, 0.7} {
			g, err := NewGenerator(Spec{Kind: kind, Seed: 7, Share: share, Apps: 2})
			if err != nil {
				t.Fatal(err)
			}
			if got := Ideal(NewFeed(g, FeedOptions{Users: 8, Limit: 1500}), 8); math.Abs(got-share) > 0.03 {
				t.Errorf("%s asked for a share of %.2f has %.3f", kind, share, got)
			}
		}
	}
}

func TestRateIsReached(t *testing.T) {
	for _, kind := range []Kind{KindChat, KindShared, KindCode, KindMixed} {
		for _, cv := range []float64{1, 2} {
			g, err := NewGenerator(Spec{Kind: kind, Seed: 3, Rate: 10, CV: cv, Siblings: 2, Share: 0.6})
			if err != nil {
				t.Fatal(err)
			}
			turns, end := 0, time.Duration(0)
			for end < 600*time.Second {
				s := g.Next()
				turns, end = turns+len(s.Turns), s.Start
			}
			if rate := float64(turns) / end.Seconds(); rate < 8 || rate > 12 {
				t.Errorf("%s cv %v: %.2f requests/s, want 10", kind, cv, rate)
			}
		}
	}
}

// A steady start has the full rate in its first minute, which sessions of long
// pauses would otherwise reach much later.
func TestSteadyStart(t *testing.T) {
	for _, kind := range []Kind{KindChat, KindAgent, KindCode, KindShared} {
		g, err := NewGenerator(Spec{Kind: kind, Seed: 4, Rate: 20, Steady: true})
		if err != nil {
			t.Fatal(err)
		}
		n, last := 0, time.Duration(0)
		for s := g.Next(); s.Start < time.Minute; s = g.Next() {
			if s.Start < last {
				t.Fatal("sessions out of order")
			}
			last = s.Start
			for _, turn := range s.Turns {
				if turn.At < time.Minute {
					n++
				}
			}
		}
		if n < 1000 || n > 1400 {
			t.Errorf("%s: %d requests in the first minute, want about 1200", kind, n)
		}
	}
}

func TestZipfAdapters(t *testing.T) {
	g, err := NewGenerator(Spec{Kind: KindShared, Seed: 1, Adapters: 30})
	if err != nil {
		t.Fatal(err)
	}
	n := map[string]int{}
	for range 20000 {
		n[g.Next().Adapter]++
	}
	// Weight of rank 0 among 30 with exponent 1.18 is 0.318, of rank 1 0.140.
	if f := float64(n["adapter-0"]) / 20000; math.Abs(f-0.318) > 0.02 {
		t.Errorf("adapter-0 has %.3f of the sessions, want 0.318", f)
	}
	if f := float64(n["adapter-1"]) / 20000; math.Abs(f-0.140) > 0.02 {
		t.Errorf("adapter-1 has %.3f of the sessions, want 0.140", f)
	}
}

func TestTextFollowsSegments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.Uint64().Draw(t, "id")
		m := rapid.IntRange(0, 200).Draw(t, "m")
		n := m + rapid.IntRange(0, 200).Draw(t, "more")
		long := AppendText(nil, id, n)
		if len(long) != n*BytesPerToken {
			t.Fatalf("%d tokens give %d bytes", n, len(long))
		}
		if !bytes.HasPrefix(long, AppendText(nil, id, m)) {
			t.Fatal("a shorter text is not the beginning of a longer one")
		}
		if n >= 16 && bytes.Equal(long, AppendText(nil, id+1, n)) {
			t.Fatal("two ids have the same text")
		}
	})
}

// Blocks and text must agree: prompts share as many hashes as whole blocks of text.
func TestBlocksFollowText(t *testing.T) {
	g, err := NewGenerator(Spec{Kind: KindMixed, Seed: 5, Apps: 2, MaxContext: 3000})
	if err != nil {
		t.Fatal(err)
	}
	const block = 16
	var texts [][]byte
	var hashes [][]uint64
	for len(texts) < 120 {
		for _, turn := range g.Next().Turns {
			texts = append(texts, turn.AppendPrompt(nil))
			hashes = append(hashes, turn.Blocks(nil, block, 0))
		}
	}
	for i := range texts {
		if want := len(texts[i]) / (block * BytesPerToken); len(hashes[i]) != want {
			t.Fatalf("prompt %d has %d hashes, want %d", i, len(hashes[i]), want)
		}
		for j := range i {
			common := 0
			for common < min(len(hashes[i]), len(hashes[j])) && hashes[i][common] == hashes[j][common] {
				common++
			}
			n := 0
			for n < min(len(texts[i]), len(texts[j])) && texts[i][n] == texts[j][n] {
				n++
			}
			if text := n / (block * BytesPerToken); text != common {
				t.Fatalf("prompts %d and %d share %d blocks of text and %d hashes", i, j, text, common)
			}
		}
	}
}

func TestMessagesAreJSON(t *testing.T) {
	turn := Turn{Prompt: []Segment{
		{ID: 1, Tokens: 5, Role: RoleSystem}, {ID: 2, Tokens: 3}, {ID: 3, Tokens: 2},
		{ID: 4, Tokens: 4, Role: RoleAssistant}, {ID: 5, Tokens: 1, Role: RoleTool},
	}}
	var msgs []struct{ Role, Content string }
	if err := json.Unmarshal(turn.AppendMessages(nil), &msgs); err != nil {
		t.Fatal(err)
	}
	var roles []string
	text := ""
	for _, m := range msgs {
		roles = append(roles, m.Role)
		text += m.Content
	}
	if got := strings.Join(roles, " "); got != "system user assistant user" {
		t.Errorf("roles %q", got)
	}
	if text != string(turn.AppendPrompt(nil)) {
		t.Error("messages and prompt have different text")
	}
}
