// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"slices"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

const (
	// meanRate is the weight of a new request in a moving mean; early ones count
	// more, so that a fresh router does not hang on its prior.
	meanRate = 0.02
	// rhoSeconds is the memory of the offered load.
	rhoSeconds = 20
	// defaultBytesPerToken is the prior for English text under current tokenizers;
	// it counts as priorTokens tokens seen.
	defaultBytesPerToken = 4.0
	priorTokens          = 2000
	// defaultOutput is the prior mean length of an answer in tokens.
	defaultOutput = 200.0
	// scaleMemory is what is kept of the evidence on speed at each observation,
	// scalePrior the seconds that the profile itself counts for.
	// A profile that was named counts for more than one that stands in.
	scaleMemory = 0.99
	scalePrior  = 0.5
	namedPrior  = 20
	// A profile counts as right where sureLeast observations agree with it within a
	// factor of sureRatio, and what was learned after sureAfter of them.
	sureRatio = 2
	sureLeast = 8
	sureAfter = 100
	// stalledMost is the share of a stream's time that prefills of others may take
	// up for its decode steps to be told from them.
	stalledMost = 0.5
	// slowMemory and slowPrior are the same for the speed of one endpoint against
	// its pool; within [fastest; slowest] it counts as equal.
	slowMemory = 0.9
	slowPrior  = 1.0
	fastest    = 0.7
	slowest    = 1.4
	// slowHalfLife is how long evidence against an endpoint lasts, seconds: what
	// got slow gets a trial again even where nothing is sent to it any more.
	slowHalfLife = 60
	// middleEvery is how many observations apart a large pool looks for its median.
	middleEvery = 32
)

// mean is a moving mean with a prior.
type mean struct {
	v float64
	n int
}

func (m *mean) add(v float64) {
	m.n++
	m.v += (v - m.v) * max(meanRate, 1/float64(m.n+1))
}

// scale is a ratio of observed to expected seconds, by decayed sums.
type scale struct {
	observed, expected float64
	n                  int // observations
}

func (s *scale) add(observed, expected, memory float64) {
	s.observed = s.observed*memory + observed
	s.expected = s.expected*memory + expected
	s.n++
}

// ratio is bounded: beyond a factor of 64 something else than speed is wrong.
func (s *scale) ratio() float64 {
	return min(64, max(1.0/64, s.observed/s.expected))
}

// textSize is what is known of a model's prompts.
type textSize struct{ bytes, tokens float64 }

// learned are the moving averages of a pool.
type learned struct {
	fixed bool
	start route.Coef // the profile's
	coef  route.Coef // the same, corrected

	prefill, decode scale
	// missed compares the prefill work that requests turned out to need, by the
	// engine's count of cached tokens, with what was expected of them.
	missed scale

	ttft, e2e, output, hit mean // seconds, seconds, tokens, share
	gaps                   gaps
	rho                    float64
	rhoAt                  fleet.Time
	blockTokens            float64
	adapterMS              float64
	adapters               map[string]decayed // requests, by adapter
	cold                   decayed            // loads of adapters
	sizes                  map[string]*textSize
}

func (l *learned) init(o *Options) {
	p := &o.Profile
	l.fixed = o.Fixed
	l.start = route.Coef{
		Base: p.Base, PTok: p.PTok, PAttn: p.PAttn, DSeq: p.DSeq, DCtx: p.DCtx,
		Chunk: float64(max(1, p.ChunkTokens)),
	}
	l.coef = l.start
	prior := scalePrior
	if p.Name != engine.DefaultProfile {
		prior = namedPrior
	}
	even := scale{observed: prior, expected: prior}
	l.prefill, l.decode, l.missed = even, even, even
	l.output.v = defaultOutput
	l.ttft.v = 0.2
	l.e2e.v = 0.2 + defaultOutput*p.Base
	l.adapterMS = p.LoRALoad * 1e3
	l.sizes = map[string]*textSize{}
}

// size returns the prompt length and the tokens in a block of a request, from the
// request where it tells and from the learned ratio where it does not.
func (l *learned) size(r *fleet.Request, blockBytes int) (prompt, blockTokens float64) {
	prompt, blockTokens = float64(r.PromptTokens), r.BlockTokens
	if prompt > 0 && blockTokens > 0 {
		return prompt, blockTokens
	}
	ratio := l.bytesPerToken(r.Model)
	if prompt <= 0 {
		prompt = max(1, float64(r.PromptBytes)/ratio)
	}
	if blockTokens <= 0 {
		blockTokens = float64(blockBytes) / ratio
		if r.PromptBytes > 0 {
			blockTokens = float64(blockBytes) * prompt / float64(r.PromptBytes)
		}
	}
	return prompt, blockTokens
}

