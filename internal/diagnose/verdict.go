// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"strings"
)

// Glance is what one pool looks like at this moment, over the last minute where a
// number needs a span. NaN is unknown.
type Glance struct {
	Pool                    string
	Ready, Replicas, Coming int // Coming: on their way to ready
	Held, InFlight          int // waiting in the router; sent and not ended
	Waiting                 float64
	KVMax                   float64 // fullest replica, 0 to 1
	Requests, Failed        int     // ended in the last minute
	TTFTP95MS, SLOTTFTMS    float64
	Hit, Random             float64 // cached share of prompt tokens; what a random replica would have had
	Findings                []Finding
}

// State is the one word of a verdict.
type State string

// States of a pool, the worst first.
const (
	StateDown     State = "down"     // no replica is ready and none comes
	StateStarting State = "starting" // none is ready, some come
	StateDegraded State = "degraded" // users get errors, or later answers than promised
	StateStrained State = "strained" // users are fine, but nothing is left, or something is wrong
	StateGood     State = "good"
	StateIdle     State = "idle" // nobody asks
)

// Verdict is the answer to "are users fine, and what binds?" in a sentence.
type Verdict struct {
	State    State  `json:"state"`
	Sentence string `json:"sentence"`
	// Binding names what limits the pool: replicas, errors, queue, kv_cache, prefill;
	// "" where nothing does.
	Binding string `json:"binding,omitempty"`
	Command string `json:"command"` // that tells more
}

// Shares from which a glance is no longer fine: of failed requests, and of used KV
// cache on a replica where requests wait.
const (
	failingShare = 0.01
	fullKV       = 0.9
)

// Verdict judges the glance.
func (g *Glance) Verdict() Verdict {
	more := "penstock diagnose"
	switch {
	case g.Ready == 0 && g.Coming > 0:
		return Verdict{StateStarting, fmt.Sprintf("No replica is ready yet: %s on the way%s.", areComing(g.Coming), g.held()), "replicas", "penstock status " + g.Pool}
	case g.Ready == 0 && g.Replicas == 0:
		return Verdict{StateDown, "The pool has no replica: requests wait or are refused" + g.held() + ".", "replicas", more}
	case g.Ready == 0:
		return Verdict{StateDown, fmt.Sprintf("None of %s is ready: requests wait or are refused%s.", Plural(g.Replicas, "replica"), g.held()), "replicas", more}
	}
	worst := g.worst()
	if share := float64(g.Failed) / float64(max(1, g.Requests)); g.Requests >= 20 && share >= failingShare {
		return Verdict{StateDegraded, fmt.Sprintf("%.1f %% of requests fail: %d of %d in the last minute.%s", 100*share, g.Failed, g.Requests, worst),
			"errors", "penstock explain --last --filter kind!=ok"}
	}
	if g.TTFTP95MS > g.SLOTTFTMS {
		binding, why := g.binds()
		return Verdict{StateDegraded, fmt.Sprintf("Users wait: TTFT p95 %s, promised %s. %s.%s", millis(g.TTFTP95MS), millis(g.SLOTTFTMS), why, worst), binding, more}
	}
	fine := g.fine()
	if binding, why := g.binds(); binding == "queue" || binding == "kv_cache" {
		return Verdict{StateStrained, fine + " " + why + "." + worst, binding, more}
	}
	if worst != "" {
		return Verdict{StateStrained, fine + worst, "", more}
	}
	if g.Requests == 0 && g.InFlight == 0 {
		return Verdict{StateIdle, fmt.Sprintf("No requests in the last minute; %s ready.", areComing(g.Ready)), "", "penstock status " + g.Pool}
	}
	return Verdict{StateGood, fine, "", "penstock status " + g.Pool}
}

// fine says how users are, where they are fine.
func (g *Glance) fine() string {
	if math.IsNaN(g.TTFTP95MS) {
		return fmt.Sprintf("Nothing is known to be wrong; %s ready, %d in flight.", areComing(g.Ready), g.InFlight)
	}
	s := fmt.Sprintf("Users are fine: TTFT p95 %s, promised %s.", millis(g.TTFTP95MS), millis(g.SLOTTFTMS))
	if !math.IsNaN(g.Hit) {
		s += fmt.Sprintf(" %.0f %% of prompt tokens came from a cache", 100*g.Hit)
		if !math.IsNaN(g.Random) && g.Ready > 1 {
			s += fmt.Sprintf("; a random replica would have had %.0f %%", 100*g.Random)
		}
		s += "."
	}
	return s
}

// binds names what limits the pool, with its numbers.
func (g *Glance) binds() (binding, why string) {
	full := g.KVMax >= fullKV
	wait := float64(g.Held)
	if g.Waiting > 0 {
		wait += g.Waiting
	}
	queue := wait > float64(g.Ready)
	switch {
	case full && wait > 0:
		return "kv_cache", fmt.Sprintf("KV cache binds: the fullest replica is at %.0f %%, and %s", 100*g.KVMax, requestsWait(wait))
	case queue:
		return "queue", fmt.Sprintf("Queue time binds: %s at %s", requestsWait(wait), Plural(g.Ready, "ready replica"))
	case g.Coming > 0:
		return "replicas", fmt.Sprintf("%s on the way", areComing(g.Coming))
	}
	return "prefill", "No queue and no full cache: the prompts themselves take that long"
}

func requestsWait(n float64) string {
	if n == 1 {
		return "1 request waits"
	}
	return fmt.Sprintf("%.0f requests wait", n)
}

func areComing(n int) string {
	if n == 1 {
		return "1 replica is"
	}
	return fmt.Sprintf("%d replicas are", n)
}

func (g *Glance) held() string {
	if g.Held == 0 {
		return ""
	}
	return ", " + requestsWait(float64(g.Held))
}

// worst is the finding that matters most, as a sentence with a space before it.
func (g *Glance) worst() string {
	var first *Finding
	n := 0
	for i := range g.Findings {
		if f := &g.Findings[i]; f.Severity >= Warning {
			if n++; first == nil || f.Severity > first.Severity {
				first = f
			}
		}
	}
	if first == nil {
		return ""
	}
	name := first.Object[strings.LastIndex(first.Object, "/")+1:]
	name = strings.TrimPrefix(name, "pool "+g.Pool)
	s := " " + first.Code
	if name != "" {
		s += " (" + name + ")"
	}
	s += ": " + first.Message
	if n > 1 {
		s += fmt.Sprintf("; and %d more", n-1)
	}
	return s + "."
}

// millis writes a time in ms the way a person would say it.
func millis(ms float64) string {
	switch {
	case math.IsNaN(ms):
		return "unknown"
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.1f s", ms/1e3)
	}
	return Seconds(ms / 1e3)
}
