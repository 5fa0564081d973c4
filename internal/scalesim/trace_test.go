// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/testinput"
	"github.com/penstock-project/penstock/internal/workload"

	"os"
)

func traceOptions(t *testing.T) TraceOptions {
	t.Helper()
	p, ok := engine.Lookup("qwen3-32b-2xrtxpro6000")
	if !ok {
		t.Fatal("no profile")
	}
	return TraceOptions{Name: "t", Profile: p, SLO: SLO{TTFT: 2, ITL: 0.2}, Start: Start{Median: 60, Sigma: 0.1, Prior: 60}, Seed: 1, Unscored: -1, sizes: 3}
}

// readings are the same requests in the formats of several traces.
func readings(n int) map[string]string {
	var azure, log, mooncake, vidur strings.Builder
	azure.WriteString("\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\r\n")
	log.WriteString("arrival,prompt_tokens,output_tokens\n")
	vidur.WriteString("arrived_at,num_prefill_tokens,num_decode_tokens\n")
	for i := range n {
		s, in, out := float64(i)*0.5, 600+i%400, 20+i%40
		fmt.Fprintf(&azure, "2024-05-10 %02d:%02d:%06.3f+00:00,%d,%d\r\n", int(s)/3600, int(s)/60%60, math.Mod(s, 60), in, out)
		fmt.Fprintf(&log, "%g,%d,%d\n", s, in, out)
		fmt.Fprintf(&vidur, "%g,%d,%d\n", s, in, out)
		ids := make([]string, (in+511)/512)
		for k := range ids {
			ids[k] = fmt.Sprint(i*10 + k)
		}
		fmt.Fprintf(&mooncake, `{"timestamp": %.0f, "input_length": %d, "output_length": %d, "hash_ids": [%s]}`+"\n", s*1000, in, out, strings.Join(ids, ","))
	}
	return map[string]string{"azure": azure.String(), "csv": log.String(), "csv of another name": vidur.String(), "mooncake": mooncake.String()}
}

// A trace means the same in every format that can hold it.
func TestTraceFormatsAgree(t *testing.T) {
	for name, text := range readings(1200) {
		tr, err := workload.ReadTrace(strings.NewReader(text), workload.ReadOptions{Name: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		sc, info, err := FromTrace(tr, traceOptions(t))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if info.Requests != 1200 || math.Abs(sc.Duration-600) > 3 || sc.ScoreFrom != 150 || info.TooLong != 0 {
			t.Errorf("%s: %+v, %g s of which %g are not scored", name, info, sc.Duration, sc.ScoreFrom)
		}
		if !(info.Mean > 0.3 && info.Mean < 3) {
			t.Errorf("%s: %g replicas offered", name, info.Mean)
		}
	}
}

// Copies multiply the load; a factor under 1 thins it, a mean chooses the factor.
func TestTraceFactor(t *testing.T) {
	for _, c := range []struct {
		factor, mean float64
		want         int
	}{{3, 0, 3600}, {2.5, 0, 3000}, {0.5, 0, 600}, {0, 4, 0}} {
		tr, err := workload.ReadTrace(strings.NewReader(readings(1200)["csv"]), workload.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o := traceOptions(t)
		o.Factor, o.Mean = c.factor, c.mean
		sc, info, err := FromTrace(tr, o)
		if err != nil {
			t.Fatal(err)
		}
		if c.want > 0 && math.Abs(float64(info.Requests-c.want)) > 60 {
			t.Errorf("factor %g: %d requests, want about %d", c.factor, info.Requests, c.want)
		}
		if c.mean > 0 && math.Abs(sc.Mean-c.mean) > 0.1*c.mean {
			t.Errorf("mean %g: %g replicas offered", c.mean, sc.Mean)
		}
		for i := 1; i < len(sc.st.at); i++ {
			if sc.st.at[i] < sc.st.at[i-1] {
				t.Fatalf("factor %g: request %d comes before the one before it", c.factor, i)
			}
		}
	}
}

// A router that knows prefixes leaves less to compute than one that does not, and
// what nobody can serve in time is counted and left out.
func TestTraceCaches(t *testing.T) {
	var b strings.Builder
	for i := range 1500 {
		in, head := 2048, i%12
		if i == 700 {
			in = 200_000
		}
		ids := make([]string, (in+511)/512)
		for k := range ids {
			ids[k] = fmt.Sprint(1_000_000 + i*1000 + k)
			if k < 3 {
				ids[k] = fmt.Sprint(head*10 + k)
			}
		}
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "output_length": 30, "hash_ids": [%s]}`+"\n", i*400, in, strings.Join(ids, ","))
	}
	hit := map[Caches]float64{}
	for _, mode := range []Caches{CachesAware, CachesRandom, CachesNone} {
		tr, err := workload.ReadTrace(strings.NewReader(b.String()), workload.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		o := traceOptions(t)
		o.Caches = mode
		_, info, err := FromTrace(tr, o)
		if err != nil {
			t.Fatal(err)
		}
		if info.TooLong != 1 {
			t.Errorf("%s: %d too long, want 1", mode, info.TooLong)
		}
		hit[mode] = info.HitRatio
	}
	if !(hit[CachesAware] > hit[CachesRandom] && hit[CachesRandom] > 0 && hit[CachesNone] == 0) {
		t.Errorf("hits %v: want aware over random over none", hit)
	}
}

// The public traces are read whole.
func TestPublicTraceScenarios(t *testing.T) {
	if testing.Short() {
		t.Skip("reads megabytes")
	}
	for rel, least := range map[string]int{
		"traces/azure/AzureLLMInferenceTrace_code.csv": 7500,
		"traces/mooncake/conversation_trace.jsonl":     4000,
	} {
		f, err := os.Open(testinput.Shared(t, rel))
		if err != nil {
			t.Fatal(err)
		}
		tr, err := workload.ReadTrace(f, workload.ReadOptions{Name: rel})
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		_, info, err := FromTrace(tr, traceOptions(t))
		if err != nil {
			t.Fatal(err)
		}
		if info.Requests < least || info.Hours < 0.9 || info.Hours > 1.1 {
			t.Errorf("%s: %+v", rel, info)
		}
	}
}
