// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/replica"
	"github.com/penstock-project/penstock/internal/route"
)

// mishap is one thing that can happen to a replica.
type mishap struct {
	replica int
	what    string
	begin   func(*replica.Server) error
	end     func(*replica.Server) error
}

func faults(f replica.Faults) func(*replica.Server) error {
	return func(s *replica.Server) error { return s.SetFaults(f) }
}

func coldRestart(s *replica.Server) error { return s.Restart(0) }

// mishaps in the order in which the demo shows them.
func mishaps() []mishap {
	fine := faults(replica.Faults{})
	return []mishap{
		{1, "dies", func(s *replica.Server) error { s.Kill(); return nil }, coldRestart},
		{2, "hangs like a stopped process", faults(replica.Faults{Hang: true}), fine},
		{3, "computes 20 times slower", faults(replica.Faults{Slow: 20}), fine},
		{4, "refuses every second request (503)", faults(replica.Faults{ErrorPercent: 50, ErrorStatus: 503}), fine},
		{5, "breaks streams after 10 tokens", faults(replica.Faults{DieAfter: 10}), fine},
		{6, "answers, but not on /metrics", faults(replica.Faults{NoMetrics: true}), fine},
		{7, "restarts in place, cache cold", coldRestart, func(*replica.Server) error { return nil }},
	}
}

// weatherEvent is one mishap and what router and clients made of it.
type weatherEvent struct {
	AtS     float64 `json:"at_s"` // since the traffic began
	ForS    float64 `json:"for_s"`
	Replica string  `json:"replica"`
	Event   string  `json:"event"`
	// Seen is the phase that the router saw instead of ready, and why; "" where the
	// replica stayed ready. SeenMS is how long that took.
	Seen   string   `json:"seen,omitempty"`
	SeenMS *float64 `json:"seen_ms"`
	// Sent counts requests that ended there in the meantime, Retried those that went
	// elsewhere after a failure there, Requests all that ended.
	Sent     int `json:"sent"`
	Retried  int `json:"retried"`
	Requests int `json:"requests"`
	// Lost counts requests whose client saw an error, by kind.
	Lost map[string]int `json:"lost"`
	TTFT *demoTTFT      `json:"ttft_ms"`
}

// weatherStation counts what ends while a mishap lasts.
type weatherStation struct {
	mu      sync.Mutex
	ttft    load.Histogram
	ended   int
	lost    map[string]int
	sent    map[string]int // by endpoint
	retried map[string]int
}

func (s *weatherStation) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ttft, s.ended = load.Histogram{}, 0
	s.lost, s.sent, s.retried = map[string]int{}, map[string]int{}, map[string]int{}
}

