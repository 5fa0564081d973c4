// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"math"
	"strconv"
	"time"
)

// Medians of the requests of a ServeGen trace, which knows only when they come.
const (
	servegenInput  = 500
	servegenOutput = 200
)

// rateSource draws the requests of clients whose rates are known. Gaps are drawn
// with mean 1 and stretched by the rate, so that a window has its rate however
// uneven its gaps are.
type rateSource struct {
	p       Play
	clients []rateCursor
	next    dueHeap // Turn is the index of the client
	n       uint64
}

type rateCursor struct {
	c    *RateClient
	r    Rand
	w    int     // window
	at   float64 // seconds on the trace's clock
	name string
}

func newRateSource(t *Trace, p Play) *rateSource {
	s := &rateSource{p: p}
	for k := range p.Factor {
		for i := range t.Clients {
			c := &t.Clients[i]
			name := c.Name
			if k > 0 {
				name += "#" + strconv.Itoa(k)
			}
			cur := rateCursor{c: c, r: *NewRand(p.Seed, name, 0), name: name}
			s.clients = append(s.clients, cur)
			s.advance(len(s.clients) - 1)
		}
	}
	return s
}

// advance moves client i to its next request.
func (s *rateSource) advance(i int) {
	c := &s.clients[i]
	gap := -1.0
	for c.w < len(c.c.Windows) {
		w := &c.c.Windows[c.w]
		end := (w.Start + servegenWindow).Seconds()
		if c.w+1 < len(c.c.Windows) {
			end = c.c.Windows[c.w+1].Start.Seconds()
		}
		c.at = math.Max(c.at, w.Start.Seconds())
		if w.Rate > 0 {
			if gap < 0 {
				gap = w.unitGap(&c.r)
			}
			if at := c.at + gap/w.Rate; at < end {
				c.at = at
				s.next.push(dueItem{Item: Item{Turn: i, At: seconds(at / s.p.Speedup)}, seq: s.n})
				s.n++
				return
			}
			gap -= (end - c.at) * w.Rate
		}
		c.at = end
		c.w++
	}
}

// unitGap draws a gap of the window's family with mean 1.
func (w *RateWindow) unitGap(r *Rand) float64 {
	if w.Family == "Weibull" {
		return r.Weibull(w.A, 1) / math.Gamma(1+1/w.A)
	}
	return r.Gamma(w.A)
}

// Next implements Source.
func (s *rateSource) Next() *Session {
	if len(s.next) == 0 {
		return nil
	}
	due := s.next.pop()
	i := due.Turn
	c := &s.clients[i]
	in := c.r.tokens(servegenInput, 1, 8, 32000)
	out := c.r.tokens(servegenOutput, 0.8, 2, 4000)
	if s.p.MaxContext > 0 {
		out = min(out, s.p.MaxContext/2)
		in = min(in, s.p.MaxContext-out)
	}
	ses := &Session{
		ID: c.r.Uint64(), Start: due.At, Tenant: c.name,
		Turns: []Turn{{At: due.At, PromptTokens: in, OutputTokens: out}},
	}
	head := min(in/4, 100)
	if head > 0 { // what a client says first in every request
		ses.Turns[0].Prompt = append(ses.Turns[0].Prompt, Segment{ID: hashString(c.name), Tokens: int32(head), Role: RoleSystem})
	}
	ses.Turns[0].Prompt = append(ses.Turns[0].Prompt, Segment{ID: mix(ses.ID), Tokens: int32(in - head)})
	s.advance(i)
	return ses
}

// Rate returns the rate of the client at a moment of the trace's clock.
func (c *RateClient) Rate(at time.Duration) float64 {
	for i := len(c.Windows) - 1; i >= 0; i-- {
		if c.Windows[i].Start <= at {
			if at >= c.Windows[i].Start+servegenWindow && i == len(c.Windows)-1 {
				return 0
			}
			return c.Windows[i].Rate
		}
	}
	return 0
}
