// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
)

var stateInk = map[diagnose.State]ink{
	diagnose.StateGood: inkGood, diagnose.StateIdle: inkDim, diagnose.StateStarting: inkInfo, diagnose.StateStrained: inkWarn,
	diagnose.StateDegraded: inkBad, diagnose.StateDown: inkBad,
}

// draw renders the model for a terminal of w columns and h lines.
func (m *topModel) draw(e *Env, w, h int) *screen {
	s := newScreen(w, h)
	y := m.header(s, e)
	if m.live == nil {
		s.put(1, y+1, cmp.Or(m.lost, "asking "+m.server), inkPlain)
		m.footer(s)
		return s
	}
	y = m.pools(s, y, e)
	switch m.view {
	case topDecisions:
		m.decisionList(s, y)
	case topReplica:
		m.replicaDetail(s, y)
	case topDecision:
		m.decisionDetail(s, y, e)
	case topHelp:
		m.help(s, y)
	default:
		m.replicaList(s, y)
	}
	m.footer(s)
	return s
}

func (m *topModel) header(s *screen, e *Env) int {
	s.fill(0, inkTitle)
	x := s.put(1, 0, "penstock", inkTitle)
	if l := m.live; l != nil {
		x = s.put(x+1, 0, l.Version, inkTitle)
		x = s.put(x+2, 0, "up "+span(time.Duration(l.UptimeS*1e9)), inkTitle)
		if age := e.Now().Sub(m.received); age > 3*time.Second || m.lost != "" {
			x = s.put(x+2, 0, fmt.Sprintf("NO ANSWER for %s", span(age)), inkTitle)
		} else if !l.Ready {
			x = s.put(x+2, 0, "NOT READY: "+l.Reason, inkTitle)
		}
		if m.paused {
			s.put(x+2, 0, "PAUSED", inkTitle)
		}
	}
	s.right(s.w-1, 0, strings.TrimPrefix(m.server, "http://"), inkTitle)
	return 1
}

// pools draws the pool that is shown in full and names the others.
func (m *topModel) pools(s *screen, y int, e *Env) int {
	p := m.shown()
	if p == nil {
		s.put(1, y+1, "no pool is configured", inkPlain)
		return y + 2
	}
	if len(m.live.Pools) > 1 {
		x := 1
		for i := range m.live.Pools {
			q := &m.live.Pools[i]
			k := inkPlain
			if i == m.pool {
				k = inkSelected
			}
			x = s.put(x, y, " "+q.Name+" "+strings.ToUpper(string(q.Verdict.State))+" ", k) + 1
		}
		y++
	}
	x := s.put(1, y, p.Name, inkBold)
	x = s.put(x+2, y, strings.ToUpper(string(p.Verdict.State)), stateInk[p.Verdict.State])
	if !p.Verdict.Since.IsZero() {
		x = s.put(x+1, y, span(m.live.Time.Sub(p.Verdict.Since)), inkDim)
	}
	s.put(x+2, y, "policy "+p.Policy+"  "+strings.Join(p.Models, ", "), inkDim)
	y++
	for _, l := range topLines(p.Verdict.Sentence, s.w-2, 3) {
		s.put(1, y, l, inkPlain)
		y++
	}
	y = m.numbers(s, y, p)
	if s.h >= 30 {
		for i := range m.live.Findings {
			if f := &m.live.Findings[i]; i < 3 && f.Severity >= diagnose.Warning {
				s.put(1, y, "! "+f.Code+"  "+f.Message, inkWarn)
				y++
			}
		}
	}
	return y + 1
}

