// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"sort"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/testinput"
)

// realRequest is one request of a measured vLLM run.
type realRequest struct {
	ID     string  `json:"request_id"`
	Prompt int     `json:"input_toks"`
	Output int     `json:"output_toks"`
	Queued float64 `json:"queued_ts"`
	First  float64 `json:"first_token_ts"`
	Last   float64 `json:"last_token_ts"`
	blocks []uint64
}

// loadRun reads a run and the token ids of its workload, in the order of arrival.
func loadRun(t testing.TB, dir, workload string, block int) []realRequest {
	run := readLines[realRequest](t, testinput.Shared(t, "traces/llmservingsim/"+dir+"/requests.jsonl"))
	type prompt struct {
		Tokens []int32 `json:"input_tok_ids"`
	}
	prompts := readLines[prompt](t, testinput.Shared(t, "traces/llmservingsim/"+workload))
	for i := range run {
		var n int
		for _, c := range run[i].ID[len("bench-"):] {
			n = n*10 + int(c-'0')
		}
		h := uint64(1)
		buf := make([]byte, 8+4*block)
		for ids := prompts[n].Tokens; len(ids) >= block; ids = ids[block:] {
			binary.LittleEndian.PutUint64(buf, h)
			for j, id := range ids[:block] {
				binary.LittleEndian.PutUint32(buf[8+4*j:], uint32(id))
			}
			h = xxh3.Hash(buf)
			run[i].blocks = append(run[i].blocks, h)
		}
	}
	sort.SliceStable(run, func(i, j int) bool { return run[i].Queued < run[j].Queued })
	return run
}

func readLines[T any](t testing.TB, path string) []T {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, 1<<26)
	for sc.Scan() {
		var v T
		if err := json.Unmarshal(sc.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	return out
}

// simulate plays a run on replicas of p (more than one: data-parallel ranks, each
// request to the one with the fewest in flight) and returns time to first token and
// end to end in seconds.
func simulate(p Profile, run []realRequest, ranks int) (ttft, e2e []float64) {
	ttft, e2e = make([]float64, len(run)), make([]float64, len(run))
	cores := make([]*Core, ranks)
	load := make([]int, ranks)
	for i := range cores {
		cores[i] = NewCore(p, CoreOptions{})
	}
	at := func(s float64) fleet.Time { return fleet.Time((s - run[0].Queued) * 1e9) }
	advance := func(now fleet.Time) {
		for i, c := range cores {
			for _, e := range c.Advance(now, nil) {
				switch s := e.At.Seconds(at(run[e.Seq].Queued)); e.Kind {
				case EventFirstToken:
					ttft[e.Seq] = s
				case EventFinished:
					e2e[e.Seq] = s
					load[i]--
				}
			}
		}
	}
	for i, r := range run {
		advance(at(r.Queued))
		best := 0
		for k := range cores {
			if load[k] < load[best] {
				best = k
			}
		}
		load[best]++
		cores[best].Submit(at(r.Queued), Seq{ID: uint64(i), PromptTokens: r.Prompt, OutputTokens: r.Output, Blocks: r.blocks})
	}
	advance(fleet.Never - 1)
	return ttft, e2e
}

// meanError is the mean of |got-want|/want, and the error of the mean.
func meanError(got, want []float64) (each, mean float64) {
	var sg, sw float64
	for i := range got {
		each += math.Abs(got[i]-want[i]) / want[i]
		sg += got[i]
		sw += want[i]
	}
	return each / float64(len(got)), sg/sw - 1
}

// TestAgainstRealEngine replays three measured runs of vLLM 0.19 on the profiles
// that were fitted to them.
func TestAgainstRealEngine(t *testing.T) {
	for _, tc := range []struct {
		profile, dir, workload string
		seqs, ranks            int
		limit                  float64 // of the mean per-request end-to-end error
	}{
		{"llama-3.1-8b-rtx4090", "RTX4090_Llama-3.1-8B", "sharegpt-llama-3.1-8b-300-sps10.jsonl", 256, 1, 0.05},
		{"llama-3.1-8b-rtxpro6000", "RTXPRO6000_Llama-3.1-8B", "sharegpt-llama-3.1-8b-300-sps10.jsonl", 128, 1, 0.05},
		{"qwen3-30b-a3b-2xrtxpro6000", "RTXPRO6000_Qwen3-30B-A3B-Instruct-2507", "sharegpt-qwen3-30b-a3b-300-sps10.jsonl", 256, 1, 0.05},
	} {
		t.Run(tc.profile, func(t *testing.T) {
			p, ok := Lookup(tc.profile)
			if !ok {
				t.Fatal("no such profile")
			}
			p.MaxSeqs = tc.seqs
			run := loadRun(t, tc.dir, tc.workload, p.BlockTokens)
			ttft, e2e := simulate(p, run, tc.ranks)
			wantT, wantE := make([]float64, len(run)), make([]float64, len(run))
			for i, r := range run {
				wantT[i], wantE[i] = r.First-r.Queued, r.Last-r.Queued
			}
			each, mean := meanError(e2e, wantE)
			eachT, meanT := meanError(ttft, wantT)
			t.Logf("end to end: %.1f %% a request, mean off by %+.1f %%; time to first token: %.1f %%, mean %+.1f %%",
				100*each, 100*mean, 100*eachT, 100*meanT)
			if each > tc.limit {
				t.Errorf("mean error of a request is %.1f %%, limit %.1f %%", 100*each, 100*tc.limit)
			}
		})
	}
}
