// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/testinput"
	"pgregory.net/rapid"
)

const (
	smallMooncake = `{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 1030, "output_length": 0, "hash_ids": [0, 1, 2]}
`
	smallWeka = `{"id":"a","parent":null,"bs":64,"tools":10,"sys":5,"reqs":[[0,200,7,0,1.5,0,[1,3]],[4,330,8,2.5,1,0,[1,2,9,3]]]}
{"id":"a/x","parent":"a","bs":64,"tools":10,"sys":5,"reqs":[[0,128,7,0,1,1,[1,2]]]}
`
	smallAzure = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n" +
		"2023-11-16 18:17:04.0319600,3180,8\r\n"
	smallServeGen = "0,2,1,Gamma,1,0.5\n600,0,0,,0,0\n1200,1,2,Weibull,0.5,0.5\n"
	smallLog      = "arrival,prompt_tokens,output_tokens,cached_tokens,ttft,e2e,session,adapter,tenant\n" +
		"2024-05-01T12:00:00Z,100,10,,0.2,1.5,s1,,acme\n" +
		"2024-05-01T12:00:05Z,150,10,100,0.1,1,s1,,acme\n" +
		"2024-05-01T12:00:06.25Z,80,4,32,,,,law,acme\n"
	smallJournal = `{"schema":"penstock/journal/v1","records":"penstock/decision/v1","started":"2024-05-01T11:59:00Z"}
{"schema":"penstock/decision/v1","id":"r1","time":"2024-05-01T12:00:00Z","request":{"tenant":"","model":"m","adapter":"","prompt_tokens":90},"outcome":{"status":200,"ttft_ms":20,"e2e_ms":100,"queue_ms":0,"prompt_tokens":100,"cached_tokens":64,"output_tokens":9}}
{"schema":"penstock/decision/v1","id":"r2","time":"2024-05-01T12:00:01.5Z","request":{"tenant":"t","model":"m","adapter":"a","prompt_tokens":50},"outcome":{"status":200,"ttft_ms":null,"e2e_ms":null,"queue_ms":500,"prompt_tokens":null,"cached_tokens":null,"output_tokens":null}}
{"schema":"penstock/decision/v1","id":"r3","time":"2024-05-01T12:00:02Z","request":{"tenant":"t","model":"m","adapter":"a","prompt_tokens":50}}
`
)

