// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/route"
)

// topView is what the lower part of `penstock top` shows.
type topView uint8

const (
	topReplicas topView = iota
	topDecisions
	topReplica  // one replica
	topDecision // one decision
	topHelp
)

// topRows is how many decisions are kept.
const topRows = 200

// topModel is the state of `penstock top`: what the server said, and what the user
// looks at. It does no I/O.
type topModel struct {
	server string
	ascii  bool // no block characters

	live     *console.Live
	received time.Time // when the last state came
	lost     string    // why nothing comes; "" while it does
	rows     []console.Row
	spark    map[string][]float64 // TTFT p95 by pool, a value a second
	sparkAt  time.Time

	view     topView
	back     topView // where esc leads from a detail
	pool     int
	selected string // id of a replica or a decision; "" the first
	first    int    // first line of a long list that shows
	filter   string
	typing   bool
	sort     int // index of topSorts
	paused   bool
	record   *route.Record // of the decision that is open; nil while it is fetched
	note     string
}

// topSorts are the orders of the replicas.
var topSorts = []struct {
	name string
	less func(a, b *console.LiveReplica) int
}{
	{"name", func(a, b *console.LiveReplica) int { return 0 }},
	{"waiting", func(a, b *console.LiveReplica) int { return cmp.Compare(orLow(b.Waiting), orLow(a.Waiting)) }},
	{"KV", func(a, b *console.LiveReplica) int { return cmp.Compare(orLow(b.KV), orLow(a.KV)) }},
	{"signal age", func(a, b *console.LiveReplica) int { return cmp.Compare(orHigh(b.AgeMS), orHigh(a.AgeMS)) }},
}

func orLow(v *float64) float64 {
	if v == nil {
		return -1
	}
	return *v
}

func orHigh(v *float64) float64 {
	if v == nil {
		return 1e18
	}
	return *v
}

// topWish is what a key asks the loop to do.
type topWish uint8

const (
	wishNothing topWish = iota
	wishQuit
	wishExplain // fetch the record of the selected decision
)

// take books a state of the server.
func (m *topModel) take(l *console.Live, now time.Time) {
	m.live, m.received, m.lost = l, now, ""
	m.pool = min(m.pool, max(0, len(l.Pools)-1))
	if now.Sub(m.sparkAt) < 900*time.Millisecond {
		return
	}
	m.sparkAt = now
	if m.spark == nil {
		m.spark = map[string][]float64{}
	}
	for i := range l.Pools {
		p := &l.Pools[i]
		v, ok := p.Value("ttft_p95_ms")
		if !ok {
			v = -1
		}
		s := append(m.spark[p.Name], v)
		m.spark[p.Name] = s[max(0, len(s)-120):]
	}
}

// add books decisions, oldest first.
func (m *topModel) add(rows []console.Row) {
	if m.paused {
		return
	}
	m.rows = append(m.rows, rows...)
	if n := len(m.rows); n > topRows {
		m.rows = append(m.rows[:0], m.rows[n-topRows:]...)
	}
}

func (m *topModel) shown() *console.LivePool {
	if m.live == nil || len(m.live.Pools) == 0 {
		return nil
	}
	return &m.live.Pools[m.pool]
}

// replicas are those that pass the filter, in the chosen order.
func (m *topModel) replicas() []*console.LiveReplica {
	p := m.shown()
	if p == nil {
		return nil
	}
	var out []*console.LiveReplica
	for i := range p.Replicas {
		r := &p.Replicas[i]
		if m.passes(r.ID, r.Phase, strings.Join(r.Adapters, " ")) {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, topSorts[m.sort].less)
	return out
}

// decisions are those that pass the filter, the newest first.
func (m *topModel) decisions() []*console.Row {
	var out []*console.Row
	for i := len(m.rows) - 1; i >= 0; i-- {
		r := &m.rows[i]
		if m.passes(r.ID, r.Model, r.Adapter, r.Tenant, r.Replica, r.Why, r.Kind) {
			out = append(out, r)
		}
	}
	return out
}

func (m *topModel) passes(texts ...string) bool {
	if m.filter == "" {
		return true
	}
	f := strings.ToLower(m.filter)
	return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), f) })
}

// ids of what the list shows, in order.
func (m *topModel) ids() []string {
	var out []string
	if m.view == topDecisions {
		for _, r := range m.decisions() {
			out = append(out, r.ID)
		}
		return out
	}
	for _, r := range m.replicas() {
		out = append(out, r.ID)
	}
	return out
}

// at is the place of the selected line, 0 where it is gone.
func (m *topModel) at(ids []string) int { return max(0, slices.Index(ids, m.selected)) }

// move moves the selection by n lines.
func (m *topModel) move(n int) {
	ids := m.ids()
	if len(ids) == 0 {
		return
	}
	m.selected = ids[min(len(ids)-1, max(0, m.at(ids)+n))]
}

// key takes one key: a printable character, or a name such as "down" and "enter".
func (m *topModel) key(k string) topWish {
	m.note = ""
	if m.typing {
		return m.typed(k)
	}
	if w, done := m.listKey(k); done {
		return w
	}
	switch k {
	case "q", "ctrl-c":
		return wishQuit
	case "?":
		if m.view == topHelp {
			m.view = m.back
		} else {
			m.open(topHelp)
		}
	case "esc", "left", "h":
		m.leave()
	case "d":
		if m.view == topDecisions {
			m.view = topReplicas
		} else {
			m.view = topDecisions
		}
		m.selected, m.first = "", 0
	case "tab", "right":
		if m.live != nil && len(m.live.Pools) > 0 {
			m.pool = (m.pool + 1) % len(m.live.Pools)
			m.selected, m.first = "", 0
		}
	case "p", " ":
		m.paused = !m.paused
	}
	return wishNothing
}

func (m *topModel) leave() {
	switch {
	case m.view >= topReplica:
		m.view, m.record = m.back, nil
	case m.filter != "":
		m.filter = ""
	case m.view == topDecisions:
		m.view, m.selected, m.first = topReplicas, "", 0
	}
}

// open shows a detail; esc leads back to the list.
func (m *topModel) open(v topView) {
	if m.view < topReplica {
		m.back = m.view
	}
	m.view = v
}

// listKey takes the keys of the two lists; false where the key is none of them.
func (m *topModel) listKey(k string) (topWish, bool) {
	if m.view >= topReplica {
		return wishNothing, false
	}
	switch k {
	case "j", "down":
		m.move(1)
	case "k", "up":
		m.move(-1)
	case "pgdn", "ctrl-f":
		m.move(10)
	case "pgup", "ctrl-b":
		m.move(-10)
	case "g", "home":
		m.move(-1 << 20)
	case "G", "end":
		m.move(1 << 20)
	case "s":
		m.sort = (m.sort + 1) % len(topSorts)
		m.note = "sorted by " + topSorts[m.sort].name
	case "/":
		m.typing = true
	case "enter":
		ids := m.ids()
		if len(ids) == 0 {
			return wishNothing, true
		}
		m.selected = ids[m.at(ids)]
		if m.view == topDecisions {
			m.open(topDecision)
			m.record = nil
			return wishExplain, true
		}
		m.open(topReplica)
	default:
		return wishNothing, false
	}
	return wishNothing, true
}

// typed takes a key while the filter is written.
func (m *topModel) typed(k string) topWish {
	switch k {
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "ctrl-c":
		return wishQuit
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		if len([]rune(k)) == 1 && len(m.filter) < 60 {
			m.filter += k
		}
	}
	m.selected, m.first = "", 0
	return wishNothing
}
