// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"math"
	"sync"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/scale"
)

// Offer is work that arrived at a moment, in seconds of replica time.
type Offer struct {
	At   fleet.Time `json:"at"`
	Work float64    `json:"work"`
}

// demand gathers what requests bring and what becomes of them between two
// evaluations. It is the Watcher of a scaled pool and safe for concurrent use.
type demand struct {
	slo  engine.SLO
	kick chan struct{} // told when a request finds no replica

	mu      sync.Mutex
	profile engine.Profile // with the coefficients that the router has learned
	offers  []Offer
	second  fleet.Time // of the last offers
	shape   engine.Shape
	seen    int
	inputAt fleet.Time          // of the last arrival
	cold    map[uint64]struct{} // blocks of requests that found no replica

	ok, missed uint64 // by the objectives; cold ones excluded
	coldEnded  uint64 // that found no replica, and their misses
	coldMissed uint64
	ttft, itl  window
	held       window
}

// priorShape is a request before any was seen: a short chat.
var priorShape = engine.Shape{Prompt: 1000, Output: 200}

const (
	// shapeRate is the weight of a request in the mean shape; the prior counts for
	// shapePrior of them.
	shapeRate  = 0.01
	shapePrior = 20
	// leastSamples is how many readings make a mean that may warn.
	leastSamples = 5
)

// Arrived implements Watcher.
func (d *demand) Arrived(now fleet.Time, r *fleet.Request, cached int, cold bool) {
	d.mu.Lock()
	k := math.Max(shapeRate, 1/float64(d.seen+shapePrior))
	d.seen++
	prompt := math.Max(1, float64(r.PromptTokens))
	if cold {
		cached = d.shared(r.Blocks, r.BlockTokens)
	} else if d.cold != nil {
		d.cold = nil
	}
	net := math.Min(float64(cached), prompt)
	d.shape.Prompt += k * (prompt - d.shape.Prompt)
	d.shape.Cached += k * (net - d.shape.Cached)
	out := d.shape.Output
	if r.MaxTokens > 0 {
		out = math.Min(out, float64(r.MaxTokens))
	}
	d.offer(now, d.profile.WorkSeconds(engine.Shape{Prompt: prompt, Cached: net, Output: out}))
	d.inputAt = now
	d.mu.Unlock()
	if cold {
		d.wake()
	}
}

// wake asks for an evaluation out of turn.
func (d *demand) wake() {
	select {
	case d.kick <- struct{}{}:
	default:
	}
}

// ArrivedElsewhere implements elsewhere. How long the answer will be is not told, so it
// counts as one of ours.
func (d *demand) ArrivedElsewhere(now fleet.Time, prompt, uncached float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	prompt = math.Max(1, prompt)
	net := math.Min(math.Max(0, prompt-uncached), prompt)
	d.offer(now, d.profile.WorkSeconds(engine.Shape{Prompt: prompt, Cached: net, Output: d.shape.Output}))
	d.inputAt = now
}

// HeldElsewhere implements elsewhere: the pool wakes for it as for one of ours.
func (d *demand) HeldElsewhere(now fleet.Time, prompt, blockTokens float64, blocks []uint64) {
	d.mu.Lock()
	prompt = math.Max(1, prompt)
	net := math.Min(float64(d.shared(blocks, blockTokens)), prompt)
	d.offer(now, d.profile.WorkSeconds(engine.Shape{Prompt: prompt, Cached: net, Output: d.shape.Output}))
	d.inputAt = now
	d.mu.Unlock()
	d.wake()
}

// coldBlocks bounds how many blocks of held requests are remembered.
const coldBlocks = 1 << 16

// shared is how many prompt tokens of a request that is held came before it in others
// that are: each replica will compute them once, and not for each.
func (d *demand) shared(blocks []uint64, blockTokens float64) int {
	if d.cold == nil {
		d.cold = map[uint64]struct{}{}
	}
	n := 0
	for n < len(blocks) {
		if _, ok := d.cold[blocks[n]]; !ok {
			break
		}
		n++
	}
	for _, b := range blocks[n:] {
		if len(d.cold) >= coldBlocks {
			break
		}
		d.cold[b] = struct{}{}
	}
	return int(float64(n) * blockTokens)
}

// offer adds work, at most two entries a second: the scaler sums by the second, and
// all it needs beside is whether there was one request or several.
func (d *demand) offer(now fleet.Time, work float64) {
	n := len(d.offers)
	if n >= 2 && now.Sub(d.second) < 1e9 && d.offers[n-2].At >= d.second {
		d.offers[n-1].Work += work
		return
	}
	if n == 0 || now.Sub(d.second) >= 1e9 {
		d.second = now
	}
	d.offers = append(d.offers, Offer{now, work})
}

