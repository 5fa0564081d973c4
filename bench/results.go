// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"time"
)

// reference is the contender that ratios are taken to.
const reference = "nginx"

// results holds every measurement by work, contender and repeat.
type results struct {
	cells map[[2]string]map[int]measured
}

func (r *results) add(repeat int, work, contender string, m measured) {
	if r.cells == nil {
		r.cells = map[[2]string]map[int]measured{}
	}
	k := [2]string{work, contender}
	if r.cells[k] == nil {
		r.cells[k] = map[int]measured{}
	}
	r.cells[k][repeat] = m
}

// row is one line of the result, medians over the repeats. Figures that do not
// exist are null.
type row struct {
	Work      string `json:"work"`
	Contender string `json:"contender"`
	// CPU is in microseconds per request, or per chunk of a stream.
	CPU    *float64 `json:"cpu_us"`
	CPUMin *float64 `json:"cpu_us_min"`
	CPUMax *float64 `json:"cpu_us_max"`
	// Ratio is the median of the ratios to nginx in the same repeat.
	Ratio *float64 `json:"ratio_to_nginx"`
	// P50 and P99 are of a request, from its due time in the open loop, or of a chunk.
	P50 float64  `json:"p50_ms"`
	P99 float64  `json:"p99_ms"`
	RSS *float64 `json:"rss_mb"`
	// Growth is how much memory the process took during the work.
	Growth *float64 `json:"growth_mb"`
	Rate   float64  `json:"per_second"`
	// Each is the memory that a stream took while all were open.
	Each *float64 `json:"kib_per_stream,omitempty"`
	// Slow is how many requests of all repeats took more than half a second.
	Slow *int `json:"slow,omitempty"`
}

// printed is the order of the works in the result, which is not that of the runs.
var printed = []string{"chat-2k", "chat-2k-open", "sse-chunk", "sse-chunk-500", "prompt-400k", "index-16k",
	"streams-9000", "streams-10000-h2", "crowd-10000-h2", "frozen-5s"}

// rows returns the medians by work and contender.
func (r *results) rows() []row {
	var out []row
	for _, w := range printed {
		ref := r.cells[[2]string{w, reference}]
		for _, c := range contenderOrder {
			cell := r.cells[[2]string{w, c}]
			if cell == nil {
				continue
			}
			var cpu, ratio, p50, p99, rss, grown, rate, each []float64
			slow := 0
			for _, rep := range slices.Sorted(maps.Keys(cell)) {
				m := cell[rep]
				slow += m.slow
				p50, p99, rate = append(p50, m.p50), append(p99, m.p99), append(rate, m.rate)
				if m.cpu < 0 {
					continue
				}
				if m.each > 0 {
					each = append(each, m.each)
				}
				cpu, rss, grown = append(cpu, m.cpu), append(rss, m.rss), append(grown, m.grown)
				if n, ok := ref[rep]; ok && n.cpu > 0 {
					ratio = append(ratio, m.cpu/n.cpu)
				}
			}
			out = append(out, row{
				Work: w, Contender: c, CPU: median(cpu, 1), CPUMin: least(cpu), CPUMax: most(cpu), Ratio: median(ratio, 2),
				P50: *median(p50, 3), P99: *median(p99, 3), RSS: median(rss, 1), Growth: median(grown, 1), Rate: *median(rate, 1), Each: median(each, 1),
			})
			if w == "frozen-5s" {
				out[len(out)-1].Slow = &slow
			}
		}
	}
	return out
}

// median returns the middle value rounded to digits, nil where there is none.
func median(v []float64, digits int) *float64 {
	if len(v) == 0 {
		return nil
	}
	s := slices.Sorted(slices.Values(v))
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (m + s[len(s)/2-1]) / 2
	}
	p := math.Pow(10, float64(digits))
	m = math.Round(m*p) / p
	return &m
}

func least(v []float64) *float64 {
	if len(v) == 0 {
		return nil
	}
	return median([]float64{slices.Min(v)}, 1)
}

func most(v []float64) *float64 {
	if len(v) == 0 {
		return nil
	}
	return median([]float64{slices.Max(v)}, 1)
}

func (r *results) writeJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		Schema string `json:"schema"`
		Rows   []row  `json:"rows"`
	}{"penstock/bench/v1", r.rows()})
}

// headings explain the works to people.
var headings = map[string]string{
	"chat-2k":          "chat-2k: 2 KiB chat request, closed loop, 8 clients; CPU us per request",
	"chat-2k-open":     "chat-2k-open: the same at 500 requests/s, open loop; CPU us per request",
	"sse-chunk":        "sse-chunk: 50 streams, a chunk every 10 ms; CPU us per chunk, delay of a chunk",
	"sse-chunk-500":    "sse-chunk-500: 500 streams, a chunk every 50 ms; CPU us per chunk, delay of a chunk",
	"prompt-400k":      "prompt-400k: 400 KB prompt, closed loop, 4 clients; CPU us per request",
	"streams-9000":     "streams-9000: 9,000 streams over HTTP/1.1, a chunk every 2 s; CPU us per chunk, delay of a chunk",
	"streams-10000-h2": "streams-10000-h2: 10,000 streams over HTTP/2, a chunk every 2 s; CPU us per chunk, delay of a chunk",
	"crowd-10000-h2":   "crowd-10000-h2: 10,000 requests at the same moment over HTTP/2; CPU us per request",
	"frozen-5s":        "frozen-5s: 200 requests/s while one of four engines is frozen for 5 s; CPU us per request",
	"index-16k":        "index-16k: 20,000 different 16 KiB prompts, 16 clients; CPU us per request, memory",
}

func (r *results) writeTable(w io.Writer, took time.Duration) error {
	last := ""
	for _, row := range r.rows() {
		if row.Work != last {
			last = row.Work
			fmt.Fprintf(w, "\n%s\n%-14s %26s %9s %10s %10s %10s %10s %11s\n",
				headings[row.Work], "", "CPU us (min..max)", "x nginx", "p50 ms", "p99 ms", "RSS MiB", "grew MiB", "per second")
		}
		cpu := "-"
		if row.CPU != nil {
			cpu = fmt.Sprintf("%.1f (%.1f..%.1f)", *row.CPU, *row.CPUMin, *row.CPUMax)
		}
		fmt.Fprintf(w, "%-14s %26s %9s %10.2f %10.2f %10s %10s %11.0f\n", row.Contender, cpu,
			figure(row.Ratio, 2), row.P50, row.P99, figure(row.RSS, 0), figure(row.Growth, 0), row.Rate)
		if row.Slow != nil {
			fmt.Fprintf(w, "%-14s %26s\n", "", fmt.Sprintf("%d took more than 0.5 s", *row.Slow))
		}
		if row.Each != nil {
			fmt.Fprintf(w, "%-14s %26s\n", "", fmt.Sprintf("%.1f KiB a stream", *row.Each))
		}
	}
	_, err := fmt.Fprintf(w, "\nMedians of the repeats, all contenders interleaved, in %s. A ratio is good to about 20 %%.\n", took.Round(time.Second))
	return err
}

func figure(v *float64, digits int) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, *v)
}