// numbers draws the figures of a pool on three lines.
func (m *topModel) numbers(s *screen, y int, p *console.LivePool) int {
	show := func(name string, format func(float64) string) string {
		if v, ok := p.Value(name); ok {
			return format(v)
		}
		return "-"
	}
	whole := func(v float64) string { return withCommas(int(math.Round(v))) }
	slo, _ := p.SLO.TTFTMS.Known(true)
	p95, known := p.Recent.TTFTP95MS.Known(true)
	k := inkBold
	if known && p95 > slo {
		k = inkBad
	}
	x := s.put(1, y, "TTFT p95 ", inkDim)
	x = s.put(x, y, milliOr(p95, known), k)
	p50, ok := p.Recent.TTFTP50MS.Known(true)
	x = s.put(x, y, " of "+milliOr(slo, !math.IsInf(slo, 0))+"  p50 "+milliOr(p50, ok), inkDim)
	s.put(x+2, y, m.sparkline(p.Name, min(60, s.w-x-4)), inkBar)
	y++
	x = s.put(1, y, "waiting ", inkDim)
	x = s.put(x, y, show("waiting", whole)+" at replicas, "+show("held", whole)+" here", inkPlain)
	x = s.put(x, y, "  in flight ", inkDim)
	x = s.put(x, y, show("in_flight", whole), inkPlain)
	x = s.put(x, y, "  KV ", inkDim)
	x = s.put(x, y, show("kv_max", percent)+" max, "+show("kv_mean", percent)+" mean", inkPlain)
	s.put(x, y, "  "+show("requests_per_s", func(v float64) string { return fmt.Sprintf("%.1f", v) })+" req/s", inkDim)
	y++
	x = s.put(1, y, "hit ", inkDim)
	hit, ok1 := p.Recent.Hit.Known(true)
	x = s.put(x, y, shareOr(hit, ok1), inkBold)
	random, ok2 := p.Recent.HitRandom.Known(true)
	best, ok3 := p.Recent.HitBest.Known(true)
	x = s.put(x, y, "  random "+shareOr(random, ok2)+"  ceiling "+shareOr(best, ok3), inkDim)
	x = s.put(x, y, "  tokens/s ", inkDim)
	x = s.put(x, y, show("prompt_tokens_per_s", whole)+" in, "+show("output_tokens_per_s", whole)+" out", inkPlain)
	if want, ok := p.Value("desired"); ok {
		s.put(x, y, fmt.Sprintf("  wants %.0f", want), inkBold)
	}
	return y + 1
}

func milliOr(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return milliText(v)
}

func shareOr(v float64, ok bool) string {
	if !ok {
		return "-"
	}
	return percent(v)
}

// sparkline draws the last values of TTFT p95, scaled to the largest.
func (m *topModel) sparkline(pool string, width int) string {
	v := m.spark[pool]
	if width <= 0 || len(v) == 0 {
		return ""
	}
	v = v[max(0, len(v)-width):]
	most := 1.0
	for _, x := range v {
		most = max(most, x)
	}
	levels := []rune("▁▂▃▄▅▆▇█")
	if m.ascii {
		levels = []rune("_.-=+*#")
	}
	var b strings.Builder
	for _, x := range v {
		if x < 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(levels[min(len(levels)-1, int(x/most*float64(len(levels))))])
	}
	return b.String()
}

// bar draws a share with width columns.
func (m *topModel) bar(v *float64, width int) string {
	if v == nil {
		return ""
	}
	full := "█"
	if m.ascii {
		full = "#"
	}
	n := int(math.Round(min(1, max(0, *v)) * float64(width)))
	return strings.Repeat(full, n)
}

// column is one column of a list in `penstock top`.
type column struct {
	name  string
	width int
	right bool
}

// list draws a head and as many rows as fit, scrolled to the selected one.
func (m *topModel) list(s *screen, y int, cols []column, n int, ids []string, cell func(i, c int) (string, ink)) {
	if y >= s.h-2 {
		return
	}
	place := func(x int, c column, text string, y int, k ink) {
		r := []rune(text)
		if len(r) > c.width {
			r = r[:c.width]
		}
		if c.right {
			s.right(x+c.width, y, string(r), k)
		} else {
			s.put(x, y, string(r), k)
		}
	}
	x := 2
	for _, c := range cols {
		place(x, c, c.name, y, inkDim)
		x += c.width + 2
	}
	room := s.h - y - 2
	at := m.at(ids)
	m.first = min(max(m.first, at-room+1), at)
	m.first = max(0, min(m.first, n-room))
	for line := 0; line < room && m.first+line < n; line++ {
		i := m.first + line
		x := 2
		for c := range cols {
			text, k := cell(i, c)
			place(x, cols[c], text, y+1+line, k)
			x += cols[c].width + 2
		}
		if i == at {
			s.put(0, y+1+line, ">", inkBold)
			for x := range s.w {
				s.cells[(y+1+line)*s.w+x].ink = inkSelected
			}
		}
	}
	if n > room {
		s.right(s.w-1, y, fmt.Sprintf("%d-%d of %d", m.first+1, min(n, m.first+room), n), inkDim)
	}
}

