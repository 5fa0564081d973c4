// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
)

// Way is how a variant that is seldom asked for is kept.
type Way string

// Ways to keep a variant, from the quickest first answer to the slowest.
const (
	WayWarm    Way = "warm"    // a replica of its own that never stops
	WayAdapter Way = "adapter" // a LoRA adapter on base replicas that are shared
	WaySleep   Way = "sleep"   // weights in host memory, the accelerator free
	WayCold    Way = "cold"    // no replica while nobody asks
)

// PortfolioOptions say what the ways cost. Times in seconds.
type PortfolioOptions struct {
	Span  float64 // of the arrivals that are judged
	Start float64 // of a cold replica
	Wake  float64 // of a sleeping one; 0: the engine cannot sleep
	// Slots is how many adapters one base replica serves at a time; 0: the variants
	// are no adapters.
	Slots       int
	AdapterLoad float64 // of an adapter that is not in a slot
	ReplicaRPS  float64 // requests a second that one base replica carries
	// MaxWait is the longest wait for the first answer that is acceptable for 99 % of
	// the requests after a pause; 0: any.
	MaxWait float64
	// MissPrice is what one request that meets a start is worth, in seconds of a
	// replica; it decides how long a cold variant is kept.
	MissPrice float64
}

// Kept is what one way makes of one variant.
type Kept struct {
	Way       Way     `json:"way"`
	KeepS     float64 `json:"keep_s,omitempty"` // after the last request
	GPUHours  float64 `json:"replica_hours"`
	Share     float64 `json:"share_of_warm"` // of the replica-hours of a replica that never stops
	Cold      float64 `json:"cold_share"`    // of the requests: they meet a start
	FirstP99  float64 `json:"first_p99_s"`   // wait of requests after a pause of a minute or more
	Starts    float64 `json:"starts_per_day"`
	Allowed   bool    `json:"allowed"` // FirstP99 within the longest wait
	firstN    int
	coldCount int
}

// VariantChoice is one variant with its ways and the cheapest that is allowed.
type VariantChoice struct {
	Name     string  `json:"name"`
	Requests int     `json:"requests"`
	PerDay   float64 `json:"requests_per_day"`
	Sessions float64 `json:"sessions_per_day"` // requests after a pause of a minute or more
	Ways     []Kept  `json:"ways"`
	Best     Way     `json:"best"`
	// BestFull is the cheapest where the variant is a model of its own.
	BestFull Way `json:"best_if_not_an_adapter"`
}

// Portfolio is the answer for all variants.
type Portfolio struct {
	Variants []VariantChoice `json:"variants"`
	// Totals is every way applied to all, then the choice per variant.
	Totals []Kept  `json:"totals"`
	Mixed  Kept    `json:"chosen"`      // cheapest way of each
	Full   Kept    `json:"chosen_full"` // the same without adapters
	Bases  float64 `json:"base_replicas"`
}

// firstPause separates requests that open a session, in seconds.
const firstPause = 60.0

// KeepFor plays one variant that is started by a request, takes start seconds, and is
// kept for keep seconds after its last request, never less than until it is ready and
// keep seconds more. arrivals are in seconds, rising.
func KeepFor(arrivals []float64, start, keep, span float64) Kept {
	k := playKept(arrivals, start, span, func(float64) float64 { return keep })
	k.KeepS = keep
	return k
}

// playKept is KeepFor with a time to keep that may be another after every request: keep
// is told how long there was none before, infinity at the first.
func playKept(arrivals []float64, start, span float64, keep func(pause float64) float64) Kept {
	k := Kept{}
	end, begin, ready, busy := math.Inf(-1), 0.0, 0.0, 0.0
	var first []float64
	last := math.Inf(-1)
	for _, t := range arrivals {
		wait := 0.0
		if t > end {
			if !math.IsInf(end, -1) {
				busy += end - begin
			}
			begin, ready = t, t+start
			k.Starts++
			wait = start
		} else if t < ready {
			wait = ready - t
		}
		if wait > 0 {
			k.coldCount++
		}
		if t-last >= firstPause {
			first = append(first, wait)
		}
		end = math.Max(t, ready) + keep(t-last)
		last = t
	}
	if !math.IsInf(end, -1) {
		busy += math.Min(end, math.Max(span, begin)) - begin
	}
	k.finish(busy, first, len(arrivals), span)
	return k
}

func (k *Kept) finish(busy float64, first []float64, requests int, span float64) {
	k.GPUHours = busy / 3600
	k.Share = busy / math.Max(1, span)
	k.Cold = float64(k.coldCount) / math.Max(1, float64(requests))
	k.Starts /= math.Max(1e-9, span/86400)
	k.firstN = len(first)
	if len(first) > 0 {
		slices.Sort(first)
		k.FirstP99 = first[int(math.Ceil(0.99*float64(len(first))))-1]
	}
}

// keepTimes are the times for which a variant may be kept, in seconds; none is
// shorter than a start, for else a variant spends more time starting than serving.
func keepTimes(start float64) []float64 {
	out := []float64{math.Max(60, start)}
	for _, k := range []float64{120, 300, 600, 1200, 1800, 3600, 7200, 14400} {
		if k > out[0] {
			out = append(out, k)
		}
	}
	return out
}

// BestKeep is the cheapest time to keep a variant: replica time and price seconds
// for every request that meets a start.
func BestKeep(arrivals []float64, start, price, span float64) Kept {
	best, least := Kept{}, math.Inf(1)
	for _, keep := range keepTimes(start) {
		k := KeepFor(arrivals, start, keep, span)
		if c := k.GPUHours*3600 + price*float64(k.coldCount); c < least {
			best, least = k, c
		}
	}
	return best
}

// LearnedKeep plays a variant whose keep time is chosen anew at every pause by the
// pauses that were seen before: none is known beforehand.
func LearnedKeep(arrivals []float64, start, price, span float64) Kept {
	keeps := []float64{60, 90, 120, 180, 300, 450, 600, 900, 1200, 1800, 2700, 3600}
	cost := make([]float64, len(keeps))
	return playKept(arrivals, start, span, func(pause float64) float64 {
		if !math.IsInf(pause, 1) {
			for i, keep := range keeps {
				cost[i] += math.Min(pause, keep)
				if pause > keep {
					cost[i] += price + start
				}
			}
		}
		return keeps[slices.Index(cost, slices.Min(cost))]
	})
}
