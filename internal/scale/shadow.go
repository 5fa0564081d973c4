// SPDX-License-Identifier: Apache-2.0

package scale

import "math"

// basis is what a family of shadow rules looks at: a held level, the same one
// period ago, or a forecast. It yields the demand that the fleet is sized for.
type basis struct {
	window int // index into levelWindows; -1 for a forecast
	hold   int // index into holdSpans
	period int // s; 0 none
	span   int // index into trendSpans; used where window is -1
	want   float64
	moved  bool    // want is not what it was a second ago
	stale  bool    // the capacity changed: recompute in any case
	keep   extreme // of the forecast over its hold, or of the season ahead
	next   int     // second of the season that has not been read
}

// forecastHold is how long a forecast is held, in seconds, so that a single low
// point does not send replicas away.
const forecastHold = 120

// shadow is one rule that is played beside the fleet: replicas for the demand times
// (1 + margin), never under floor. It goes up at once and down as the fleet does.
type shadow struct {
	basis         int
	margin        float64
	floor         float64 // replicas
	lower, higher int     // the same rule with the next floor below and above; -1 none
	warm          bool    // may rule before the traffic is known

	raw   float64 // replicas for the demand of this second
	low   float64 // replicas to fall to: raw, with hysteresis
	last  float64 // replicas wanted
	below int32   // second since which fewer would do; 0 none
	upAt  int32   // second of the last increase
	dir   int8    // of the last change
	downs downRing
	least []stand // smallest counts of the last lead: what is ready
	head  int
	queue float64 // work held, units of replica time

	cost, miss           float64 // remembered replica-seconds and missed work
	blockCost, blockMiss float64 // of the minute that runs
}

// downRing remembers the seconds at which the last phases of going down began.
type downRing struct {
	at [8]int32
	n  uint8
}

// may reports whether another phase may begin at second t where at most limit may
// begin in an hour, and notes it if so. A limit of 0 bounds nothing.
func (d *downRing) may(t int32, limit int) bool {
	if limit <= 0 || limit > len(d.at) {
		return true
	}
	if d.n >= uint8(limit) {
		if oldest := d.at[0]; oldest > t-3600 {
			return false
		}
		copy(d.at[:], d.at[1:limit])
		d.n = uint8(limit - 1)
	}
	d.at[d.n] = t
	d.n++
	return true
}

// grid lays out the rules that are played.
func grid(t *Tuning) ([]basis, []shadow) {
	var bs []basis
	var sh []shadow
	add := func(b basis, floors bool) {
		i := len(bs)
		bs = append(bs, b)
		known := b.window >= 0 && b.period == 0 && holdSpans[b.hold] >= t.WarmHold
		for _, m := range t.Margins {
			sh = append(sh, shadow{basis: i, margin: m, lower: -1, higher: -1, warm: known && m >= t.WarmMargin})
		}
		if !floors {
			return
		}
		step := len(t.FloorMargins)
		for k, f := range t.Floors {
			for _, m := range t.FloorMargins {
				x := shadow{basis: i, margin: m, floor: f, lower: -1, higher: -1, warm: known && m >= t.WarmMargin}
				if at := len(sh); k > 0 {
					x.lower = at - step
					sh[at-step].higher = at
				}
				sh = append(sh, x)
			}
		}
	}
	for w := range levelWindows {
		for h := range holdSpans {
			add(basis{window: w, hold: h}, h < 2 && w != shortWindow)
		}
	}
	for _, p := range t.Periods {
		for w := range levelWindows {
			add(basis{window: w, period: p}, w != shortWindow)
		}
	}
	if t.Forecast {
		for s := range trendSpans {
			add(basis{window: -1, span: s}, false)
		}
	}
	return bs, sh
}

// demand is what basis b says at the last second of l, with lead seconds to go
// until a replica that is started is ready.
func (b *basis) demand(l *levels, lead int) float64 {
	t := l.n - 1
	if b.window < 0 {
		now, slope := l.line.fit(trendSpans[b.span])
		v := math.Max(now, now+slope*float64(lead+trendStep))
		return b.keep.push(t, math.Max(0, v), forecastHold)
	}
	v := l.held[b.window][b.hold]
	if b.period > 0 {
		v = math.Max(v, b.season(l, t, lead))
	}
	return v
}

