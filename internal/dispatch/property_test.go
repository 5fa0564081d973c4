// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// call is one recorded call of a Dispatch.
type call struct {
	kind   string
	at     fleet.Time
	snap   *fleet.Snapshot
	req    fleet.Request
	ticket Ticket
	tokens int
	fail   fleet.OutcomeKind
	out    fleet.Outcome
}

// apply carries a call out and writes down all that it led to.
func (c *call) apply(d *Dispatch) (line string, sends []Send, t Ticket, v Verdict) {
	t = c.ticket
	switch c.kind {
	case "observe":
		sends = d.Observe(c.at, c.snap, nil)
	case "arrive":
		r := c.req
		t, v, sends = d.Arrive(c.at, &r, nil)
	case "first":
		sends = d.FirstToken(c.at, c.ticket, nil)
	case "progress":
		d.Progress(c.at, c.ticket, c.tokens)
	case "retry":
		v, sends = d.Retry(c.at, c.ticket, c.fail, nil)
	case "end":
		sends = d.End(c.at, c.ticket, c.out, nil)
	case "tick":
		sends = d.Tick(c.at, nil)
	case "preview":
		r := c.req
		var dec route.Decision
		d.Preview(c.at, &r, &dec)
		line = fmt.Sprintf("%+v", dec)
	}
	line += fmt.Sprintf("%s %d %d %s %q %d", c.kind, c.at, t, v.Kind, v.Reason, d.NextTimer())
	for _, s := range sends {
		line += fmt.Sprintf("\n  %d %d %s %s %d %q", s.Ticket, s.Slot, s.Endpoint, s.URL, s.Held, s.Reason)
		if s.Decision != nil {
			line += fmt.Sprintf(" %+v", *s.Decision)
		}
	}
	return line, sends, t, v
}

// model is the test's own idea of what is going on.
type model struct {
	t       *rapid.T
	d       *Dispatch
	now     fleet.Time
	version uint64
	snap    *fleet.Snapshot
	calls   []call
	lines   []string
	held    []Ticket
	sent    []Ticket // at a replica, no first token
	stream  []Ticket
	failed  []Ticket // retry refused, end due
	reqs    map[Ticket]fleet.Request
	tried   map[Ticket][]string
	arrived int
	ended   int
	refused int
	after   func() // called after each call of d; nil: nothing
}

func (m *model) do(c call) (Ticket, Verdict) {
	c.at = m.now
	line, sends, t, v := c.apply(m.d)
	m.calls = append(m.calls, c)
	m.lines = append(m.lines, line)
	if c.kind == "arrive" {
		m.arrived++
		m.reqs[t] = c.req
		if v.Kind == Held {
			m.held = append(m.held, t)
		}
		if v.Kind == Refused {
			m.refused++
		}
	}
	for _, s := range sends {
		m.carry(s)
	}
	if m.after != nil {
		m.after()
	}
	return t, v
}

// carry checks a send: to a ready endpoint that serves it and was not tried, and of
// a request that waits for one.
func (m *model) carry(s Send) {
	if s.Slot < 0 {
		m.drop(&m.held, s.Ticket)
		m.refused++
		return
	}
	m.held = slices.DeleteFunc(m.held, func(t Ticket) bool { return t == s.Ticket })
	if slices.Contains(m.sent, s.Ticket) || slices.Contains(m.stream, s.Ticket) {
		m.t.Fatalf("ticket %d was sent twice", s.Ticket)
	}
	m.sent = append(m.sent, s.Ticket)
	r := m.reqs[s.Ticket]
	if r.ID != s.Request.ID {
		m.t.Fatalf("ticket %d is request %q, sent %q", s.Ticket, r.ID, s.Request.ID)
	}
	for i := range m.snap.Endpoints {
		e := &m.snap.Endpoints[i]
		if e.ID != s.Endpoint {
			continue
		}
		if e.Phase != fleet.PhaseReady || !slices.Contains(e.Models, r.Model) || e.URL != s.URL {
			m.t.Fatalf("model %q was sent to %+v", r.Model, e.Endpoint)
		}
		if slices.Contains(m.tried[s.Ticket], e.ID) {
			m.t.Fatalf("ticket %d was sent to %s again", s.Ticket, e.ID)
		}
		m.tried[s.Ticket] = append(m.tried[s.Ticket], e.ID)
		return
	}
	m.t.Fatalf("sent to %q, which is not in the snapshot", s.Endpoint)
}