func read(t *testing.T, text string, o ReadOptions) *Trace {
	t.Helper()
	tr, err := ReadTrace(strings.NewReader(text), o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// all renders the turns of a source: due time, tokens in and out, segments.
func all(src Source) string {
	var b strings.Builder
	for s := src.Next(); s != nil; s = src.Next() {
		fmt.Fprintf(&b, "session %v closed=%v %s/%s\n", s.Start, s.Closed, s.Tenant, s.Adapter)
		for _, t := range s.Turns {
			fmt.Fprintf(&b, "  %v +%v in %d out %d:", t.At, t.Think, t.PromptTokens, t.OutputTokens)
			for _, seg := range t.Prompt {
				fmt.Fprintf(&b, " %dx%d", seg.Tokens, seg.Unit)
			}
			if t.Logged != nil {
				fmt.Fprintf(&b, " logged cached %d ttft %v e2e %v", t.Logged.CachedTokens, t.Logged.TTFT, t.Logged.E2E)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func TestReadFormats(t *testing.T) {
	for _, tc := range []struct {
		format   Format
		text     string
		requests int
		want     string
	}{
		{FormatMooncake, smallMooncake, 2, `session 0s closed=false /
  0s +0s in 600 out 5: 512x0 88x0
session 1.5s closed=false /
  1.5s +0s in 1030 out 1: 512x0 512x0 6x0
`},
		{FormatWeka, smallWeka, 3, `session 0s closed=true /
  0s +0s in 200 out 7: 192x64 8x0 logged cached -1 ttft -1ns e2e 1.5s
  4s +2.5s in 330 out 8: 128x64 192x64 10x0 logged cached -1 ttft -1ns e2e 1s
session START closed=true /
  START +0s in 128 out 7: 128x64 logged cached -1 ttft -1ns e2e 1s
`},
		{FormatAzure, smallAzure, 2, `session 0s closed=false /
  0s +0s in 4808 out 10: 4808x0 logged cached -1 ttft -1ns e2e -1ns
session 52ms closed=false /
  52ms +0s in 3180 out 8: 3180x0 logged cached -1 ttft -1ns e2e -1ns
`},
		{FormatLog, smallLog, 3, `session 0s closed=false acme/
  0s +0s in 100 out 10: 100x0 logged cached -1 ttft 200ms e2e 1.5s
  5s +3.5s in 150 out 10: 150x0 logged cached 100 ttft 100ms e2e 1s
session 6.25s closed=false acme/law
  6.25s +0s in 80 out 4: 32x0 48x0 logged cached 32 ttft -1ns e2e -1ns
`},
		{FormatJournal, smallJournal, 2, `session 0s closed=false /
  0s +0s in 100 out 9: 64x0 36x0 logged cached 64 ttft 20ms e2e 100ms
session 1s closed=false t/a
  1s +0s in 50 out 1: 50x0 logged cached -1 ttft -1ns e2e -1ns
`},
	} {
		tr := read(t, tc.text, ReadOptions{Seed: 1})
		if tr.Format != tc.format || tr.Requests != tc.requests {
			t.Errorf("%s: read as %s with %d requests, want %d", tc.format, tr.Format, tr.Requests, tc.requests)
		}
		got := all(tr.Source(Play{}))
		if tc.format == FormatWeka { // the second start is drawn
			got = strings.ReplaceAll(got, tr.Sessions[1].Start.String(), "START")
		}
		if got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.format, got, tc.want)
		}
	}
}

func TestEqualIDsGiveEqualText(t *testing.T) {
	text := func(s *Session, i int) string { return string(s.Turns[i].AppendPrompt(nil)) }
	m := read(t, smallMooncake, ReadOptions{})
	if a, b := text(m.Sessions[0], 0), text(m.Sessions[1], 0); !strings.HasPrefix(b, a) {
		t.Error("mooncake: the same ids gave different text")
	}
	w := read(t, smallWeka, ReadOptions{})
	a, b, sub := text(w.Sessions[0], 0), text(w.Sessions[0], 1), text(w.Sessions[1], 0)
	const two = 2 * 64 * BytesPerToken
	if a[:two] != b[:two] || a[:two] != sub[:two] {
		t.Error("weka: blocks 1 and 2 of one session gave different text")
	}
	if a[two:two+8] == b[two:two+8] {
		t.Error("weka: blocks 3 and 9 gave the same text")
	}
	l := read(t, smallLog, ReadOptions{})
	if a, b := text(l.Sessions[0], 0), text(l.Sessions[0], 1); !strings.HasPrefix(b, a) {
		t.Error("log: a later turn does not begin with the one before")
	}
}

func TestTraceErrorsNameThePlace(t *testing.T) {
	const mc = `{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [0]}` + "\n"
	for _, tc := range []struct{ text, want string }{
		{"", "f: is empty"},
		{"\n\n", "f: is empty"},
		{"hello\n", "f:1: header of no known trace; expected arrival,prompt_tokens,output_tokens (log), TIMESTAMP,ContextTokens,GeneratedTokens (azure) or six columns of numbers (servegen)"},
		{"{}\n", "f:1: JSON of no known trace; expected hash_ids (mooncake), reqs (weka) or schema penstock/decision (journal)"},
		{"\x1f\x8b\x08\n", "f:1: is compressed; unpack it first"},
		{mc + "\n" + `{"timestamp": 0, "input_length": "x"}`, "f:3: input_length: is a string, want float64"},
		{mc + `{"timestamp": 0, "input_length": 5, "output_length": 5}`, "f:2: hash_ids: has 0 ids, want 1 for 5 tokens"},
		{mc + `{"timestamp": 0, "output_length": 5, "hash_ids": [0]}`, "f:2: input_length: is missing"},
		{mc + `{"timestamp": -1, "input_length": 5, "output_length": 5, "hash_ids": [0]}`, "f:2: timestamp: -1 is not a time from 0 to 20 years"},
		{mc + `{"timestamp": 0, "input_length": 5.5, "output_length": 5, "hash_ids": [0]}`, "f:2: input_length: 5.5 is not a number of tokens within 1 and 16777216"},
		{mc + `{"timestamp": 0,`, "f:2: unexpected end of JSON input"},
		{`{"id":"a","bs":64,"reqs":[[0,1,2,3,4,5,[1,1]],[0,1,2,3]]}`, "f:1: reqs[1]: has 4 elements, want 7"},
		{`{"id":"a","bs":64,"reqs":[[0,1,"2",3,4,5,[1,1]]]}`, "f:1: reqs[0][2]: is no number"},
		{`{"id":"a","bs":64,"reqs":[[0,1,2,3,4,5,[1]]]}`, "f:1: reqs[0][6]: is no list of pairs start, count"},
		{`{"id":"a","bs":0,"reqs":[[0,1,2,3,4,5,[1]]]}`, "f:1: bs: 0 is not a number of tokens within 1 and 16777216"},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", `f:2: timestamp: "yesterday" is neither seconds nor a time like 2024-05-01T12:00:00.5Z`},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,,5\n", "f:2: contexttokens: is missing"},
		{"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5\n", "f:2: has 2 columns, the header has 3"},
		{"arrival,prompt_tokens\n1,2\n", "f:1: output_tokens: the header has no such column; it has arrival, prompt_tokens"},
		{"arrival,prompt_tokens,output_tokens\n1,x,2\n", `f:2: prompt_tokens: "x" is no number`},
		{"arrival,prompt_tokens,output_tokens,cached_tokens\n1,5,2,9\n", "f:2: cached_tokens: 9 is more than the prompt's 5 tokens"},
		{"arrival,prompt_tokens,output_tokens\n1,5,2\n1e9,5,2\n", "f:3: arrival: is more than 20 years after the first request"},
		{"arrival,prompt_tokens,output_tokens\n", "f: holds no request"},
		{"0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "f:2: start: 0 is not after the window before"},
		{"0,1,1,Poisson,1,1\n", `f:1: family: "Poisson" is neither Gamma nor Weibull`},
		{"0,1,1,,1,1\n", "f:1: family: is missing, with a rate of 1"},
		{"0,nan,1,Gamma,1,1\n", "f:1: rate: NaN is not a rate within 0 and 1e6 requests a second"},
		{`{"schema":"penstock/decision/v1","id":"x"}`, "f:1: time: is missing"},
	} {
		_, err := ReadTrace(strings.NewReader(tc.text), ReadOptions{Name: "f"})
		if err == nil || err.Error() != tc.want {
			t.Errorf("%q:\n got %v\nwant %s", tc.text, err, tc.want)
		}
		var te *TraceError
		if !errors.As(err, &te) {
			t.Errorf("%q: %T is no *TraceError", tc.text, err)
		}
	}
}

func TestJitterSpreadsQuantisedArrivals(t *testing.T) {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 5, "output_length": 5, "hash_ids": [%d]}`+"\n", i/10*3000, i)
	}
	tr := read(t, b.String(), ReadOptions{Seed: 1})
	if tr.Quantum != 3*time.Second {
		t.Fatalf("quantum %v, want 3s", tr.Quantum)
	}
	distinct := map[time.Duration]bool{}
	for _, s := range tr.Sessions {
		distinct[s.Start] = true
	}
	if len(distinct) < 290 {
		t.Errorf("only %d different arrivals of 300", len(distinct))
	}
	if flat := read(t, b.String(), ReadOptions{NoJitter: true}); flat.Sessions[9].Start != 0 {
		t.Errorf("jitter although refused: %v", flat.Sessions[9].Start)
	}
}

// A play of a trace has Factor times its turns, in order of their starts, on a
// clock Speedup times as fast, and the copies do not share text.
func TestPlayFactorAndSpeedup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rows strings.Builder
		n := rapid.IntRange(1, 20).Draw(t, "n")
		rows.WriteString("arrival,prompt_tokens,output_tokens\n")
		for range n {
			fmt.Fprintf(&rows, "%d,64,3\n", rapid.IntRange(0, 1000).Draw(t, "at"))
		}
		tr, err := ReadTrace(strings.NewReader(rows.String()), ReadOptions{NoJitter: true})
		if err != nil {
			t.Fatal(err)
		}
		p := Play{Speedup: rapid.SampledFrom([]float64{0, 1, 10}).Draw(t, "speedup"), Factor: rapid.IntRange(0, 4).Draw(t, "factor")}
		speed, factor := max(p.Speedup, 1), max(p.Factor, 1)
		src := tr.Source(p)
		var last time.Duration
		got, texts := 0, map[uint64]int{}
		for s := src.Next(); s != nil; s = src.Next() {
			if s.Start < last || float64(s.Start) > float64(tr.Span)/speed+1 {
				t.Fatalf("start %v after %v, span %v", s.Start, last, tr.Span)
			}
			last = s.Start
			got++
			texts[s.Turns[0].Prompt[0].ID]++
		}
		if got != n*factor {
			t.Fatalf("%d sessions, want %d", got, n*factor)
		}
		for id, k := range texts {
			if k > 1 {
				t.Fatalf("text %x is in %d prompts", id, k)
			}
		}
	})
}

func TestServeGenKeepsItsRates(t *testing.T) {
	tr := read(t, smallServeGen, ReadOptions{Name: "client"})
	if tr.Requests != 1800 || tr.Span != 1800*time.Second {
		t.Errorf("%d requests in %v, want 1800 in 30m", tr.Requests, tr.Span)
	}
	windows := [3]int{}
	const factor = 20
	src := tr.Source(Play{Factor: factor, Seed: 3, Speedup: 2})
	var last time.Duration
	for s := src.Next(); s != nil; s = src.Next() {
		if s.Start < last {
			t.Fatal("arrivals run backwards")
		}
		last = s.Start
		windows[int(s.Start/(300*time.Second))]++
	}
	for i, want := range []float64{1200 * factor, 0, 600 * factor} {
		if got := float64(windows[i]); math.Abs(got-want) > 0.05*want {
			t.Errorf("window %d has %v requests, want about %v", i, got, want)
		}
	}
	if r := tr.Clients[0].Rate(1300 * time.Second); r != 1 {
		t.Errorf("rate at 1300 s is %v, want 1", r)
	}
}

func TestPublicTraces(t *testing.T) {
	open := func(rel string) *os.File {
		f, err := os.Open(testinput.Shared(t, rel))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	t.Run("mooncake", func(t *testing.T) {
		tr, err := ReadTrace(open("traces/mooncake/conversation_trace.jsonl"), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if tr.Requests != 12031 || tr.Quantum < 2990*time.Millisecond || tr.Quantum > 3010*time.Millisecond {
			t.Errorf("%d requests, quantum %v", tr.Requests, tr.Quantum)
		}
		// Published: an endless single cache finds 37.4 % of the prompt tokens.
		if share := Ideal(NewFeed(tr.Source(Play{}), FeedOptions{}), 512); math.Abs(share-0.374) > 0.01 {
			t.Errorf("ideal hit share %.3f, want 0.374", share)
		}
	})
	t.Run("weka", func(t *testing.T) {
		z, err := gzip.NewReader(open("traces/weka/weka_claude_code_compact.jsonl.gz"))
		if err != nil {
			t.Fatal(err)
		}
		tr, err := ReadTrace(z, ReadOptions{MaxRequests: 3000})
		if err != nil {
			t.Fatal(err)
		}
		if share := Ideal(NewFeed(tr.Source(Play{}), FeedOptions{}), 64); share < 0.93 {
			t.Errorf("ideal hit share %.3f, want about 0.96", share)
		}
	})
	t.Run("azure", func(t *testing.T) {
		tr, err := ReadTrace(open("traces/azure/AzureLLMInferenceTrace_code.csv"), ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if tr.Requests != 8819 || tr.Quantum != 0 {
			t.Errorf("%d requests, quantum %v", tr.Requests, tr.Quantum)
		}
	})
	t.Run("servegen", func(t *testing.T) {
		z, err := gzip.NewReader(open("traces/servegen/servegen_client_traces.tar.gz"))
		if err != nil {
			t.Fatal(err)
		}
		files, a := 0, tar.NewReader(z)
		for {
			h, err := a.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if path.Ext(h.Name) != ".csv" {
				continue
			}
			if files++; files%10 != 0 {
				continue // a tenth of them is enough to read
			}
			if _, err := ReadTrace(a, ReadOptions{Name: h.Name}); err != nil {
				t.Fatal(err)
			}
		}
		if files != 422 {
			t.Errorf("%d clients, want 422", files)
		}
	})
}

func fuzzFormat(f *testing.F, format Format, seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tr, err := ReadTrace(strings.NewReader(string(data)), ReadOptions{Name: "f", Format: format})
		if err != nil {
			var te *TraceError
			if !errors.As(err, &te) {
				t.Fatalf("%T is no *TraceError: %v", err, err)
			}
			return
		}
		src := tr.Source(Play{Factor: 2, Speedup: 3, MaxContext: 4096})
		var last time.Duration
		for range 100 {
			s := src.Next()
			if s == nil {
				break
			}
			if s.Start < last {
				t.Fatalf("starts at %v after %v", s.Start, last)
			}
			last = s.Start
			for i := range s.Turns {
				turn := &s.Turns[i]
				sum := 0
				for _, seg := range turn.Prompt {
					sum += int(seg.Tokens)
				}
				if sum != turn.PromptTokens || sum+turn.OutputTokens > 4096 {
					t.Fatalf("segments of %d tokens, %d said, %d output", sum, turn.PromptTokens, turn.OutputTokens)
				}
			}
		}
	})
}

func FuzzMooncake(f *testing.F) { fuzzFormat(f, FormatMooncake, smallMooncake) }
func FuzzWeka(f *testing.F)     { fuzzFormat(f, FormatWeka, smallWeka) }
func FuzzAzure(f *testing.F)    { fuzzFormat(f, FormatAzure, smallAzure) }
func FuzzServeGen(f *testing.F) { fuzzFormat(f, FormatServeGen, smallServeGen) }
func FuzzLog(f *testing.F)      { fuzzFormat(f, FormatLog, smallLog) }
func FuzzJournal(f *testing.F)  { fuzzFormat(f, FormatJournal, smallJournal) }
func FuzzDetect(f *testing.F) {
	fuzzFormat(f, FormatAuto, smallMooncake, smallWeka, smallAzure, smallServeGen, smallLog, smallJournal)
}