func (m *topModel) replicaList(s *screen, y int) {
	list := m.replicas()
	if len(list) == 0 {
		s.put(1, y, "no replica"+ifFilter(m.filter), inkPlain)
		return
	}
	wide := 8
	for _, r := range list {
		wide = max(wide, len([]rune(r.ID)))
	}
	wide = min(wide, max(16, min(32, s.w-72)))
	kv := min(12, s.w-76)
	if s.w < 90 {
		kv = 0 // the reason beside a replica says more than a bar
	}
	cols := []column{{"REPLICA", wide, false}, {"PHASE", 14, false}, {"WAIT", 4, true}, {"RUN", 4, true}, {"KV", kv + 5 - bareBar(kv), kv == 0}, {"HIT", 4, true},
		{"TTFT p95", 8, true}, {"AGE", 6, true}, {"NOTE", max(4, s.w-wide-kv-66), false}}
	m.list(s, y, cols, len(list), m.ids(), func(i, c int) (string, ink) {
		r := list[i]
		switch c {
		case 0:
			return r.ID, inkBold
		case 1:
			return phaseText(r), phaseInk(r)
		case 2:
			return numberText(r.Waiting), inkPlain
		case 3:
			return numberText(r.Running), inkPlain
		case 4:
			if r.KV == nil {
				return "-", inkDim
			}
			k := inkBar
			if *r.KV >= 0.9 {
				k = inkWarn
			}
			return strings.TrimRight(fmt.Sprintf("%4s ", percent(*r.KV))+m.bar(r.KV, kv), " "), k
		case 5:
			if r.Hit == nil {
				return "-", inkDim
			}
			return percent(*r.Hit), inkPlain
		case 6:
			v, ok := r.TTFTP95.Known(true)
			return milliOr(v, ok), inkPlain
		case 7:
			if r.AgeMS == nil {
				return "-", inkDim
			}
			return ageText(*r.AgeMS), inkPlain
		}
		return topNote(r), inkWarn
	})
}

// bareBar is the space before a bar, which a column without one does not need.
func bareBar(kv int) int {
	if kv == 0 {
		return 1
	}
	return 0
}

func ifFilter(f string) string {
	if f == "" {
		return ""
	}
	return " passes the filter " + f
}

func phaseText(r *console.LiveReplica) string {
	s := r.Phase
	if r.Slow {
		s += " slow"
	}
	if r.PhaseS != nil {
		s += " " + span(time.Duration(*r.PhaseS*1e9))
	}
	return s
}

func phaseInk(r *console.LiveReplica) ink {
	switch {
	case r.Slow:
		return inkWarn
	case r.Phase == "ready":
		return inkGood
	case r.Phase == "failed":
		return inkBad
	}
	return inkInfo
}

func numberText(v *float64) string {
	if v == nil {
		return "-"
	}
	return withCommas(int(math.Round(*v)))
}

// staleMS is the age from which a signal says little.
const staleMS = 15_000

func topNote(r *console.LiveReplica) string {
	var out []string
	if r.AgeMS != nil && *r.AgeMS > staleMS {
		out = append(out, "!stale")
	}
	if r.Reason != "" {
		out = append(out, r.Reason)
	}
	if r.Dropped != "" {
		out = append(out, r.Dropped)
	}
	if len(r.Adapters) > 0 {
		out = append(out, strings.Join(r.Adapters, ","))
	}
	return strings.Join(out, " ")
}

func (m *topModel) decisionList(s *screen, y int) {
	list := m.decisions()
	if len(list) == 0 {
		s.put(1, y, "no decision"+ifFilter(m.filter)+" since this view was opened", inkPlain)
		return
	}
	idWidth := max(12, min(24, s.w-62))
	cols := []column{{"TIME", 8, false}, {"REQUEST", idWidth, false}, {"REPLICA", 8, false}, {"PROMPT", 7, true}, {"CACHED", 6, true}, {"TTFT", 7, true},
		{"REASON", max(8, s.w-idWidth-50), false}}
	m.list(s, y, cols, len(list), m.ids(), func(i, c int) (string, ink) {
		r := list[i]
		switch c {
		case 0:
			return r.Time.Local().Format(time.TimeOnly), inkDim
		case 1:
			return r.ID, inkPlain
		case 2:
			return orDash(r.Replica), inkBold
		case 3:
			return withCommas(r.Prompt), inkPlain
		case 4:
			if r.Cached == nil || r.Prompt == 0 {
				return "-", inkDim
			}
			return percent(float64(*r.Cached) / float64(r.Prompt)), inkPlain
		case 5:
			if r.TTFTMS == nil {
				return "-", inkDim
			}
			return milliText(*r.TTFTMS), inkPlain
		}
		if r.Kind != "ok" && r.Kind != "" {
			return strings.ReplaceAll(r.Kind, "_", " ") + ": " + r.Why, inkBad
		}
		return r.Why, inkPlain
	})
}