// Ended implements Watcher.
func (d *demand) Ended(e Ending) {
	miss, counts := d.judge(&e)
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.Output > 0 {
		d.shape.Output += math.Max(shapeRate, 1/float64(d.seen+shapePrior)) * (float64(e.Output) - d.shape.Output)
	}
	if e.Cold {
		if counts {
			d.coldEnded++
		}
		if miss {
			d.coldMissed++
		}
		return
	}
	switch {
	case miss:
		d.missed++
	case counts:
		d.ok++
	}
	if e.First != 0 {
		d.ttft.add(e.End, e.First.Seconds(e.Arrived))
		if e.Output > 1 {
			d.itl.add(e.End, e.End.Seconds(e.First)/float64(e.Output-1))
		}
	}
	d.held.add(e.End, e.Held.Seconds())
}

// judge reports whether a request missed its objectives, and whether it counts at
// all: what the client did itself is no evidence.
func (d *demand) judge(e *Ending) (miss, counts bool) {
	first := e.First
	switch e.Kind {
	case fleet.OutcomeClientError:
		return false, false
	case fleet.OutcomeClientGone:
		late := first == 0 && e.End.Seconds(e.Arrived) > d.slo.TTFT
		return late, late
	case fleet.OutcomeOK:
	default:
		return true, true
	}
	n := float64(max(1, e.Output))
	if first == 0 { // an answer as a whole
		return e.End.Seconds(e.Arrived) > d.slo.TTFT+n*d.slo.ITL, true
	}
	if first.Seconds(e.Arrived) > d.slo.TTFT {
		return true, true
	}
	return n > 1 && e.End.Seconds(first)/(n-1) > d.slo.ITL, true
}

// take hands over what was offered since the last call.
func (d *demand) take() []Offer {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.offers
	d.offers, d.second = nil, 0
	return out
}

// counts fills in the part of the gateway's word that requests give.
func (d *demand) counts(now fleet.Time, g *scale.Gateway) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g.OK, g.Missed = d.ok, d.missed
	g.TTFT, g.ITL = d.ttft.value(now), d.itl.value(now)
	g.QueueTime = d.held.value(now)
}

// learn takes over what the router has learned of its engines, and returns the mean
// request. A coefficient counts within a factor of four of the profile's: beyond
// that something else than the engine is slow.
func (d *demand) learn(base engine.Profile, c route.Coef, kvTokens, maxSeqs float64) (engine.Profile, engine.Shape) {
	bound := func(v, from float64) float64 {
		if !(v > 0) {
			return from
		}
		return math.Min(4*from, math.Max(from/4, v))
	}
	p := base
	p.Base, p.PTok, p.PAttn = bound(c.Base, base.Base), bound(c.PTok, base.PTok), bound(c.PAttn, base.PAttn)
	p.DSeq, p.DCtx = bound(c.DSeq, base.DSeq), bound(c.DCtx, base.DCtx)
	if kvTokens > 0 {
		p.KVTokens = int(kvTokens)
	}
	if maxSeqs > 0 {
		p.MaxSeqs = int(maxSeqs)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.profile = p
	return p, d.shape
}

// window is a mean over the last minute, in six buckets of ten seconds.
type window struct {
	sum, n [6]float64
	slot   int64
	at     fleet.Time
}

const windowStep = 10e9

func (w *window) roll(now fleet.Time) {
	to := int64(now) / windowStep
	if to-w.slot > int64(len(w.n)) {
		w.slot = to - int64(len(w.n))
	}
	for w.slot < to {
		w.slot++
		i := w.slot % int64(len(w.n))
		w.sum[i], w.n[i] = 0, 0
	}
}

func (w *window) add(now fleet.Time, v float64) {
	w.roll(now)
	i := int64(now) / windowStep % int64(len(w.n))
	w.sum[i] += v
	w.n[i]++
	w.at = max(w.at, now)
}

// value is the mean, unknown while there are too few readings.
func (w *window) value(now fleet.Time) fleet.Value {
	w.roll(now)
	var s, n float64
	for i := range w.n {
		s += w.sum[i]
		n += w.n[i]
	}
	if n < leastSamples {
		return fleet.Value{}
	}
	return fleet.Known(s/n, w.at)
}

// tableOf is the capacity in seconds of replica time a second of 0 to n replicas. It
// reports false where a lone request of the mean shape already misses the objective;
// the table then says what the engine does at half of its speed.
func tableOf(p *engine.Profile, s engine.Shape, slo engine.SLO, n int) ([]float64, bool) {
	work := p.WorkSeconds(s)
	out := make([]float64, n+1)
	fine := true
	for i := 1; i <= n; i++ {
		c := p.Capacity(i, s, slo) * work
		if i == 1 && c <= 0 {
			fine = false
		}
		if !fine {
			c = 0.5 * float64(i)
		}
		out[i] = math.Max(c, out[i-1]+1e-6) // it rises, whatever rounding does
	}
	return out, fine
}
