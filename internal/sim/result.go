// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"sort"

	"github.com/penstock-project/penstock/internal/engine"
)

// Result is what one run measured. Times are in milliseconds, from the arrival at
// the router; means are over requests that ended well.
type Result struct {
	Policy   string `json:"policy,omitempty"`
	Requests int    `json:"requests"`
	Failed   int    `json:"failed"` // refused, too long for the fleet, or broken for good
	// Abandoned counts later turns of sessions whose request failed.
	Abandoned int `json:"abandoned,omitempty"`

	TTFTMean  float64 `json:"ttft_mean_ms"`
	TTFTP50   float64 `json:"ttft_p50_ms"`
	TTFTP99   float64 `json:"ttft_p99_ms"`
	E2EMean   float64 `json:"e2e_mean_ms"`
	TPOT      float64 `json:"tpot_ms"`   // mean time between later tokens, over requests
	HitRatio  float64 `json:"hit_ratio"` // of prompt tokens, as the replicas found it
	SLOShare  float64 `json:"slo_share"` // of all requests
	Imbalance float64 `json:"imbalance"` // busy time of the busiest replica, or rank, over the mean
	// Crowding is the number of requests at the fullest replica, or rank, over the mean,
	// in the mean over the run while there are at least two at each.
	Crowding   float64 `json:"crowding"`
	Throughput float64 `json:"requests_per_s"`
	OutputRate float64 `json:"output_tokens_per_s"`

	Preemptions int64 `json:"preemptions"`
	// AdapterLoads counts LoRA adapters that replicas loaded.
	AdapterLoads int64 `json:"adapter_loads,omitempty"`
	// AdapterEvictions counts those of them that pushed another adapter out.
	AdapterEvictions int64   `json:"adapter_evictions,omitempty"`
	Retried          int     `json:"retried"`
	Held             int     `json:"held"` // requests that waited in the router's queue
	MaxHeld          float64 `json:"max_held_ms"`

	// Switched counts, by mechanism, how often routers found that it harmed and
	// switched it off for a while.
	Switched map[string]uint64 `json:"switched_off,omitempty"`

	// Overlaps counts how often routers found that a replica computes several prompts at
	// a time and held nothing for it from then on.
	Overlaps uint64 `json:"overlaps,omitempty"`

	// Ranks is nil where replicas have one rank each.
	Ranks *RankResult `json:"ranks,omitempty"`

	// The router's view beside the truth.
	PredictedHit  float64 `json:"predicted_hit_ratio"` // expected at the pick
	InFlightError float64 `json:"in_flight_error"`     // mean difference to the replicas, a replica

	// Tenants holds the mean TTFT by tenant, in order of name.
	Tenants []TenantResult `json:"tenants,omitempty"`

	Seconds float64 `json:"seconds"` // virtual time of the run
	// Steady is the rate at which requests ended between the first and the last
	// fifth of the run: its throughput without start and end.
	Steady float64 `json:"-"`
}

// TenantResult is what one tenant saw.
type TenantResult struct {
	Tenant   string  `json:"tenant"`
	Requests int     `json:"requests"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	HitRatio float64 `json:"hit_ratio"` // of prompt tokens, as the replicas found it
}

// meter collects the requests of a run.
type meter struct {
	slo     engine.SLO
	ttft    []float64 // ms
	ends    []float64 // seconds
	e2e     float64
	tpot    float64
	tpots   int
	good    int
	failed  int
	unsent  int
	prompt  int64
	cached  int64
	expect  int64
	output  int64
	tenants map[string]*tenantSum
	diff    float64 // sum of in-flight differences
	diffs   int
	crowd   float64 // sum of samples
	crowds  int
	held    int
	maxHeld float64 // ms
	retried int
}

type tenantSum struct {
	n              int
	ttft           float64
	prompt, cached int64
}

// done books a request that ended well at the given second of the run; times in
// seconds.
func (m *meter) done(tenant string, at, ttft, e2e float64, prompt, cached, expected, output int) {
	m.ttft = append(m.ttft, ttft*1e3)
	m.ends = append(m.ends, at)
	m.e2e += e2e * 1e3
	itl := 0.0
	if output > 1 {
		itl = (e2e - ttft) / float64(output-1)
		m.tpot += itl * 1e3
		m.tpots++
	}
	if ttft <= m.slo.TTFT && itl <= m.slo.ITL {
		m.good++
	}
	m.prompt += int64(prompt)
	m.cached += int64(cached)
	m.expect += int64(expected)
	m.output += int64(output)
	if tenant != "" {
		s := m.tenants[tenant]
		if s == nil {
			s = &tenantSum{}
			m.tenants[tenant] = s
		}
		s.n++
		s.ttft += ttft * 1e3
		s.prompt += int64(prompt)
		s.cached += int64(cached)
	}
}

func (m *meter) result(seconds float64) Result {
	n := float64(max(1, len(m.ttft)))
	r := Result{
		Requests: len(m.ttft), Failed: m.failed, Abandoned: m.unsent, E2EMean: m.e2e / n, TPOT: m.tpot / float64(max(1, m.tpots)),
		HitRatio: share(m.cached, m.prompt), PredictedHit: share(m.expect, m.prompt),
		SLOShare:   float64(m.good) / float64(max(1, len(m.ttft)+m.failed)),
		Throughput: n / max(seconds, 1e-9), OutputRate: float64(m.output) / max(seconds, 1e-9),
		Crowding:      m.crowd / float64(max(1, m.crowds)),
		InFlightError: m.diff / float64(max(1, m.diffs)), Retried: m.retried,
		Held: m.held, MaxHeld: m.maxHeld, Seconds: seconds,
	}
	if k := len(m.ends); k >= 10 {
		a, b := k/5, k*4/5
		r.Steady = float64(b-a) / max(m.ends[b]-m.ends[a], 1e-9)
	}
	sum := 0.0
	for _, v := range m.ttft {
		sum += v
	}
	r.TTFTMean = sum / n
	sort.Float64s(m.ttft)
	r.TTFTP50, r.TTFTP99 = quantile(m.ttft, 0.5), quantile(m.ttft, 0.99)
	names := make([]string, 0, len(m.tenants))
	for t := range m.tenants {
		names = append(names, t)
	}
	sort.Strings(names)
	for _, t := range names {
		s := m.tenants[t]
		r.Tenants = append(r.Tenants, TenantResult{Tenant: t, Requests: s.n, TTFTMean: s.ttft / float64(s.n), HitRatio: share(s.cached, s.prompt)})
	}
	return r
}

func share(part, whole int64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) / float64(whole)
}

// quantile returns the q-quantile of sorted values, 0 where there are none.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
