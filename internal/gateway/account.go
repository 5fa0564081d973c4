// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/promptlog"
	"github.com/penstock-project/penstock/internal/wire"
)

// account is the last thing that happens to a call: the pool, the metrics and the
// log learn what became of it.
func (c *call) account() {
	c.settle()
	c.h.door.Watches.Drop(c.watch)
	c.h.conns.leave(c.streamOf)
	if c.grant != nil {
		c.outcome.Status = c.status
		c.grant.Done(c.outcome)
	}
	c.accountRollout()
	c.accountRefusal()
	m := c.h.metrics
	s := c.series
	if s == nil {
		s = m.unknown(c.route)
	}
	now := c.over
	if now.IsZero() {
		now = time.Now()
	}
	total := now.Sub(c.start)
	s.status(c.status).Inc()
	if c.outcome.Kind == fleet.OutcomeClientGone {
		m.disconnects[c.phase].Inc()
		if c.phase >= phaseFirstByte {
			m.cancels.Inc()
		}
	} else {
		s.duration.Observe(total.Seconds())
	}
	if c.source != "" {
		m.fault(c.source, c.faultLabel()).Inc()
	}
	if c.grant != nil {
		c.accountGranted(s, now)
	}
	c.log(total)
	c.record(total)
	c.endTrace(now)
}

// record completes the entry of the prompt log.
func (c *call) record(total time.Duration) {
	c.entry.End(func(r *promptlog.Record) {
		o := &c.outcome
		r.Status, r.Outcome, r.Stream, r.EngineModel = c.status, o.Kind.String(), c.events, c.target.EngineName()
		r.E2EMS = float64(total.Microseconds()) / 1e3
		if o.PromptTokens >= 0 {
			r.PromptTokens = &o.PromptTokens
		}
		if o.OutputTokens >= 0 {
			r.OutputTokens = &o.OutputTokens
		}
		if c.told {
			ms := float64(c.first.Sub(c.start).Microseconds()) / 1e3
			r.TTFTMS = &ms
		}
	})
}

// accountGranted counts what only requests that reached a replica have.
func (c *call) accountGranted(s *series, now time.Time) {
	held := c.grant.Held()
	s.queue.Observe(held.Seconds())
	// What we added: everything since the body was here that was neither our queue
	// nor the replica's time.
	s.overhead.Observe(max(0, now.Sub(c.read)-held-c.upstream).Seconds())
	o := &c.outcome
	if c.events && c.told && o.Kind == fleet.OutcomeOK {
		s.ttft.Observe(c.first.Sub(c.start).Seconds())
	}
	if o.PromptTokens > 0 {
		s.promptTokens.Add(float64(o.PromptTokens))
	}
	if o.CachedTokens > 0 {
		s.cachedTokens.Add(float64(o.CachedTokens))
	}
	if o.OutputTokens > 0 {
		s.outputTokens.Add(float64(o.OutputTokens))
	}
}

// faultLabel is the kind of an error in metrics: our own codes, or a class of
// engine errors. It is a closed set.
func (c *call) faultLabel() string {
	if c.fault != "" {
		return c.fault
	}
	if c.status >= 500 {
		return "engine_5xx"
	}
	return "engine_4xx"
}

// log writes one line for a request that went wrong, and for others where debug
// lines are wanted. It never holds text of prompts or answers.
func (c *call) log(total time.Duration) {
	level := slog.LevelDebug
	switch c.outcome.Kind {
	case fleet.OutcomeOK, fleet.OutcomeClientError:
	case fleet.OutcomeClientGone:
		level = slog.LevelInfo
	default:
		if level = slog.LevelWarn; c.status < 500 && c.outcome.Kind == fleet.OutcomeRefused {
			level = slog.LevelDebug // a refusal is the client's business
		}
	}
	log := c.h.o.Log
	if !log.Enabled(c.ctx, level) {
		return
	}
	dropped, ok := c.h.lines.take(time.Now(), level)
	if !ok {
		return
	}
	attrs := make([]slog.Attr, 0, 12)
	if dropped > 0 {
		attrs = append(attrs, slog.Int64("lines_dropped", dropped))
	}
	attrs = append(attrs, slog.String("id", c.id), slog.String("path", c.route.path), slog.Int("status", c.status),
		slog.String("outcome", c.outcome.Kind.String()), slog.Float64("ms", float64(total.Microseconds())/1e3))
	if c.outcome.Kind == fleet.OutcomeClientGone {
		attrs = append(attrs, slog.String("code", wire.CodeClientClosed), slog.String("phase", phaseNames[c.phase]))
	} else if c.fault != "" {
		attrs = append(attrs, slog.String("code", c.fault))
	}
	if c.target != nil {
		attrs = append(attrs, slog.String("model", c.target.EngineName()))
	}
	if c.clientID != "" {
		attrs = append(attrs, slog.String("client_id", c.clientID))
	}
	if c.grant != nil {
		endpoint, _ := c.grant.Endpoint()
		attrs = append(attrs, slog.String("endpoint", endpoint), slog.Int("attempts", c.grant.Attempts()), slog.Int("tokens", c.outcome.OutputTokens))
	}
	log.LogAttrs(c.ctx, level, "request", attrs...)
}

// linesPerSecond bounds the lines about requests above debug level: an outage of
// the fleet must not become one of the disk. Metrics and records count all.
const linesPerSecond = 50

// lineBudget counts lines in the current second.
type lineBudget struct {
	mu      sync.Mutex
	second  int64
	used    int
	dropped int64
}

// take reports whether a line may be written, and how many were dropped before it.
func (l *lineBudget) take(now time.Time, level slog.Level) (dropped int64, ok bool) {
	if level <= slog.LevelDebug {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := now.Unix(); s != l.second {
		l.second, l.used = s, 0
	}
	if l.used >= linesPerSecond {
		l.dropped++
		return 0, false
	}
	l.used++
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