func (m *model) drop(list *[]Ticket, t Ticket) {
	n := len(*list)
	*list = slices.DeleteFunc(*list, func(x Ticket) bool { return x == t })
	if len(*list) != n-1 {
		m.t.Fatalf("ticket %d is not where it should be", t)
	}
}

func (m *model) take(list []Ticket) Ticket {
	return list[rapid.IntRange(0, len(list)-1).Draw(m.t, "which")]
}

func (m *model) observe() {
	m.version++
	s := &fleet.Snapshot{Version: m.version, At: m.now}
	for i := range rapid.IntRange(0, 6).Draw(m.t, "endpoints") {
		if rapid.IntRange(0, 5).Draw(m.t, "absent") == 0 {
			continue
		}
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: fmt.Sprintf("r-%d", i), URL: fmt.Sprintf("http://r-%d", i), Models: []string{"m"}}}
		e.Phase = rapid.SampledFrom([]fleet.Phase{
			fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseReady, fleet.PhaseLoading, fleet.PhaseDraining, fleet.PhaseFailed,
		}).Draw(m.t, "phase")
		if rapid.Bool().Draw(m.t, "both models") {
			e.Models = append(e.Models, "n")
		}
		if rapid.Bool().Draw(m.t, "scraped") {
			e.ScrapedAt = m.now
			e.Running = fleet.Known(float64(rapid.IntRange(0, 5).Draw(m.t, "running")), m.now)
			e.Waiting = fleet.Known(float64(rapid.IntRange(0, 5).Draw(m.t, "waiting")), m.now)
			e.KVTokens = fleet.Known(20000, m.now)
			e.Preemptions = fleet.Known(float64(rapid.IntRange(0, 3).Draw(m.t, "preempted")), m.now)
			e.StartTime = fleet.Known(float64(rapid.IntRange(1, 4).Draw(m.t, "start")*100), m.now)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	m.snap = s
	m.do(call{kind: "observe", snap: s})
}

func (m *model) request() fleet.Request {
	r := prompt(64, part{uint64(rapid.IntRange(0, 3).Draw(m.t, "app")), rapid.IntRange(0, 3000).Draw(m.t, "shared")},
		part{uint64(100 + m.arrived), rapid.IntRange(1, 2000).Draw(m.t, "own")})
	r.ID = fmt.Sprintf("q-%d", m.arrived)
	r.Model = rapid.SampledFrom([]string{"m", "m", "m", "n", "none"}).Draw(m.t, "model")
	r.Tenant = rapid.SampledFrom([]string{"x", "y"}).Draw(m.t, "tenant")
	r.Class = uint8(rapid.IntRange(0, 2).Draw(m.t, "class"))
	r.Stream = rapid.Bool().Draw(m.t, "stream")
	if rapid.IntRange(0, 5).Draw(m.t, "deadline") == 0 {
		r.Deadline = m.now + fleet.Time(rapid.IntRange(1, 3000).Draw(m.t, "in"))*1e6
	}
	return *r
}

func (m *model) end(list *[]Ticket) {
	t := m.take(*list)
	o := fleet.Outcome{
		Kind: fleet.OutcomeKind(rapid.IntRange(0, int(fleet.OutcomeRefused)).Draw(m.t, "kind")),
		End:  m.now, PromptTokens: rapid.IntRange(-1, 4000).Draw(m.t, "prompt tokens"),
		CachedTokens: rapid.IntRange(-1, 2000).Draw(m.t, "cached"), OutputTokens: rapid.IntRange(-1, 400).Draw(m.t, "output"),
	}
	m.drop(list, t)
	m.ended++
	m.do(call{kind: "end", ticket: t, out: o})
	if rapid.IntRange(0, 3).Draw(m.t, "twice") == 0 {
		m.do(call{kind: "end", ticket: t, out: o})
	}
}

