// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"
)

// The page needs nothing but itself: no script, no address, no font.
const pageHead = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Soak of penstock</title>
<style>
:root { color-scheme: light dark; --ink: #1d2329; --soft: #6b7681; --line: #d5dae0; --a: #0b62c4; --b: #b4530a; --ground: #fff }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #98a3ae; --line: #39424b; --a: #6cb0ff; --b: #f0a35e; --ground: #14191e } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1rem; margin: 1.6rem 0 .2rem }
pre { overflow-x: auto; font-size: 12px; border: 1px solid var(--line); padding: .8rem }
svg { width: 100%; height: auto; display: block } svg text { font-size: 11px; fill: var(--soft) }
.grid { stroke: var(--line) } .s0 { stroke: var(--a) } .s1 { stroke: var(--b) } polyline { fill: none; stroke-width: 1.5 }
.fit { stroke-dasharray: 5 4; stroke-width: 1 } .k0 { color: var(--a) } .k1 { color: var(--b) } p { margin: .2rem 0; color: var(--soft) }
</style></head><body>
<h1>Soak of penstock</h1>
`

const plotWidth, plotHeight, plotLeft, plotBottom = 900.0, 190.0, 56.0, 22.0

// soakPage plots every series of every process, with the slope that judges it.
func soakPage(subjects []*subject, report string) string {
	var b strings.Builder
	b.WriteString(pageHead)
	fmt.Fprintf(&b, "<p>A series is flat if its slope (the median of the slopes between all pairs of samples, the first fifth of the run and at most two minutes left out; dashed) adds at most %.0f %% of its median over the run, or its slack.</p>\n", maxGrowth*100)
	for i, u := range subjects {
		fmt.Fprintf(&b, `<p><b class="k%d">&#9632; %s</b></p>`+"\n", i%2, html.EscapeString(u.name))
	}
	for _, s := range soakSeries {
		fmt.Fprintf(&b, "<h2>%s</h2>\n", html.EscapeString(strings.TrimSpace(s.name+" "+s.unit)))
		for _, u := range subjects {
			t := s.judge(u.samples)
			verdict := "flat"
			if !t.flat {
				verdict = "not flat"
			}
			fmt.Fprintf(&b, "<p>%s: median %.0f, slope %+.1f an hour, slack %.0f: %s</p>\n", html.EscapeString(u.name), t.median, t.slope*3600, s.slack, verdict)
		}
		plot(&b, s, subjects)
	}
	fmt.Fprintf(&b, "<h2>Report</h2>\n<pre>%s</pre>\n</body></html>\n", html.EscapeString(report))
	return b.String()
}

// plot draws one series of all processes into one picture that begins at 0.
func plot(b *strings.Builder, s series, subjects []*subject) {
	top, end := 1.0, time.Second
	for _, u := range subjects {
		for _, h := range u.samples {
			top, end = max(top, s.of(h)), max(end, h.at)
		}
	}
	step := niceStep(top / 4)
	top = math.Ceil(top/step) * step
	x := func(at time.Duration) float64 {
		return plotLeft + (plotWidth-plotLeft-10)*at.Seconds()/end.Seconds()
	}
	y := func(v float64) float64 { return 8 + (plotHeight-plotBottom-8)*(1-v/top) }
	fmt.Fprintf(b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s over time">`+"\n", plotWidth, plotHeight, html.EscapeString(s.name))
	for v := 0.0; v <= top*1.001; v += step {
		fmt.Fprintf(b, `<line class="grid" x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f"/><text x="%.0f" y="%.1f" text-anchor="end">%g</text>`+"\n",
			plotLeft, plotWidth-10, y(v), y(v), plotLeft-6, y(v)+4, v)
	}
	for i := range 7 {
		at := end * time.Duration(i) / 6
		anchor := "middle"
		if i == 6 {
			anchor = "end"
		}
		fmt.Fprintf(b, `<text x="%.0f" y="%.0f" text-anchor="%s">%s</text>`+"\n", x(at), plotHeight-5, anchor, at.Round(time.Second))
	}
	for i, u := range subjects {
		fmt.Fprintf(b, `<polyline class="s%d" points="`, i%2)
		for _, h := range u.samples {
			fmt.Fprintf(b, "%.1f,%.1f ", x(h.at), y(s.of(h)))
		}
		b.WriteString(`"/>` + "\n")
		if t := s.judge(u.samples); t.to > t.from {
			fmt.Fprintf(b, `<line class="s%d fit" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", i%2,
				x(t.from), y(max(t.median-t.growth/2, 0)), x(t.to), y(min(t.median+t.growth/2, top)))
		}
	}
	b.WriteString("</svg>\n")
}

// niceStep is the next of 1, 2, 5, 10, ... above v.
func niceStep(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(max(v, 0.1))))
	for _, m := range []float64{1, 2, 5, 10} {
		if p*m >= v {
			return p * m
		}
	}
	return v
}