func (l *learned) bytesPerToken(model string) float64 {
	if s := l.sizes[model]; s != nil {
		return s.bytes / s.tokens
	}
	return defaultBytesPerToken
}

// text learns from a prompt whose tokens the engine counted. Long prompts weigh
// more, which drowns the constant that a chat template adds.
func (l *learned) text(model string, bytes, tokens int) {
	if bytes <= 0 || tokens <= 0 {
		return
	}
	s := l.sizes[model]
	if s == nil {
		s = &textSize{defaultBytesPerToken * priorTokens, priorTokens}
		l.sizes[model] = s
	}
	// What one request says is bounded: an image's tokens have no text.
	b := min(16, max(0.5, float64(bytes)/float64(tokens))) * float64(tokens)
	const memory = 0.995
	s.bytes, s.tokens = s.bytes*memory+b, s.tokens*memory+float64(tokens)
}

// BytesPerToken returns the learned length of a token of the model's prompts, in
// bytes of hashed text.
func (d *Dispatch) BytesPerToken(model string) float64 { return d.learned.bytesPerToken(model) }

// offered returns the offered work per replica at now, in seconds a second.
func (l *learned) offered(now fleet.Time) float64 {
	return l.rho * math.Exp(-now.Seconds(l.rhoAt)/rhoSeconds)
}

// offer counts work that arrived, in seconds, over n replicas.
func (l *learned) offer(now fleet.Time, work float64, n int) {
	l.rho = l.offered(now) + work/rhoSeconds/float64(max(1, n))
	l.rhoAt = now
}

// context returns the averages that a price depends on, for a request that asks
// for at most maxTokens tokens (0: no limit).
func (l *learned) context(now fleet.Time, maxTokens int) route.Context {
	rho := l.offered(now)
	c := route.Context{
		Pressure:   min(32, rho/max(0.03, 1-rho)),
		MeanOutput: l.output.v, OwnOutput: l.output.v,
		Exchange:  min(1, (l.ttft.v+0.02)/max(1e-3, l.e2e.v)),
		HitShare:  l.hit.v,
		AdapterMS: l.adapterMS,
	}
	if maxTokens > 0 {
		c.OwnOutput = min(c.OwnOutput, float64(maxTokens))
	}
	return c
}

// sure reports whether the price of prefill is known well enough to spend some on
// copies: it is about what the profile says, or was observed often. To learn it takes
// prompts that wait for one another, which copies avoid.
func (l *learned) sure() bool {
	r, n := l.prefill.ratio(), l.prefill.n
	return l.fixed || n >= sureAfter || n >= sureLeast && r > 1/sureRatio && r < sureRatio
}

// rescale makes the coefficients the profile's times the learned corrections.
func (l *learned) rescale() {
	p, q := l.prefill.ratio(), l.decode.ratio()
	l.coef.PTok, l.coef.PAttn = l.start.PTok*p, l.start.PAttn*p
	l.coef.Base, l.coef.DSeq, l.coef.DCtx = l.start.Base*q, l.start.DSeq*q, l.start.DCtx*q
}

// speed gathers evidence on how fast an endpoint is. A busy period runs from a
// prompt that met none without a first token, until there is none again or a
// second passed; the work that got first tokens in it is held against its length.
type speed struct {
	since    fleet.Time
	work     float64 // seconds of prefill expected
	tokens   float64 // of it
	instants float64 // distinct moments of first tokens
	last     fleet.Time
	dirty    bool // something was in it whose first token does not show

	done  float64    // seconds of prefill work that got first tokens, since the start
	steps float64    // decode steps that the profile would have made, since the start
	paced fleet.Time // until when steps is counted

	slow   scale
	slowAt fleet.Time // when slow was aged last
}

func (p *speed) begin(now fleet.Time) {
	p.since, p.work, p.tokens, p.instants, p.dirty = now, 0, 0, 0, false
}