// step does one thing at random.
func (m *model) step() {
	m.now += fleet.Time(rapid.IntRange(0, 300).Draw(m.t, "ms")) * 1e6
	if next := m.d.NextTimer(); next < m.now {
		m.now, next = next, m.now
		m.do(call{kind: "tick"})
		m.now = next
	}
	lists := []*[]Ticket{&m.held, &m.sent, &m.stream, &m.failed}
	switch k := rapid.IntRange(0, 13).Draw(m.t, "step"); {
	case k == 0:
		m.observe()
	case k <= 5:
		m.do(call{kind: "arrive", req: m.request()})
	case k == 6:
		m.do(call{kind: "preview", req: m.request()})
	case k <= 8 && len(m.sent) > 0:
		t := m.take(m.sent)
		m.drop(&m.sent, t)
		m.stream = append(m.stream, t)
		m.do(call{kind: "first", ticket: t})
	case k == 9 && len(m.stream) > 0:
		m.do(call{kind: "progress", ticket: m.take(m.stream), tokens: rapid.IntRange(1, 50).Draw(m.t, "tokens")})
	case k == 10 && len(m.sent) > 0:
		t := m.take(m.sent)
		m.drop(&m.sent, t)
		kind := rapid.SampledFrom([]fleet.OutcomeKind{fleet.OutcomeConnectError, fleet.OutcomeBroken, fleet.OutcomeEngineError}).Draw(m.t, "fault")
		if _, v := m.do(call{kind: "retry", ticket: t, fail: kind}); v.Kind == Refused {
			m.failed = append(m.failed, t)
		}
	default:
		if l := lists[k%4]; len(*l) > 0 {
			m.end(l)
		}
	}
}

// finish ends everything and checks that nothing is left behind.
func (m *model) finish() {
	for _, l := range []*[]Ticket{&m.held, &m.sent, &m.stream, &m.failed} {
		for len(*l) > 0 {
			m.now += 1e6
			m.end(l)
		}
	}
	tot := m.d.Totals(m.now)
	if tot.InFlight != 0 || tot.Held != 0 || len(m.d.due) != 0 || m.d.silent != 0 || m.d.queued != 0 {
		m.t.Fatalf("left behind: %+v, %d deadlines, %d silent", tot, len(m.d.due), m.d.silent)
	}
	for _, r := range m.d.Ledger(m.now, nil) {
		if r.InFlight != 0 || r.Unstarted != 0 || r.Streams != 0 || r.PendingMS != 0 && r.ForeignUnstarted == 0 || r.CtxTokens != 0 || r.PinnedBlocks != 0 || r.Queued != 0 || r.QueuedMS != 0 {
			m.t.Fatalf("left behind: %+v", r)
		}
	}
	for i := range m.d.slots {
		if s := &m.d.slots[i]; s.TailTokens != 0 || s.Generated != 0 || s.UncachedTokens != 0 || s.PendingSum != 0 {
			m.t.Fatalf("left behind: %+v", s)
		}
	}
	if m.arrived != m.ended+m.refused {
		m.t.Fatalf("%d arrived, %d ended, %d were refused", m.arrived, m.ended, m.refused)
	}
}

// Whatever happens in whatever order: requests go only to ready endpoints that
// serve them, none is lost or sent twice, the accounting returns to zero, and a
// replay of the calls gives the same decisions byte for byte.
func TestDispatchProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Options{Queue: rapid.Bool().Draw(t, "queue"), Profile: testProfile(), Weights: map[string]float64{"x": 2, "y": 1}}
		if rapid.Bool().Draw(t, "hold") {
			o.HoldFor = 2e9
		}
		policy := rapid.SampledFrom(route.Names()).Draw(t, "policy")
		options := func() Options {
			o.Policy, _ = route.New(policy, 7)
			return o
		}
		m := &model{t: t, d: New(options()), now: 1e9, snap: &fleet.Snapshot{}, reqs: map[Ticket]fleet.Request{}, tried: map[Ticket][]string{}}
		m.observe()
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			m.step()
		}
		m.finish()

		again := New(options())
		for k := range m.calls {
			line, _, _, _ := m.calls[k].apply(again)
			if line != m.lines[k] {
				t.Fatalf("call %d differs in a replay:\n%s\n%s", k, m.lines[k], line)
			}
		}
	})
}
