// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/testinput"
)

// chatLoad is an open loop of chat requests: a shared system prompt, sessions of
// several turns, 1,100 prompt and 255 output tokens in the mean.
func chatLoad(n, block int, rate float64) ([]Seq, []fleet.Time) {
	r := rand.New(rand.NewPCG(1, 2))
	seqs, at := make([]Seq, n), make([]fleet.Time, n)
	type session struct {
		blocks []uint64
		tokens int
	}
	sessions := make([]session, 200)
	now := 0.0
	for i := range seqs {
		now += r.ExpFloat64() / rate
		s := &sessions[r.IntN(len(sessions))]
		if s.tokens > 2000 || s.tokens == 0 {
			*s = session{blocks: chain(make([]int, 320/block)), tokens: 320}
		}
		s.tokens += 50 + r.IntN(400)
		for len(s.blocks) < s.tokens/block {
			s.blocks = append(s.blocks, r.Uint64())
		}
		seqs[i] = Seq{ID: uint64(i + 1), PromptTokens: s.tokens, OutputTokens: 1 + r.IntN(510), Blocks: append([]uint64(nil), s.blocks[:s.tokens/block]...)}
		at[i] = fleet.Time(now * 1e9)
	}
	return seqs, at
}

func replay(c *Core, seqs []Seq, at []fleet.Time, off fleet.Time, ev []Event) []Event {
	for i := range seqs {
		for t := at[i] + off; c.Next() <= t; {
			ev = c.Advance(c.Next(), ev[:0])
		}
		c.Submit(at[i]+off, seqs[i])
	}
	for c.Next() != fleet.Never {
		ev = c.Advance(c.Next(), ev[:0])
	}
	return ev
}

// BenchmarkCoreChat reports the requests of a chat load that one replica's core
// handles; ns/op is per request.
func BenchmarkCoreChat(b *testing.B) {
	for _, bc := range []struct {
		name, profile string
		rate          float64
	}{{"8b-light", "llama-3.1-8b-rtxpro6000", 4}, {"8b-full", "llama-3.1-8b-rtxpro6000", 9}, {"32b-2xh100-full", "qwen3-32b-2xh100", 9}} {
		b.Run(bc.name, func(b *testing.B) {
			p, _ := Lookup(bc.profile)
			const n = 20000
			seqs, at := chatLoad(n, p.BlockTokens, bc.rate)
			c := NewCore(p, CoreOptions{})
			ev := replay(c, seqs, at, 0, nil)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ev = replay(c, seqs, at, 2*at[n-1]*fleet.Time(i+1), ev)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/request")
			st := c.Stats(fleet.Never - 1)
			b.ReportMetric(float64(st.CacheHits)/float64(st.CacheQueries), "hit")
			b.ReportMetric(float64(st.Steps)/float64(st.Finished), "steps/request")
		})
	}
}

// BenchmarkCoreMooncake plays a public trace of long prompts on eight replicas, each
// request at the one with the fewest in flight; ns/op is the whole trace.
func BenchmarkCoreMooncake(b *testing.B) {
	type line struct {
		At     float64  `json:"timestamp"`
		Input  int      `json:"input_length"`
		Output int      `json:"output_length"`
		Hashes []uint64 `json:"hash_ids"`
	}
	trace := readLines[line](b, testinput.Shared(b, "traces/mooncake/conversation_trace.jsonl"))
	p, _ := Lookup("qwen3-32b-2xh100")
	p.BlockTokens = 512
	b.ReportAllocs()
	var ev []Event
	var st Stats
	for b.Loop() {
		var cores [8]*Core
		for i := range cores {
			cores[i] = NewCore(p, CoreOptions{})
		}
		var load [8]int
		for i, r := range trace {
			now, best := fleet.Time(r.At*1e6), 0
			for k, c := range cores {
				for c.Next() <= now {
					ev = c.Advance(c.Next(), ev[:0])
					for _, e := range ev {
						if e.Kind == EventFinished {
							load[k]--
						}
					}
				}
				if load[k] < load[best] {
					best = k
				}
			}
			load[best]++
			cores[best].Submit(now, Seq{ID: uint64(i), PromptTokens: r.Input, OutputTokens: r.Output, Blocks: r.Hashes})
		}
		for _, c := range cores {
			for c.Next() != fleet.Never {
				ev = c.Advance(c.Next(), ev[:0])
			}
		}
		st = cores[0].Stats(fleet.Never - 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(trace)), "ns/request")
	b.ReportMetric(float64(st.CacheHits)/float64(st.CacheQueries), "hit")
	b.ReportMetric(float64(st.Preemptions)/float64(max(1, st.Finished)), "preemptions/request")
}
