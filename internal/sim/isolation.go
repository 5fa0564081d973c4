// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"strconv"

	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/workload"
)

// MostIsolated is the largest number of tenants, and of users of one, that can be
// asked for.
const MostIsolated = 10_000

// Isolation is what the settings of cache_salt cost, measured on the same requests
// under the penstock policy. Each conversation belongs to one user; which, is drawn
// with equal chances. Tenants use the same apps, so they have all system prompts in
// common: where each has its own, parting them costs nothing, so these figures are
// what it costs at most.
type Isolation struct {
	Tenants int            `json:"tenants"`
	Users   int            `json:"users_per_tenant"`
	Draws   int            `json:"draws"` // of traffic, over which the figures are means
	Runs    []IsolationRun `json:"runs"`  // shared, tenant, user
}

// IsolationRun is one setting of cache_salt.
type IsolationRun struct {
	CacheSalt string  `json:"cache_salt"`  // shared, tenant or user
	Hit       float64 `json:"hit"`         // share of prompt tokens that replicas found
	Lost      float64 `json:"hit_lost"`    // that of shared less Hit, draw by draw
	Lost95    float64 `json:"hit_lost_95"` // half of the 95 % interval of Lost
	Ceiling   float64 `json:"ceiling"`     // what one endless cache finds
	// Computed is how many prompt tokens replicas compute over those that they compute
	// with shared caches.
	Computed float64 `json:"computed"`
	TTFT     float64 `json:"ttft_mean_ms"`
}

// student holds the 97.5 % points of Student's distribution for 2 to 5 draws.
var student = [...]float64{2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}

// isolate plays several draws of conversations on the fleet of c once for each
// setting. tenants and users count as at least one.
func isolate(c Config, shared, load float64, requests, tenants, users int) (*Isolation, error) {
	out := &Isolation{Tenants: max(1, tenants), Users: max(1, users), Draws: min(max(20_000/max(1, requests), 2), 5)}
	names := []string{"shared", "tenant", "user"}
	lost := make([][]float64, len(names))
	for _, name := range names {
		out.Runs = append(out.Runs, IsolationRun{CacheSalt: name})
	}
	n, seed := float64(out.Draws), c.Seed
	for i := range out.Draws {
		c.Seed = seed + uint64(i)
		t, _, _, err := conversations(c.Profile, c.Replicas, shared, load, requests, c.Seed)
		if err != nil {
			return nil, err
		}
		whole := 0.0
		for k, name := range names {
			u := out.salted(t, name, c.Seed)
			r := RunContender(c, Contender{Name: Ours, Policy: route.PolicyPenstock}, u)
			if k == 0 {
				whole = r.HitRatio
			}
			lost[k] = append(lost[k], whole-r.HitRatio)
			run := &out.Runs[k]
			run.Hit += r.HitRatio / n
			run.Ceiling += u.Ceiling() / n
			run.TTFT += r.TTFTMean / n
		}
	}
	for k := range out.Runs {
		run := &out.Runs[k]
		run.Lost = out.Runs[0].Hit - run.Hit
		run.Computed = (1 - run.Hit) / math.Max(1e-9, 1-out.Runs[0].Hit)
		sum := 0.0
		for _, v := range lost[k] {
			sum += (v - run.Lost) * (v - run.Lost)
		}
		run.Lost95 = student[out.Draws] * math.Sqrt(sum/(n-1)/n)
	}
	return out, nil
}

// salted returns t as it is under a setting. One tenant, or one user of each, parts
// nothing, so its salt is that of the wider setting.
func (o *Isolation) salted(t *Traffic, setting string, seed uint64) *Traffic {
	if setting == "shared" {
		return t
	}
	return t.Salted(func(n int) string {
		salt := ""
		if o.Tenants > 1 {
			salt = "tenant " + strconv.Itoa(workload.NewRand(seed, "tenant", uint64(n)).IntN(o.Tenants))
		}
		if setting == "user" && o.Users > 1 {
			salt += " user " + strconv.Itoa(workload.NewRand(seed, "user", uint64(n)).IntN(o.Users))
		}
		return salt
	})
}
