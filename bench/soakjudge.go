// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// series is one figure that must stay flat.
type series struct {
	name, unit string
	of         func(held) float64
	// slack is how much the figure may grow over the run whatever its size: what a
	// collector, a pool of buffers or one more stream moves it by.
	slack float64
}

var soakSeries = []series{
	{"memory", "MiB", func(h held) float64 { return h.rss }, 16},
	{"heap", "MiB", func(h held) float64 { return h.heap }, 16},
	{"goroutines", "", func(h held) float64 { return h.goroutines }, 50},
	{"descriptors", "", func(h held) float64 { return h.descriptors }, 50},
	{"connections to replicas", "", func(h held) float64 { return h.open }, 50},
	{"in flight", "requests", func(h held) float64 { return h.inFlight }, 50},
}

// maxGrowth is the part of its median by which a figure may grow over the run.
const maxGrowth = 0.10

// trend is what a series does over the run, its beginning left out.
type trend struct {
	median, low, high float64
	slope             float64 // a second
	growth            float64 // slope x the length that is looked at
	from, to          time.Duration
	flat              bool
}

// settled leaves out the first fifth, at most two minutes: pools and caches fill.
func settled(samples []held) []held {
	if len(samples) == 0 {
		return nil
	}
	begin := min(samples[len(samples)-1].at/5, 2*time.Minute)
	return samples[slices.IndexFunc(samples, func(h held) bool { return h.at >= begin }):]
}

// judge takes the slope of Theil and Sen, the median of the slopes between all pairs
// of samples, which a few spikes do not move. A series is flat if that slope, kept up
// over the run, adds at most maxGrowth of the median or the series' slack.
func (s series) judge(samples []held) trend {
	run := settled(samples)
	if len(run) < 10 {
		return trend{flat: true}
	}
	values, slopes := make([]float64, 0, len(run)), make([]float64, 0, len(run)*len(run)/2)
	for i, a := range run {
		values = append(values, s.of(a))
		for _, b := range run[i+1:] {
			if d := (b.at - a.at).Seconds(); d > 0 {
				slopes = append(slopes, (s.of(b)-s.of(a))/d)
			}
		}
	}
	slices.Sort(values)
	slices.Sort(slopes)
	t := trend{median: quantile(values, 0.5), low: values[0], high: values[len(values)-1], slope: quantile(slopes, 0.5),
		from: run[0].at, to: run[len(run)-1].at}
	t.growth = t.slope * (t.to - t.from).Seconds()
	t.flat = t.growth <= max(maxGrowth*t.median, s.slack)
	return t
}

// faults says what a client or an operator could not accept.
func (u *subject) faults() []string {
	var out []string
	for _, s := range soakSeries {
		if t := s.judge(u.samples); !t.flat {
			out = append(out, fmt.Sprintf("%s grows by %.1f %s an hour", s.name, t.slope*3600, s.unit))
		}
	}
	if u.after.inFlight != 0 || u.after.ledger != 0 {
		out = append(out, fmt.Sprintf("the ledger is not 0 at the end: %.0f at the door, %.0f in the pool", u.after.inFlight, u.after.ledger))
	}
	if n := u.failed.Load(); n > 0 {
		out = append(out, fmt.Sprintf("%d requests failed: %s", n, u.failures()))
	}
	if len(settled(u.samples)) < 10 {
		out = append(out, fmt.Sprintf("%d samples are too few to see a slope", len(u.samples)))
	}
	return out
}

// text is the report on one process.
func (s *soak) text(u *subject, took time.Duration) string {
	var b strings.Builder
	cpu := 0.0
	if n := len(u.samples); n > 1 {
		cpu = (u.samples[n-1].cpu - u.samples[0].cpu) / (u.samples[n-1].at - u.samples[0].at).Seconds()
	}
	streams := s.streams / len(s.stack.subjects)
	fmt.Fprintf(&b, "%s: %d streams at a time for %s; %d streams whole, %d left by their clients, %d cut by the death of their replica; %d short requests; %d chunks; %d failed; %.2f cores\n",
		u.name, streams, took.Round(time.Second), u.streams.Load(), u.left.Load(), u.cut.Load(), u.requests.Load(), u.chunks.Load(), u.failed.Load(), cpu)
	fmt.Fprintf(&b, "  %-24s %9s %9s %9s %9s %9s %12s\n", "", "before", "median", "least", "most", "after", "an hour")
	for _, x := range soakSeries {
		t := x.judge(u.samples)
		verdict := "flat"
		if !t.flat {
			verdict = "NOT FLAT"
		}
		fmt.Fprintf(&b, "  %-24s %9.0f %9.0f %9.0f %9.0f %9.0f %+12.1f  %s\n", strings.TrimSpace(x.name+" "+x.unit),
			x.of(u.before), t.median, t.low, t.high, x.of(u.after), t.slope*3600, verdict)
	}
	fmt.Fprintf(&b, "  ledger at the end: %.0f at the door, %.0f in the pool\n", u.after.inFlight, u.after.ledger)
	for _, f := range u.faults() {
		fmt.Fprintf(&b, "  FOUND: %s\n", f)
	}
	return b.String()
}

// report writes samples, text and page, and says whether all is flat.
func (s *soak) report(took time.Duration) error {
	var all []string
	text := ""
	for _, u := range s.stack.subjects {
		tsv := "seconds\trss_mb\theap_mb\tgoroutines\tdescriptors\tconnections\tin_flight\tledger\tcpu_seconds\n"
		for _, h := range u.samples {
			tsv += fmt.Sprintf("%.0f\t%.1f\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.2f\n",
				h.at.Seconds(), h.rss, h.heap, h.goroutines, h.descriptors, h.open, h.inFlight, h.ledger, h.cpu)
		}
		if err := os.WriteFile(filepath.Join(s.out, "samples-"+u.name+".tsv"), []byte(tsv), 0o644); err != nil {
			return err
		}
		text += s.text(u, took)
		for _, f := range u.faults() {
			all = append(all, u.name+": "+f)
		}
	}
	fmt.Print(text)
	if err := os.WriteFile(filepath.Join(s.out, "report.txt"), []byte(text), 0o644); err != nil {
		return err
	}
	page := filepath.Join(s.out, "soak.html")
	if err := os.WriteFile(page, []byte(soakPage(s.stack.subjects, text)), 0o644); err != nil {
		return err
	}
	fmt.Println("plotted into", page)
	if all != nil {
		return fmt.Errorf("%w: %s", errFindings, strings.Join(all, "; "))
	}
	return nil
}
