// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/workload"
)

func rankConfig(t *testing.T, kind workload.Kind, rate float64, requests int) (Config, *Traffic) {
	p, _ := engine.Lookup("llama-3.1-8b-rtxpro6000")
	p.BlockTokens = blockTokens
	g, err := workload.NewGenerator(workload.Spec{Kind: kind, Seed: 3, Rate: rate})
	if err != nil {
		t.Fatal(err)
	}
	return Config{Profile: p, Replicas: 3, Ranks: 4, Seed: 3}, NewTraffic(g, requests, blockTokens)
}

// Requests that name the rank that has their conversation find it; where the replica
// goes its own way they find it in one of four, whether the router is told of ranks or
// not. No request is lost on the way, and the same seed gives the same bytes.
func TestRanks(t *testing.T) {
	c, traffic := rankConfig(t, workload.KindChat, 12, 4000)
	n, _ := traffic.Requests()
	ours := Contenders()[0]
	hits := map[RankKind]float64{}
	for kind := RanksPinned; kind <= RanksTotal; kind++ {
		c.RankKind = kind
		r := RunContender(c, ours, traffic)
		hits[kind] = r.HitRatio
		k := r.Ranks
		t.Logf("%v: hit ratio %.3f, predicted %.3f, mean TTFT %.0f ms, p99 %.0f ms, imbalance %.2f, in-flight error %.3f, %+v", kind, r.HitRatio, r.PredictedHit, r.TTFTMean, r.TTFTP99, r.Imbalance, r.InFlightError, *k)
		if r.Requests+r.Failed+r.Abandoned != n || r.Failed > 0 {
			t.Errorf("%v: %d requests went in, %d came out, %d failed", kind, n, r.Requests, r.Failed)
		}
		a, _ := json.Marshal(r)
		if b, _ := json.Marshal(RunContender(c, ours, traffic)); string(a) != string(b) {
			t.Errorf("%v: two runs differ", kind)
		}
		switch {
		case kind == RanksPinned && (k.Honoured != c.Replicas || k.Pinned != n || k.Met != n):
			t.Errorf("pinned: %+v", k)
		case kind == RanksDeaf && (k.Ignored != c.Replicas || k.Pinned == n):
			t.Errorf("deaf: %+v", k)
		case kind == RanksTotal && (k.Pinned > 0 || k.Honoured+k.Ignored+k.Unproven > 0):
			t.Errorf("total: %+v", k)
		}
	}
	for _, kind := range []RankKind{RanksDeaf, RanksTotal} {
		if hits[RanksPinned] < 1.3*hits[kind] {
			t.Errorf("hit ratio %.3f with pins, %.3f where they are %v", hits[RanksPinned], hits[kind], kind)
		}
	}
}

// Replicas of several ranks die and come back like others, under any index and with
// several routers.
func TestRanksThatDie(t *testing.T) {
	c, traffic := rankConfig(t, workload.KindChat, 12, 1500)
	n, _ := traffic.Requests()
	c.Changes = []Change{
		{At: fleet.Time(20e9), Replica: 1, Kind: ChangeDie}, {At: fleet.Time(40e9), Replica: 1, Kind: ChangeStart},
		{At: fleet.Time(50e9), Replica: 0, Kind: ChangeDrain},
	}
	for kind := RanksPinned; kind <= RanksTotal; kind++ {
		for _, index := range []IndexKind{IndexOwn, IndexEvents, IndexLossyEvents} {
			c.RankKind, c.Index, c.Routers, c.Exchange = kind, index, 2, true
			r := RunContender(c, Contenders()[0], traffic)
			t.Logf("%v, %v: hit ratio %.3f, retried %d, imbalance %.2f", kind, index, r.HitRatio, r.Retried, r.Imbalance)
			if r.Requests+r.Failed+r.Abandoned != n || r.Failed > 0 {
				t.Errorf("%v, %v: %d requests went in, %d came out, %d failed", kind, index, n, r.Requests, r.Failed)
			}
		}
	}
}

// One rank is what there was before ranks.
func TestOneRank(t *testing.T) {
	c, traffic := rankConfig(t, workload.KindChat, 12, 500)
	var out [2]string
	for i, ranks := range []int{0, 1} {
		c.Ranks = ranks
		b, _ := json.Marshal(RunContender(c, Contenders()[0], traffic))
		out[i] = string(b)
	}
	if out[0] != out[1] {
		t.Error("the runs differ")
	}
}

// Where ranks cannot be asked for, nothing is held for the replica: the router cannot
// know which of them idles.
func TestRanksAreNotHeldBack(t *testing.T) {
	c, traffic := rankConfig(t, workload.KindRAG, 5, 3000)
	c.RankKind = RanksDeaf
	queue, direct := RunContender(c, Contenders()[0], traffic), RunContender(c, Contenders()[1], traffic)
	t.Logf("with the queue: mean TTFT %.0f ms, %d held; without: %.0f ms; %+v", queue.TTFTMean, queue.Held, direct.TTFTMean, *queue.Ranks)
	if queue.Ranks.Ignored != c.Replicas || queue.TTFTMean > 1.2*direct.TTFTMean {
		t.Errorf("mean TTFT %.0f ms with the queue, %.0f ms without", queue.TTFTMean, direct.TTFTMean)
	}
}

// What pins are worth for a share that can be reused.
func TestWhatIfRanks(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	w, err := AskWhatIf(p, WhatIfAsk{Replicas: 2, Ranks: 3, Shared: 0.7, Requests: 1500, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pinned %+v, deaf %+v", w.Measured, *w.Deaf)
	if w.Ranks != 3 || w.Measured.Aware < 1.5*w.Deaf.Aware || w.Formula != RuleOfThumb(0.7, 6) {
		t.Errorf("%+v, deaf %+v", w, *w.Deaf)
	}
}

// Replicas that tell nothing of their ranks are found to compute several prompts at a
// time, and the router's queue does not leave all but one rank idle. One engine is never
// taken for several, in cells of all families.
func TestRanksThatNobodyTellsOf(t *testing.T) {
	c, traffic := rankConfig(t, workload.KindRAG, 5, 1500)
	c.RankKind = RanksTotal
	all := Contenders()
	queue, direct := RunContender(c, all[0], traffic), RunContender(c, all[1], traffic)
	t.Logf("mean TTFT %.0f ms with the queue, %.0f ms without; found %d times", queue.TTFTMean, direct.TTFTMean, queue.Overlaps)
	if queue.Overlaps == 0 {
		t.Error("nothing was found")
	}
	if queue.TTFTMean > 1.25*direct.TTFTMean {
		t.Errorf("mean TTFT %.0f ms with the queue, %.0f ms without", queue.TTFTMean, direct.TTFTMean)
	}
	for i := range 2 * len(families) {
		cell := NewCell(CellSeed(2, i), 800)
		for _, p := range all[:2] {
			if r := RunContender(cell.Config, p, cell.Traffic(0)); r.Overlaps > 0 {
				t.Errorf("%s under %s: one engine was taken for several, %d times", cell.Name, p.Name, r.Overlaps)
			}
		}
	}
}
