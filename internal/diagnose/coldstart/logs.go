// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"cmp"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// logInfo is what the logs of one start say.
type logInfo struct {
	engine, version string
	count           int // lines
	marks           []mark
	comparable      bool // times can be compared with those of the events
	first, last     float64
	hasSpan         bool
	span            float64
	ready           float64
	hasReady        bool
	failed          *mark
	cacheHit        bool
	gaps            []diagnose.Evidence
	timeline        []moment
}

// moment is one line on the time axis, for gaps.
type moment struct {
	at   float64
	text string
	line int
}

func readLogs(logs []Log, ev *pod) *logInfo {
	lg := &logInfo{}
	for i := range logs {
		lines := readLines(logs[i].Text)
		lg.count += len(lines)
		c := newClock(lines)
		first, has := firstTime(lines, &c)
		ok := c.align(first, has, ev.started, ev.hasStarted && !ev.relative)
		lines = lastStart(lines)
		marks := marksOf(lines, &c)
		if e, v := engineOf(lines, marks); lg.engine == "" {
			lg.engine, lg.version = e, v
		}
		lg.marks = append(lg.marks, marks...)
		lg.comparable = lg.comparable || ok
		lg.spanOf(untilServing(lines, marks), &c)
	}
	for i := range lg.marks {
		m := &lg.marks[i]
		switch m.kind {
		case kReady:
			if m.has {
				lg.ready, lg.hasReady = max(lg.ready, m.at), true
			} else if !lg.hasReady && lg.hasSpan {
				lg.ready, lg.hasReady = lg.last, true
			}
		case kCacheHit:
			lg.cacheHit = true
		case kFail:
			if lg.failed == nil {
				lg.failed = m
			}
		}
	}
	if lg.failed != nil && lg.anyAfter(lg.failed, kReady) {
		lg.failed = nil // it came up all the same
	}
	lg.findGaps()
	return lg
}

func firstTime(lines []line, c *clock) (float64, bool) {
	for i := range lines {
		if t, ok := c.at(&lines[i]); ok {
			return t, true
		}
	}
	return 0, false
}

// lastStart cuts off all but the last start where a log holds several.
func lastStart(lines []line) []line {
	begin, done := 0, false
	for i := range lines {
		m := lines[i].msg
		switch {
		case strings.Contains(m, "vLLM API server version") || strings.Contains(m, "server_args=ServerArgs") || strings.HasPrefix(m, "Args {") || strings.Contains(m, "llama_model_loader: loaded meta data"):
			if done {
				begin, done = i, false
			}
		case strings.Contains(m, "Application startup complete") || strings.Contains(m, "EngineCore failed") || strings.Contains(m, "ready to roll") || strings.Contains(m, "Shard cannot start") || strings.Contains(m, "server is listening"):
			done = true
		}
	}
	return lines[begin:]
}

// untilServing cuts off what an engine writes once it serves. The line that says so
// often has no time of its own, so a later one must not lend it one.
func untilServing(lines []line, marks []mark) []line {
	end, ready := 0, false
	for i := range marks {
		ready = ready || marks[i].kind == kReady
		if marks[i].kind != kFail {
			end = max(end, marks[i].line)
		}
	}
	if !ready {
		return lines
	}
	n := 0
	for n < len(lines) && lines[n].no <= end {
		n++
	}
	return lines[:n]
}

func (lg *logInfo) spanOf(lines []line, c *clock) {
	for i := range lines {
		t, ok := c.at(&lines[i])
		if !ok {
			continue
		}
		if !lg.hasSpan {
			lg.first, lg.last, lg.hasSpan = t, t, true
		}
		lg.first, lg.last = min(lg.first, t), max(lg.last, t)
		lg.timeline = append(lg.timeline, moment{t, lines[i].msg, lines[i].no})
	}
	lg.span = lg.last - lg.first
}

func (lg *logInfo) anyAfter(m *mark, k kind) bool {
	for i := range lg.marks {
		if lg.marks[i].kind == k && lg.marks[i].line > m.line {
			return true
		}
	}
	return false
}

// gapAtLeast is the silence in seconds that is worth pointing at.
const gapAtLeast = 5