// sawFirst learns from a first token of entry e at slot i.
func (d *Dispatch) sawFirst(i int32, e *entry) {
	s, p := &d.slots[i], &d.aux[i].speed
	p.done += e.work
	if d.learned.fixed {
		return
	}
	p.work += e.work
	p.tokens += e.uncached
	if p.instants == 0 || p.last != d.now {
		p.instants++
		p.last = d.now
	}
	length := d.now.Seconds(p.since)
	if s.Unstarted > 0 && length < 1 {
		return
	}
	l := &d.learned
	steps := max(math.Ceil(p.tokens/l.coef.Chunk), p.instants)
	if s.Streams > 1 {
		steps += 0.5 // the rest of the step that was running
	}
	step := l.coef.Step(float64(s.Streams), s.CtxTokens) * s.Speed
	rest := length - steps*step
	// Where decode steps make up most of the time, prefill cannot be told from it.
	if !p.dirty && rest > 0 && p.work > 0.5*steps*step {
		work := p.work * l.missed.ratio()
		l.prefill.add(rest/s.Speed, work/(l.prefill.ratio()*s.Speed), scaleMemory)
		l.rescale()
		d.sawSpeed(i, rest, work)
	}
	p.begin(d.now)
}

// sawCached learns from the engine's count of cached tokens of entry e how much
// prefill work requests need compared with what is expected of them: an index that
// knows too little, or too much, must not pass for an engine that is fast or slow.
func (d *Dispatch) sawCached(e *entry, prompt, cached int) {
	if d.learned.fixed || e.uncached <= 0 {
		return
	}
	c := &d.learned.start
	n := float64(max(1, prompt-cached))
	d.learned.missed.add(c.Prefill(n, float64(prompt)), c.Prefill(e.uncached, e.prompt), scaleMemory)
}

// pace counts the decode steps at a slot until now. It comes before each change of
// the streams there.
func (d *Dispatch) pace(i int32) {
	s, p := &d.slots[i], &d.aux[i].speed
	if p.paced == d.now {
		return
	}
	if s.Streams > 0 {
		p.steps += d.now.Seconds(p.paced) / d.learned.start.Step(float64(s.Streams), s.CtxTokens)
	}
	p.paced = d.now
}

// sawEnd learns from a stream of n output tokens that ended at slot i.
func (d *Dispatch) sawEnd(i int32, e *entry, n float64) {
	if d.learned.fixed || n < 8 || !e.stream {
		return
	}
	d.pace(i)
	s, p, l := &d.slots[i], &d.aux[i].speed, &d.learned
	length := d.now.Seconds(e.firstAt)
	stalled := p.done - e.doneAt // prefills of others in between
	steps := p.steps - e.stepsAt
	if length <= 0 || steps <= 0 || stalled > stalledMost*length {
		return
	}
	expected := (n - 1) * length / steps
	l.decode.add((length-stalled)/s.Speed, expected, scaleMemory)
	l.rescale()
	d.sawSpeed(i, length-stalled, expected*l.decode.ratio()*s.Speed)
}

// sawSpeed compares an endpoint with its pool: seconds observed against seconds
// expected of it at its present speed.
func (d *Dispatch) sawSpeed(i int32, observed, expected float64) {
	p := &d.aux[i].speed
	if p.slow.expected == 0 {
		p.slow = scale{observed: slowPrior, expected: slowPrior}
	}
	p.slow.add(observed, expected/d.slots[i].Speed, slowMemory)
	if d.samples++; d.samples%middleEvery == 0 || len(d.slots) <= middleEvery {
		d.findMiddle()
	}
	d.setSpeed(i)
}

// findMiddle finds the speed against which the others are slow: the median over
// the endpoints with evidence. An error that all share is the profile's, and is
// learned there.
func (d *Dispatch) findMiddle() {
	d.ratios = d.ratios[:0]
	for i := range d.aux {
		if p := &d.aux[i].speed; d.aux[i].used && p.slow.expected > 0 {
			d.ratios = append(d.ratios, p.slow.ratio())
		}
	}
	d.middle = 1
	if n := len(d.ratios); n > 0 {
		slices.Sort(d.ratios)
		d.middle = d.ratios[(n-1)/2]
	}
}

// forgive ages the evidence on an endpoint's speed.
func (p *speed) forgive(now fleet.Time) {
	keep := math.Exp2(-now.Seconds(p.slowAt) / slowHalfLife)
	p.slowAt = now
	if p.slow.expected > 0 {
		p.slow.observed = slowPrior + (p.slow.observed-slowPrior)*keep
		p.slow.expected = slowPrior + (p.slow.expected-slowPrior)*keep
	}
}

// setSpeed derives the slot's speed from what was observed and from slow probes: an
// endpoint whose probes time out is alive but busy, and counts as half as fast.
func (d *Dispatch) setSpeed(i int32) {
	s, p := &d.slots[i], &d.aux[i].speed
	v := 1.0
	if p.slow.expected > 0 {
		if r := p.slow.ratio() / d.middle; r < fastest || r > slowest {
			v = min(16, max(1.0/4, r))
		}
	}
	if s.State != nil && s.State.Slow {
		v *= 2
	}
	s.Speed = v
}
