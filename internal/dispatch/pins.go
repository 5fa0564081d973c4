// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/penstock-project/penstock/internal/fleet"
)

// PinVerdict says whether an engine serves requests at the rank that they name.
type PinVerdict uint8

// Verdicts on pins.
const (
	PinsUnproven PinVerdict = iota // too little was seen to tell
	PinsHonoured
	PinsIgnored // the endpoint is one candidate until its process is another
)

var pinVerdicts = [...]string{"unproven", "honoured", "ignored"}

func (v PinVerdict) String() string {
	if int(v) < len(pinVerdicts) {
		return pinVerdicts[v]
	}
	return "unknown"
}

// PinState is what is known of the pins of one endpoint: of Checked requests that named
// a rank, Met were counted there by the engine, and Chance would be there if it spread
// them evenly, whatever they name. The numbers are those of the last verdict, or since the start where
// there was none.
type PinState struct {
	Verdict              PinVerdict
	Checked, Met, Chance float64
}

const (
	// pinPower is how many requests must be able to tell honoured pins from ignored ones:
	// those checked, less those that an engine which spreads its load evenly would have
	// at their rank anyhow. No other spread that is even in the mean has more of them.
	pinPower = 16
	// Of that, the share met where pins count as honoured and as ignored: the ends of
	// requests fall between two looks now and then.
	pinHonoured = 0.7
	pinIgnored  = 0.3
	// pinGross is the share of requests counted elsewhere that is proof by itself,
	// however evenly our own were spread.
	pinGross = 0.25
	// pinMost is how many requests are looked at before the evidence is thrown away: a
	// crowd of others hides our own.
	pinMost = 4096
	// pinEnds is how many ends are kept to count back to the moment of a scrape.
	pinEnds = 512
)

// pinCheck compares the requests that ended at each rank by our own account with those
// that the engine counts there, from scrape to scrape.
type pinCheck struct {
	verdict PinVerdict
	last    PinState // of the last verdict
	now     PinState // since
	at      fleet.Time
	ended   []uint64 // by rank, since the start
	ends    [pinEnds]pinEnd
	n       int // ends so far
	ours    []float64
	told    []float64 // at the last scrape; negative: unknown
	o, c    []float64 // scratch
}

type pinEnd struct {
	at   fleet.Time
	rank int32
}

func (p *pinCheck) init(ranks int) {
	p.ended = make([]uint64, ranks)
	p.ours, p.told = make([]float64, ranks), make([]float64, ranks)
	p.o, p.c = make([]float64, ranks), make([]float64, ranks)
	p.reset()
}

// reset forgets what was seen: another process answers.
func (p *pinCheck) reset() {
	p.verdict, p.now, p.last, p.at = PinsUnproven, PinState{}, PinState{}, 0
	for r := range p.told {
		p.told[r] = -1
	}
}

// end notes that a request ended at a rank and was answered there.
func (p *pinCheck) end(now fleet.Time, rank int32) {
	p.ended[rank]++
	p.ends[p.n%pinEnds] = pinEnd{now, rank}
	p.n++
}

// asksNone says that a proxy took a request, which names no rank, elsewhere by itself.
const asksNone = -1

// shows reports whether the end of a request tells whether pins are honoured: it names
// its rank, and something was seen of its answer. Where a proxy shows nothing, the
// moment of the end is a guess, and an engine counts at another one.
func shows(e *entry, o *fleet.Outcome) bool {
	return e.asks != asksNone && (o.PromptTokens >= 0 || o.OutputTokens >= 0)
}

// endedBy fills in how many requests had ended at each rank at a moment, and reports
// whether that is still known.
func (p *pinCheck) endedBy(t fleet.Time, out []float64) bool {
	for r := range out {
		out[r] = float64(p.ended[r])
	}
	for k := 1; k <= min(p.n, pinEnds); k++ {
		e := &p.ends[(p.n-k)%pinEnds]
		if e.at <= t {
			return true
		}
		out[e.rank]--
	}
	return p.n <= pinEnds
}

// scraped takes in what a new scrape says of the ranks.
func (p *pinCheck) scraped(e *fleet.EndpointState) {
	if e.ScrapedAt == 0 || e.ScrapedAt == p.at || p.verdict == PinsIgnored {
		return
	}
	p.at = e.ScrapedAt
	known := p.endedBy(e.ScrapedAt, p.o)
	clear(p.c)
	for i := range e.Loads {
		l := &e.Loads[i]
		if l.Rank < 0 || l.Rank >= len(p.c) || !l.Finished.OK() {
			known = false
			break
		}
		p.c[l.Rank] += l.Finished.V
	}
	for r := range p.o {
		o, c := p.o[r], p.c[r]
		p.o[r], p.c[r] = o-p.ours[r], c-p.told[r]
		if p.told[r] < 0 || p.c[r] < 0 { // nothing before it, or it counts anew
			p.o[r], p.c[r] = -1, 0
		}
		p.ours[r], p.told[r] = o, c
		if !known {
			p.told[r] = -1
		}
	}
	if known {
		p.add()
	}
}

// add adds the requests between two scrapes to the evidence.
func (p *pinCheck) add() {
	total, n := 0.0, 0.0
	for r, o := range p.o {
		if o < 0 {
			return
		}
		n, total = n+o, total+p.c[r]
	}
	if n == 0 {
		return
	}
	even := total / float64(len(p.o))
	chance := 0.0
	for r, o := range p.o {
		p.now.Met += min(o, p.c[r])
		chance += min(o, even)
	}
	p.now.Checked += n
	p.now.Chance += chance
	missed, power := p.now.Checked-p.now.Met, p.now.Checked-p.now.Chance
	switch {
	case power >= pinPower && missed <= (1-pinHonoured)*power:
		p.verdict = PinsHonoured
	case power >= pinPower && missed >= (1-pinIgnored)*power, missed >= pinPower && missed >= pinGross*p.now.Checked:
		p.verdict = PinsIgnored
	case p.now.Checked >= pinMost:
		p.now = PinState{}
		return
	default:
		return
	}
	p.last, p.now = p.now, PinState{}
}

// state tells what is known.
func (p *pinCheck) state() *PinState {
	s := p.last
	if s == (PinState{}) {
		s = p.now
	}
	s.Verdict = p.verdict
	return &s
}