func (m *topModel) replicaDetail(s *screen, y int) {
	p := m.shown()
	for i := range p.Replicas {
		r := &p.Replicas[i]
		if r.ID != m.selected {
			continue
		}
		v, ok := r.TTFTP95.Known(true)
		for _, l := range [][2]string{
			{"replica", r.ID}, {"phase", phaseText(r)}, {"reason", r.Reason}, {"running", numberText(r.Running)}, {"waiting", numberText(r.Waiting)},
			{"in flight", withCommas(r.InFlight) + " of this router"}, {"KV cache", numberOr(r.KV, percent)}, {"hit", numberOr(r.Hit, percent) + " since its start"},
			{"TTFT p95", milliOr(v, ok) + " in the last minute"}, {"signals", numberOr(r.AgeMS, ageText) + " old"}, {"adapters", strings.Join(r.Adapters, ", ")},
			{"takes nothing", r.Dropped}, {"metrics", r.Note},
		} {
			if l[1] == "" {
				continue
			}
			s.put(1, y, l[0], inkDim)
			s.put(16, y, l[1], inkPlain)
			y++
		}
		s.put(1, y+1, "its own metrics: "+m.server+"/replicas/"+r.ID+"/metrics", inkDim)
		return
	}
	s.put(1, y, "replica "+m.selected+" is gone", inkPlain)
}

func numberOr(v *float64, format func(float64) string) string {
	if v == nil {
		return "unknown"
	}
	return format(*v)
}

// decisionDetail shows what `penstock explain` prints.
func (m *topModel) decisionDetail(s *screen, y int, e *Env) {
	if m.record == nil {
		s.put(1, y, cmp.Or(m.note, "asking for "+m.selected), inkPlain)
		return
	}
	var b bytes.Buffer
	printRecord(e, &b, m.record)
	for _, l := range strings.Split(b.String(), "\n") {
		k := inkPlain
		if strings.HasPrefix(l, "*") {
			k = inkSelected
		}
		s.put(1, y, l, k)
		y++
	}
}

func (m *topModel) help(s *screen, y int) {
	for _, l := range [][2]string{
		{"j k, arrows", "move; g G to the ends, pgup pgdn by ten"}, {"enter", "open the selected replica or decision"}, {"esc", "back; takes the filter away"},
		{"d", "decisions as they end, and back to the replicas"}, {"/", "filter: any part of a name, a phase, an adapter, a reason"},
		{"s", "sort the replicas by name, waiting, KV, signal age"}, {"tab", "next pool"}, {"p, space", "pause and go on"}, {"? q", "this help, quit"},
	} {
		s.put(1, y, l[0], inkBold)
		s.put(16, y, l[1], inkPlain)
		y++
	}
	s.put(1, y+1, "A dash is unknown, which is not zero. hit: prompt tokens from a cache; random: what a", inkDim)
	s.put(1, y+2, "random replica would have had; ceiling: the warmest one. All over the last minute.", inkDim)
}

func (m *topModel) footer(s *screen) {
	y := s.h - 1
	if m.typing {
		s.put(1, y, "/"+m.filter+"_", inkBold)
		return
	}
	x := 1
	if m.filter != "" {
		x = s.put(x, y, "filter "+m.filter, inkBold) + 2
	}
	if m.note != "" {
		x = s.put(x, y, m.note, inkBold) + 2
	}
	keys := "j/k move  enter open  d decisions  / filter  s sort  tab pool  ? help  q quit"
	if m.view >= topReplica {
		keys = "esc back  ? help  q quit"
	} else if m.view == topDecisions {
		keys = "j/k move  enter explain  d replicas  / filter  p pause  ? help  q quit"
	}
	s.put(x, y, keys, inkDim)
}

// topLines breaks text at spaces into lines of at most width columns, most lines at
// most.
func topLines(text string, width, most int) []string {
	var out []string
	line := ""
	for _, w := range strings.Fields(text) {
		switch {
		case line == "":
			line = w
		case len([]rune(line))+1+len([]rune(w)) <= width:
			line += " " + w
		default:
			out = append(out, line)
			line = w
		}
	}
	if line != "" {
		out = append(out, line)
	}
	if len(out) > most {
		out = out[:most]
		out[most-1] += " ..."
	}
	return out
}