// season is the highest level one period ago from a minute before this second of
// it until pad seconds after what was a lead ahead: a replica that is asked for now
// is ready then, and has to stay until its time has come.
func (b *basis) season(l *levels, t, lead int) float64 {
	pad := 60
	if b.period > 40000 {
		pad = 600
	}
	to := t - b.period + lead + pad
	if t < b.period {
		b.next = max(0, to+1)
		return 0
	}
	top := 0.0
	for ; b.next <= to; b.next++ {
		top = b.keep.push(b.next, l.at(b.window, b.next), lead+pad+60)
	}
	if b.keep.head < len(b.keep.v) {
		top = b.keep.v[b.keep.head]
	}
	return top
}

// play moves every shadow one second on: u units of work arrive, and what was asked
// for a lead ago and not taken back is ready.
func (s *Scaler) play(u float64) {
	t := int32(s.levels.n - 1)
	for i := range s.bases {
		b := &s.bases[i]
		if b.window < 0 && t%trendStep != 0 && t >= 10 {
			b.moved = b.stale
		} else {
			v := b.demand(&s.levels, int(s.lead))
			b.moved = v != b.want || b.stale
			b.want = v
		}
		b.stale = false
	}
	k := pace{t: t, rest: int32(s.upRest()), delay: int32(s.downDelay()), phases: s.policy.downPhases(), lead: s.lead}
	speed := s.tuning.Speed * s.table.knee()
	counts := t > s.lead // before that nothing that was asked for can be ready
	for i := range s.shadows {
		x := &s.shadows[i]
		if b := &s.bases[x.basis]; b.moved {
			v := b.want * (1 + x.margin)
			x.raw = math.Max(x.floor, s.table.size(v))
			x.low = math.Max(x.floor, s.table.size(v*(1+s.tuning.Hysteresis)))
		}
		want, turned := x.move(&k)
		rate := speed * x.ready(t, want, k.lead)
		var miss float64
		x.queue, miss = fluid(x.queue, u, rate, s.tuning.Slack)
		if counts {
			x.blockMiss += miss
			x.blockCost += want
			if turned {
				x.blockCost += s.tuning.ReversalPrice * want
			}
		}
	}
}

// fluid moves a queue of work one second on: u arrives, rate is worked off, and what
// would have to wait for more than slack seconds is missed.
func fluid(queue, u, rate, slack float64) (left, missed float64) {
	q, most := queue+u-rate, slack*rate
	switch {
	case q <= 0:
		return 0, 0
	case q > most:
		return most, q - most
	}
	return q, 0
}

// pace is how fast a fleet may go down.
type pace struct {
	t, rest, delay, lead int32
	phases               int
}

// move brings the shadow's fleet to what its rule wants, as the real one would be:
// up at once, down when fewer would do for a while, not soon after going up, and
// not too often. turned says that the direction changed.
func (x *shadow) move(k *pace) (want float64, turned bool) {
	want = x.raw
	switch {
	case want < x.last:
		if want = math.Min(x.last, x.low); want == x.last {
			x.below = 0
			return want, false
		}
		if x.below == 0 {
			x.below = k.t
		}
		if k.t-x.below < k.delay || k.t-x.upAt < k.rest || x.dir >= 0 && !x.downs.may(k.t, k.phases) {
			return x.last, false
		}
		turned = x.dir > 0
		x.dir = -1
	case want > x.last:
		turned = x.dir < 0
		x.dir, x.upAt = 1, k.t
	}
	x.below, x.last = 0, want
	return want, turned
}

// stand is a number of replicas and the last second at which it was wanted.
type stand struct {
	n  float64
	at int32
}

// ready is the least number wanted in the last lead seconds: what was asked for
// before that and not taken back.
func (x *shadow) ready(t int32, want float64, lead int32) float64 {
	for len(x.least) > x.head && x.least[len(x.least)-1].n > want {
		x.least = x.least[:len(x.least)-1]
	}
	if k := len(x.least); k > x.head && x.least[k-1].n == want {
		x.least[k-1].at = t
	} else {
		x.least = append(x.least, stand{want, t})
	}
	for x.least[x.head].at <= t-lead {
		x.head++
	}
	if x.head > 32 {
		x.least = x.least[:copy(x.least, x.least[x.head:])]
		x.head = 0
	}
	return x.least[x.head].n
}

// downDelay is how long fewer replicas must do before the fleet goes down, and
// upRest how long it rests after going up, in seconds. A replica that starts within
// seconds is as soon back as it is gone, so that both shrink with its start.
func (s *Scaler) downDelay() float64 {
	return math.Max(math.Min(s.tuning.DownDelay, 15*s.start.p50), 0.25*s.start.p50)
}

func (s *Scaler) upRest() float64 {
	return math.Max(math.Min(s.tuning.UpRest, 30*s.start.p50), s.start.p50)
}