// result takes what a client saw.
func (s *weatherStation) result(r *load.Result) {
	if r.Cut {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended++
	if r.Error != "" {
		s.lost[r.Error]++
		return
	}
	s.ttft.Add(r.TTFT)
}

// record takes what the router did.
func (s *weatherStation) record(r *route.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent[r.Chosen]++
	if r.Outcome == nil {
		return
	}
	for _, a := range r.Outcome.Attempts {
		s.sent[a.Endpoint]++
		s.retried[a.Endpoint]++
	}
}

// Parts of the time that each mishap has for itself, and for the recovery after it.
const (
	mishapLasts = 5 * time.Second
	mishapRests = 3 * time.Second
)

// runWeather lets one replica after the other fall ill while the users talk.
func (d *demoFleet) runWeather(ctx context.Context, f *demoFlags, json bool) error {
	list := mishaps()
	lasts, rests := mishapLasts, mishapRests
	if f.duration > 0 {
		whole := time.Duration(len(list))*(lasts+rests) + demoTail + 4*time.Second
		scale := float64(f.duration) / float64(whole)
		lasts, rests = time.Duration(float64(lasts)*scale), time.Duration(float64(rests)*scale)
	}
	var st weatherStation
	st.reset()
	watch, stopWatch := context.WithCancel(ctx)
	defer stopWatch()
	records := d.server.journal.Subscribe(watch, journal.Filter{})
	go func() {
		for r := range records {
			st.record(r)
		}
	}()
	talk, stopTalk := context.WithCancel(ctx)
	defer stopTalk()
	r, err := d.runner(f.seed, time.Duration(len(list))*(lasts+rests)+rests, st.result)
	if err != nil {
		return err
	}
	begin := time.Now()
	done := make(chan *load.Report, 1)
	go func() { done <- r.Run(talk) }()
	if !json {
		d.printWeatherHead(d.env.Stdout)
	}
	rep := newDemoReport()
	pause(ctx, rests)
	for _, m := range list {
		if ctx.Err() != nil {
			break
		}
		ev, err := d.mishap(ctx, m, &st, lasts)
		if err != nil {
			return err
		}
		ev.AtS = round3(time.Since(begin).Seconds() - lasts.Seconds())
		rep.Weather = append(rep.Weather, ev)
		if !json {
			printWeather(d.env.Stdout, &ev)
		}
		pause(ctx, rests)
	}
	if ctx.Err() != nil {
		stopTalk()
		<-done
		return nil
	}
	rep.Phases = append(rep.Phases, phaseOf(route.PolicyPenstock, <-done))
	if json {
		return printJSON(d.env.Stdout, rep)
	}
	printWeatherEnd(d.env.Stdout, &rep.Phases[0])
	return nil
}

// mishap lets one thing happen and watches for as long as it lasts.
func (d *demoFleet) mishap(ctx context.Context, m mishap, st *weatherStation, lasts time.Duration) (weatherEvent, error) {
	name := demoName(m.replica)
	ev := weatherEvent{ForS: round3(lasts.Seconds()), Replica: name, Event: m.what, Lost: map[string]int{}}
	st.reset()
	begin := time.Now()
	if err := m.begin(d.replicas[m.replica]); err != nil {
		return ev, failf("", "%s: %v", name, err)
	}
	_, observer := d.server.Pool(demoPool)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for time.Since(begin) < lasts && ctx.Err() == nil {
		<-tick.C
		if seen := notReady(observer.Snapshot(), name); seen != "" && ev.Seen == "" {
			ev.Seen = seen
			ms := round3(float64(time.Since(begin)) / 1e6)
			ev.SeenMS = &ms
		}
	}
	if err := m.end(d.replicas[m.replica]); err != nil {
		return ev, failf("", "%s: %v", name, err)
	}
	// What hung there ends only after it is well again.
	pause(ctx, 300*time.Millisecond)
	st.mu.Lock()
	defer st.mu.Unlock()
	ev.Sent, ev.Retried, ev.Requests = st.sent[name], st.retried[name], st.ended
	for k, n := range st.lost {
		ev.Lost[k] = n
	}
	if l := load.LatencyOf(&st.ttft); l != nil {
		ev.TTFT = &demoTTFT{P50: l.P50, P99: l.P99}
	}
	return ev, nil
}

// notReady says what the router believes of an endpoint, "" where it takes it for
// healthy.
func notReady(s *fleet.Snapshot, name string) string {
	if s == nil {
		return ""
	}
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		switch {
		case ep.ID != name:
		case ep.Phase != fleet.PhaseReady:
			return strings.TrimSuffix(ep.Phase.String()+": "+ep.Reason, ": ")
		case ep.Slow:
			return "slow, still ready"
		case ep.ScrapeError != "":
			return "ready, metrics stale: " + ep.ScrapeError
		}
	}
	return ""
}

func (d *demoFleet) printWeatherHead(w io.Writer) {
	fmt.Fprintf(w, `%d simulated replicas behind %s, %d users in conversations, policy penstock.
One replica after the other falls ill. Retried is what went elsewhere after a failure
there; lost is what a client saw as an error.

`, len(d.replicas), d.server.GatewayURL(), demoUsers)
}

func printWeather(w io.Writer, ev *weatherEvent) {
	seen := "no change"
	if ev.SeenMS != nil {
		seen = fmt.Sprintf("after %s: %s", milliText(*ev.SeenMS), ev.Seen)
	}
	lost := "none"
	if len(ev.Lost) > 0 {
		var parts []string
		for _, k := range keysInOrder(ev.Lost) {
			parts = append(parts, fmt.Sprintf("%d %s", ev.Lost[k], k))
		}
		lost = strings.Join(parts, ", ")
	}
	fmt.Fprintf(w, "%5.0f s  %s %s for %.0f s\n         router saw  %s\n         requests    %d in all, %d ended there, %d retried elsewhere, lost: %s\n",
		ev.AtS, ev.Replica, ev.Event, ev.ForS, seen, ev.Requests, ev.Sent, ev.Retried, lost)
	if ev.TTFT != nil {
		fmt.Fprintf(w, "         TTFT        p50 %s, p99 %s\n", milliText(ev.TTFT.P50), milliText(ev.TTFT.P99))
	}
	fmt.Fprintln(w)
}

func printWeatherEnd(w io.Writer, p *demoPhase) {
	fmt.Fprintf(w, "%s requests in %.0f s, %d lost, hit ratio %.0f %%, TTFT p50 %s, p99 %s\n",
		withCommas(p.Requests), p.DurationS, p.Errors, p.HitRatio*100, milliText(p.TTFT.P50), milliText(p.TTFT.P99))
	if p.Errors > 0 {
		fmt.Fprintln(w, "A stream that has begun cannot be moved: what broke it is passed on and recorded.")
	}
}
