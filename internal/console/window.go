// SPDX-License-Identifier: Apache-2.0

package console

import (
	"math"

	"github.com/penstock-project/penstock/internal/route"
)

// Buckets of a histogram of milliseconds: the first ends at 0.1 ms, each next one
// is a tenth wider, the last one reaches past a quarter of an hour. A quantile is
// off by 5 % at most.
const (
	firstBucketMS = 0.1
	bucketGrowth  = 1.1
	numBuckets    = 172
)

var logGrowth = math.Log(bucketGrowth)

type histogram struct {
	n [numBuckets]uint32
}

func (h *histogram) add(ms float64) {
	i := 0
	if ms > firstBucketMS {
		i = min(numBuckets-1, 1+int(math.Log(ms/firstBucketMS)/logGrowth))
	}
	h.n[i]++
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.n {
		h.n[i] += n
	}
}

// quantile returns the middle of the bucket in which the q-quantile lies, NaN
// where nothing was added.
func (h *histogram) quantile(q float64) float64 {
	total := uint64(0)
	for _, n := range h.n {
		total += uint64(n)
	}
	if total == 0 {
		return math.NaN()
	}
	rank, seen := uint64(math.Ceil(q*float64(total))), uint64(0)
	for i, n := range h.n {
		if seen += uint64(n); seen >= max(1, rank) {
			return firstBucketMS * math.Pow(bucketGrowth, float64(i)-0.5)
		}
	}
	return math.NaN()
}

// second is what ended in one second.
type second struct {
	at                       int64 // seconds of the wall clock; 0 nothing
	requests, failed         int
	ttft                     histogram
	queue                    histogram // held by the router
	prompt, output           int64     // tokens, as far as known
	known, cached            int64     // prompt tokens whose cached part is known, and that part
	seen, meanCached, bestly float64   // prompt tokens of decisions over candidates, and what those held
}

func (s *second) add(b *route.Brief) {
	s.requests++
	if failedKind(b.Kind) {
		s.failed++
	}
	if b.TTFTMS >= 0 {
		s.ttft.add(b.TTFTMS)
	}
	s.queue.add(b.QueueMS)
	s.prompt += int64(max(0, b.Prompt))
	s.output += int64(max(0, b.Output))
	if b.Cached >= 0 && b.Prompt > 0 {
		s.known += int64(b.Prompt)
		s.cached += int64(b.Cached)
	}
	if b.BestCached >= 0 && b.Prompt > 0 {
		p := float64(b.Prompt)
		s.seen += p
		s.meanCached += min(p, b.MeanCached)
		// What was found was there, whatever the router believed.
		s.bestly += min(p, max(b.BestCached, float64(b.Cached)))
	}
}

// windowSeconds is how far back a window looks at most.
const windowSeconds = 60

// window holds the last minute of one pool by seconds.
type window struct {
	s [windowSeconds]second
}

// at returns the second, emptied where it held an older one.
func (w *window) at(now int64) *second {
	s := &w.s[now%windowSeconds]
	if s.at != now {
		*s = second{at: now}
	}
	return s
}

// over sums the last n whole seconds before now, and the present one.
func (w *window) over(now int64, n int) *second {
	var sum second
	for i := range w.s {
		s := &w.s[i]
		if s.at == 0 || s.at > now || s.at <= now-int64(n) {
			continue
		}
		sum.requests += s.requests
		sum.failed += s.failed
		sum.ttft.merge(&s.ttft)
		sum.queue.merge(&s.queue)
		sum.prompt += s.prompt
		sum.output += s.output
		sum.known += s.known
		sum.cached += s.cached
		sum.seen += s.seen
		sum.meanCached += s.meanCached
		sum.bestly += s.bestly
	}
	return &sum
}

// ratio is a/b, NaN where b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// failedKind reports whether a request that ended so failed for reasons that are
// not its client's.
func failedKind(kind string) bool {
	switch kind {
	case "", "ok", "client_gone", "client_error":
		return false
	}
	return true
}