// findGaps lists the longest silences of the log that no stage explains, with the
// lines around them.
func (lg *logInfo) findGaps() {
	slices.SortStableFunc(lg.timeline, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	type gap struct {
		s    float64
		a, b moment
	}
	var gaps []gap
	for i := 1; i < len(lg.timeline); i++ {
		a, b := lg.timeline[i-1], lg.timeline[i]
		if s := b.at - a.at; s >= gapAtLeast {
			gaps = append(gaps, gap{s, a, b})
		}
	}
	slices.SortStableFunc(gaps, func(a, b gap) int { return cmp.Compare(b.s, a.s) })
	spans := lg.spans()
	for i, g := range gaps {
		if i == 20 || len(lg.gaps) == 5 {
			break
		}
		if covered(spans, g.a.at, g.b.at) >= 0.8*g.s {
			continue
		}
		lg.gaps = append(lg.gaps, diagnose.Ev("silence", diagnose.Round(g.s, 1), "s").From(
			"before line "+diagnose.Num(float64(g.b.line))+": "+short(g.a.text)+" ... "+short(g.b.text)))
	}
}

// spans returns the intervals that stages explain whose place on the axis is known,
// sorted and without overlap.
func (lg *logInfo) spans() [][2]float64 {
	var spans [][2]float64
	for i := range lg.marks {
		m := &lg.marks[i]
		switch m.kind {
		case kModel, kWeights, kDownload, kDynamo, kCompileGraph, kCacheLoad, kCapture, kShard, kRunner, kFirstRun:
			if m.has && m.v > 0 {
				spans = append(spans, [2]float64{m.at - m.v, m.at})
			}
		}
	}
	for _, p := range [...][2]kind{{kP2PBegin, kP2PEnd}, {kDistBegin, kDistEnd}, {kLoadBegin, kLoadEnd}, {kDownloadBegin, kDownloadEnd}, {kWarmBegin, kWarmEnd}} {
		a, ok1 := lg.when(p[0], false)
		b, ok2 := lg.when(p[1], true)
		if ok1 && ok2 {
			spans = append(spans, [2]float64{a, b})
		}
	}
	if work, ok := lg.firstWork(); ok {
		spans = append(spans, [2]float64{lg.first, work})
	}
	slices.SortFunc(spans, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	out := spans[:0]
	for _, s := range spans {
		if n := len(out); n > 0 && s[0] <= out[n-1][1] {
			out[n-1][1] = max(out[n-1][1], s[1])
			continue
		}
		out = append(out, s)
	}
	return out
}

// covered returns how much of an interval the spans fill.
func covered(spans [][2]float64, from, to float64) float64 {
	sum := 0.0
	for _, s := range spans {
		if lo, hi := max(s[0], from), min(s[1], to); hi > lo {
			sum += hi - lo
		}
	}
	return sum
}

func short(s string) string {
	if len(s) > 60 {
		return s[:57] + "..."
	}
	return s
}

// most returns the largest value of a kind over the processes, where each process
// counts once with the sum of its values if add is set, or its largest otherwise.
func (lg *logInfo) most(k kind, add bool) (float64, bool) {
	type acc struct {
		proc string
		v    float64
	}
	var list []acc
	for i := range lg.marks {
		m := &lg.marks[i]
		if m.kind != k {
			continue
		}
		j := slices.IndexFunc(list, func(a acc) bool { return a.proc == m.proc })
		switch {
		case j < 0:
			list = append(list, acc{m.proc, m.v})
		case add:
			list[j].v += m.v
		default:
			list[j].v = max(list[j].v, m.v)
		}
	}
	best, ok := 0.0, false
	for _, a := range list {
		best, ok = max(best, a.v), true
	}
	return best, ok
}

// when returns the time of the first or last mark of a kind.
func (lg *logInfo) when(k kind, last bool) (float64, bool) {
	best, ok := 0.0, false
	for i := range lg.marks {
		m := &lg.marks[i]
		if m.kind != k || !m.has {
			continue
		}
		if !ok || last && m.at > best || !last && m.at < best {
			best, ok = m.at, true
		}
	}
	return best, ok
}

// between returns the time from the first mark of a kind to the last of another,
// where both have one.
func (lg *logInfo) between(a, b kind) (float64, bool) {
	x, ok1 := lg.when(a, false)
	y, ok2 := lg.when(b, true)
	return y - x, ok1 && ok2 && y >= x
}

// bar returns the longest finished progress bar with one of the names.
func (lg *logInfo) bar(names ...string) (float64, bool) {
	best, ok := 0.0, false
	for i := range lg.marks {
		m := &lg.marks[i]
		if m.kind != kProgress {
			continue
		}
		for _, n := range names {
			if strings.Contains(m.text, n) {
				best, ok = max(best, m.v), true
			}
		}
	}
	return best, ok
}

func (lg *logInfo) number(k kind) (float64, bool) {
	for i := range lg.marks {
		if lg.marks[i].kind == k {
			return lg.marks[i].v, true
		}
	}
	return 0, false
}

func stated(s float64, what string) diagnose.Evidence {
	return diagnose.Ev(what, s, "s").From("stated by the log")
}

func timed(s float64, what string) diagnose.Evidence {
	return diagnose.Ev(what, s, "s").From("timestamps")
}
