// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
)

// drive plays n requests of a moderate load and returns the mean absolute error of
// the predicted TTFT over the second half, relative to the mean TTFT.
func drive(w *world, n int, every float64) float64 {
	rng := rand.New(rand.NewPCG(11, 12))
	at := w.now
	for k := range n {
		at += fleet.Time(rng.ExpFloat64() * every)
		w.timers = append(w.timers, arrival{at, prompt(16, part{uint64(rng.IntN(4)), 500}, part{uint64(100 + k), 200 + rng.IntN(4000)}), 50 + rng.IntN(200)})
	}
	predicted := map[*fleet.Request]float64{}
	sent, sum, abs := 0, 0.0, 0.0
	w.onSend = func(s Send) { predicted[s.Request] = s.Decision.PredictedTTFTMS }
	w.onFirst = func(r *fleet.Request) {
		if sent++; sent > n/2 {
			got := w.now.Seconds(r.Arrived) * 1e3
			sum += got
			abs += math.Abs(got - predicted[r])
		}
	}
	w.run(fleet.Never)
	return abs / sum
}

// Engines that are much faster or slower than the profile are learned from what is
// observed: predictions become as good as with the right profile, nearly.
func TestLearnSpeed(t *testing.T) {
	truth := testProfile()
	truth.MaxSeqs = 128
	right := newWorld(t, 4, truth, Options{Fixed: true})
	best := drive(right, 1500, 12e7)
	for _, factor := range []float64{1, 0.1, 4, 25} {
		w := newWorld(t, 4, truth, Options{})
		w.d = New(Options{Profile: truth.Faster(1 / factor)}) // believed factor times as slow
		w.observe()
		err := drive(w, 1500, 12e7)
		c := w.d.Totals(w.now).Engine
		t.Logf("believed %v times as slow: error %.2f (right profile %.2f), learned %.2f of prefill, %.2f of decode",
			factor, err, best, c.PTok/truth.PTok, c.Base/truth.Base)
		if err > best*1.35+0.05 {
			t.Errorf("factor %v: TTFT predictions are off by %.2f, %.2f with the right profile", factor, err, best)
		}
		if r := c.PTok / truth.PTok; r < 0.7 || r > 1.6 {
			t.Errorf("factor %v: learned %.2f of the true prefill time", factor, r)
		}
		if r := c.Base / truth.Base; r < 0.7 || r > 1.4 {
			t.Errorf("factor %v: learned %.2f of the true decode time", factor, r)
		}
	}
}

// One replica that is four times as slow is found out and gets less.
func TestLearnSlowReplica(t *testing.T) {
	truth := testProfile()
	truth.MaxSeqs = 128
	w := newWorld(t, 4, truth, Options{})
	w.cores[2] = engine.NewCore(truth.Faster(0.25), engine.CoreOptions{})
	drive(w, 1500, 15e7)
	for _, r := range w.d.Ledger(w.now, nil) {
		t.Logf("%s: slowness %.2f, sent %d", r.Endpoint, r.Slowness, r.Sent)
		slow := r.Endpoint == "r-2"
		if slow && (r.Slowness < 2 || r.Sent > 250) || !slow && (r.Slowness > 1.5 || r.Sent < 300) {
			t.Errorf("%s: slowness %.2f, sent %d", r.Endpoint, r.Slowness, r.Sent)
		}
	}
}

// The length of a token is learned per model, and fills in what a request does not
// tell.
func TestLearnText(t *testing.T) {
	p := newPool(t, Options{})
	rows := []fleet.EndpointState{row("a")}
	rows[0].Models = []string{"m", "n"}
	p.see(rows...)
	ask := func(model string, bytes int) *fleet.Request {
		return &fleet.Request{Model: model, PromptBytes: bytes, Blocks: make([]uint64, bytes/512)}
	}
	for range 200 {
		s, _ := p.ask(ask("m", 6000))
		p.d.End(p.after(1).now, s.Ticket, fleet.Outcome{Kind: fleet.OutcomeOK, PromptTokens: 2000, CachedTokens: -1, OutputTokens: 5}, nil)
	}
	if r := p.d.BytesPerToken("m"); r < 2.95 || r > 3.1 {
		t.Errorf("learned %.2f bytes a token, want 3", r)
	}
	if r := p.d.BytesPerToken("n"); r != defaultBytesPerToken {
		t.Errorf("%.2f bytes a token of a model never seen", r)
	}
	s, _ := p.ask(ask("m", 3000))
	if got := s.Decision.PromptTokens; got < 950 || got > 1050 {
		t.Errorf("estimated %.0f tokens of 3,000 bytes", got)
	}
	if got := s.Decision.BlockTokens; got < 160 || got > 180 {
		t.Errorf("estimated %.0f tokens a block of 512 bytes", got)
	}
}

// Predictions that fail lower the believed capacity and show.
func TestIndexDisagreement(t *testing.T) {
	p := newPool(t, Options{})
	e := row("a")
	e.KVTokens = fleet.Known(100_000, p.now)
	p.see(e)
	for range 40 {
		s, _ := p.ask(prompt(16, part{1, 4000}))
		p.after(1).finish(s, 0)
	}
	l := p.load("a")
	if !l.IndexDisagreement || l.PredictedCached < 100_000 || l.ObservedCached != 0 {
		t.Errorf("%+v", l)
	}
	if most := 100_000 / 16 * 9 / 10; l.CacheCap >= most {
		t.Errorf("believed capacity %d blocks, want less than %d", l.CacheCap, most)
	}
}
