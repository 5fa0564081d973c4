// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/routing"
	"github.com/penstock-project/penstock/internal/manifest"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/testinput"
)

func table(t *testing.T, text string) *diagnose.Table {
	t.Helper()
	tb, err := diagnose.ParseTable(text)
	if err != nil {
		t.Fatal(err)
	}
	return tb
}

func caseText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(testinput.Shared(t, "cases/"+name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func codes(r *routing.Report) []string {
	out := []string{}
	for _, f := range r.Findings {
		out = append(out, f.Code)
	}
	slices.Sort(out)
	return out
}

func want(t *testing.T, r *routing.Report, list ...string) {
	t.Helper()
	if got := codes(r); !slices.Equal(got, append([]string{}, list...)) {
		b, _ := json.MarshalIndent(r, "", " ")
		t.Fatalf("got %v, want %v\n%s", got, list, b)
	}
}

func lookup(t *testing.T, f diagnose.Finding, name string) any {
	t.Helper()
	v, ok := f.Lookup(name)
	if !ok {
		t.Errorf("%s has no evidence %s", f.Code, name)
	}
	return v
}

func TestCase30(t *testing.T) {
	r := routing.Analyse(routing.Input{Table: table(t, caseText(t, "30-kv-aware-silently-off/log-a.csv"))})
	want(t, r, "kv-aware-off")
	f := r.Findings[0]
	if lookup(t, f, "state") != "DEGRADED" || lookup(t, f, "zero") != 462.0 || lookup(t, f, "total") != 528.0 || lookup(t, f, "path") != "/v1/responses" {
		t.Errorf("%+v", f.Evidence)
	}
	set, _ := manifest.Read([]manifest.Input{{Name: "config.yaml", Data: []byte(caseText(t, "30-kv-aware-silently-off/config.yaml"))}})
	r = routing.Analyse(routing.Input{Table: table(t, caseText(t, "30-kv-aware-silently-off/log-b.csv")), Set: set})
	want(t, r, "kv-aware-off", "kv-aware-off", "kv-aware-off")
	got := map[string]any{}
	for _, f := range r.Findings {
		got[f.Object] = lookup(t, f, "cause")
	}
	if got["x"] != "prompts below block size" || got["y"] != "no kv events" || got["z"] != "tokenizer/template mismatch" {
		t.Errorf("causes %v", got)
	}
}

func TestCase29(t *testing.T) {
	r := routing.Analyse(routing.Input{Table: table(t, caseText(t, "29-restart-index-still-warm/events.jsonl"))})
	want(t, r, "kv-events-lost", "replica-restarted")
	for _, f := range r.Findings {
		if f.Code == "replica-restarted" && (lookup(t, f, "blocks_lost") != 4 || f.Object != "a") {
			t.Errorf("%+v", f)
		}
		if f.Code == "kv-events-lost" && (lookup(t, f, "missed") != 7.0 || f.Object != "b") {
			t.Errorf("%+v", f)
		}
	}
}

// requests writes a table of decisions.
type requests struct{ b strings.Builder }

func (q *requests) add(t float64, endpoint, prefix, session, router string, prompt, cached int, ttft, e2e float64) {
	if q.b.Len() == 0 {
		q.b.WriteString("t_s,endpoint,prefix,session,router,prompt_tokens,cached_tokens,ttft_ms,e2e_ms\n")
	}
	fmt.Fprintf(&q.b, "%.3f,%s,%s,%s,%s,%d,%d,%.1f,%.1f\n", t, endpoint, prefix, session, router, prompt, cached, ttft, e2e)
}

func TestHotPrefix(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	var hot, spread, low requests
	for i := range 400 {
		at := float64(i) / 20
		hot.add(at, map[bool]string{true: "a", false: names[1+i%3]}[i%10 != 0], "sys", "", "", 2200, 2000, 5000, 9000)
		spread.add(at, names[i%4], "sys", "", "", 2200, 2000, 300, 3000)
		low.add(at*100, "a", "sys", "", "", 2200, 2000, 300, 3000)
	}
	r := routing.Analyse(routing.Input{Table: table(t, hot.b.String())})
	want(t, r, "hot-prefix")
	if r.Findings[0].Object != "a" || lookup(t, r.Findings[0], "max_over_mean_inflight").(float64) < 1.5 {
		t.Errorf("%+v", r.Findings[0])
	}
	want(t, routing.Analyse(routing.Input{Table: table(t, spread.b.String())}))
	// One request after the other belongs to the warm replica.
	want(t, routing.Analyse(routing.Input{Table: table(t, low.b.String())}))
}

func TestHerd(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var herd, even requests
	for i := range 500 {
		herd.add(float64(i)/250, fmt.Sprintf("r%d", i/63), fmt.Sprint("p", i), "", "", 500, 0, 300, 900)
		even.add(float64(i)/250, fmt.Sprintf("r%d", rng.IntN(8)), fmt.Sprint("p", i), "", "", 500, 0, 300, 900)
	}
	r := routing.Analyse(routing.Input{Table: table(t, herd.b.String())})
	want(t, r, "herd-between-scrapes")
	if lookup(t, r.Findings[0], "longest_run") != 63 || lookup(t, r.Findings[0], "per_replica_ideal") != 62.5 {
		t.Errorf("%+v", r.Findings[0].Evidence)
	}
	want(t, routing.Analyse(routing.Input{Table: table(t, even.b.String())}))
}

func TestSessions(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	var two, ring, mod requests
	for turn := range 5 {
		for s := range 200 {
			at := float64(turn*200 + s)
			router := fmt.Sprint("router", (turn+s)%2)
			// Each router has its own map: another replica on the other router.
			two.add(at, names[(s+(turn+s)%2)%4], "", fmt.Sprint("s", s), router, 1000, 900, 300, 900)
			n := 4
			if turn >= 3 {
				n = 5
			}
			all := append(slices.Clone(names), "e")
			e := names[s%4]
			if turn >= 3 && s%5 == 0 {
				e = "e" // one key in five moves
			}
			ring.add(at, e, "", fmt.Sprint("s", s), router, 1000, 900, 300, 900)
			mod.add(at, all[s%n], "", fmt.Sprint("s", s), router, 1000, 900, 300, 900)
		}
	}
	r := routing.Analyse(routing.Input{Table: table(t, two.b.String())})
	want(t, r, "sessions-scattered")
	if c := lookup(t, r.Findings[0], "cause"); !strings.Contains(c.(string), "each router") {
		t.Errorf("cause %v", c)
	}
	want(t, routing.Analyse(routing.Input{Table: table(t, ring.b.String())}))
	r = routing.Analyse(routing.Input{Table: table(t, mod.b.String())})
	want(t, r, "sessions-scattered")
	if v := lookup(t, r.Findings[0], "moved_on_add").(float64); v < 0.6 {
		t.Errorf("moved on add %v", v)
	}
}

func TestScattered(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var random, affine requests
	for i := range 400 {
		p := rng.IntN(20)
		random.add(float64(i), fmt.Sprintf("r%d", rng.IntN(8)), fmt.Sprint("p", p), "", "", 1000, map[bool]int{true: 900, false: 0}[i%8 == 0], 300, 500)
		affine.add(float64(i), fmt.Sprintf("r%d", p%8), fmt.Sprint("p", p), "", "", 1000, 850, 300, 500)
	}
	r := routing.Analyse(routing.Input{Table: table(t, random.b.String())})
	want(t, r, "cache-scattered")
	if m := lookup(t, r.Findings[0], "affinity_hit").(float64); m < 0.9 {
		t.Errorf("affinity would reach %v", m)
	}
	want(t, routing.Analyse(routing.Input{Table: table(t, affine.b.String())}))
}

func TestFailOpenDrill(t *testing.T) {
	r := routing.Analyse(routing.Input{Table: table(t, "t_s,picker,failureMode,status,count\n0,up,FailOpen,200,50\n10,down,FailOpen,500,50\n20,up,FailOpen,200,50\n")})
	want(t, r, "fail-open-void")
	want(t, routing.Analyse(routing.Input{Table: table(t, "t_s,picker,failureMode,status,count\n0,up,FailClose,200,50\n10,down,FailClose,503,50\n")}))
	want(t, routing.Analyse(routing.Input{Table: table(t, "t_s,picker,failureMode,status,count\n10,down,FailOpen,200,50\n")}))
}

func ptr[T any](v T) *T { return &v }

// record makes a record in which r0 is believed warm.
func record(i int, chosen string, predicted, cached int, ageMS float64) *route.Record {
	r := &route.Record{
		Schema: route.Schema, ID: fmt.Sprint("id", i), Time: time.Unix(1_700_000_000+int64(i), 0), Chosen: chosen, Policy: "penstock",
		Request: route.Asked{PromptTokens: 1000, Blocks: 8}, Snapshot: route.SnapshotID{Version: uint64(i), AgeMS: ptr(ageMS)},
		Outcome: &route.Result{Status: 200, Kind: "ok", PromptTokens: ptr(1000), CachedTokens: ptr(cached), PredictedCachedTokens: predicted, TTFTMS: ptr(200.0), E2EMS: ptr(900.0)},
	}
	for _, e := range []string{"r0", "r1"} {
		c := 0.0
		if e == chosen {
			c = float64(predicted)
		}
		r.Candidates = append(r.Candidates, route.PricedEndpoint{Endpoint: e, Signals: []route.Signal{{Name: "in_flight", Value: ptr(1.0)}, {Name: "cached", Value: ptr(c)}}})
	}
	return r
}

func TestRecords(t *testing.T) {
	var good, restarted, wrong, stale []*route.Record
	for i := range 60 {
		e := fmt.Sprint("r", i%2)
		good = append(good, record(i, e, 800, 780, 200))
		cached := 780
		if e == "r1" && i > 20 {
			cached = 0
		}
		restarted = append(restarted, record(i, e, 800, cached, 200))
		wrong = append(wrong, record(i, "r0", 800, 20, 200))
		stale = append(stale, record(i, e, 800, 780, 40_000))
	}
	want(t, routing.Analyse(routing.Input{Records: good}))
	r := routing.Analyse(routing.Input{Records: restarted})
	want(t, r, "restart-believed-warm")
	if r.Findings[0].Object != "r1" {
		t.Errorf("%+v", r.Findings[0])
	}
	want(t, routing.Analyse(routing.Input{Records: wrong}), "index-disagrees")
	want(t, routing.Analyse(routing.Input{Records: stale}), "signals-stale")
	want(t, routing.Analyse(routing.Input{}))
}

func FuzzAnalyse(f *testing.F) {
	f.Add("path,decisions,zero_block_decisions\n/v1/responses,462,462\n")
	f.Add(`{"t":0,"pod":"a","start":100,"ev":"BlockStored","seq":0,"blocks":["h1"]}`)
	f.Add("t_s,endpoint,session\n1,a,s\n2,b,s\n")
	f.Fuzz(func(t *testing.T, text string) {
		tb, err := diagnose.ParseTable(text)
		if err != nil {
			return
		}
		if _, err := json.Marshal(routing.Analyse(routing.Input{Table: tb})); err != nil {
			t.Error(err)
		}
	})
}
