// SPDX-License-Identifier: Apache-2.0

package load

import (
	"math"
	"time"
)

// Histogram counts durations in buckets that grow by one percent each, so that a
// quantile is right to half a percent and millions of gaps take a few kilobytes.
// The zero value is ready. It is not safe for concurrent use.
type Histogram struct {
	n      uint64
	sum    float64 // seconds
	max    time.Duration
	counts []uint64
}

const (
	histLeast  = 1e-6 // seconds; the bound of bucket 0
	histGrowth = 1.01
	histMax    = 2560 // buckets: up to about 30 hours
)

var histLog = math.Log(histGrowth)

// Add counts d.
func (h *Histogram) Add(d time.Duration) {
	s := d.Seconds()
	h.n++
	h.sum += s
	h.max = max(h.max, d)
	i := 0
	if s > histLeast {
		i = min(int(math.Log(s/histLeast)/histLog)+1, histMax-1)
	}
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]uint64, i+1-len(h.counts))...)
	}
	h.counts[i]++
}

// Merge adds the counts of o.
func (h *Histogram) Merge(o *Histogram) {
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
	if len(o.counts) > len(h.counts) {
		h.counts = append(h.counts, make([]uint64, len(o.counts)-len(h.counts))...)
	}
	for i, c := range o.counts {
		h.counts[i] += c
	}
}

// Count returns how many durations were counted.
func (h *Histogram) Count() uint64 { return h.n }

// Mean returns the exact mean; 0 where nothing was counted.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / float64(h.n) * 1e9)
}

// Quantile returns the q-quantile, 0 <= q <= 1; 0 where nothing was counted.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(h.n)))
	seen := uint64(0)
	for i, c := range h.counts {
		if seen += c; seen >= max(rank, 1) {
			// The geometric middle of the bucket, but never above the maximum.
			mid := histLeast * math.Pow(histGrowth, float64(i)-0.5)
			return min(time.Duration(mid*1e9), h.max)
		}
	}
	return h.max
}
