// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"runtime"
	"sort"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/scalesim"
)

// scaleSuite is what `penstock sim scale -o json` prints.
type scaleSuite struct {
	Schema    string          `json:"schema"` // penstock/scale-suite/v1
	Seed      uint64          `json:"seed"`
	Policies  []scalePolicy   `json:"policies"` // means over the scenarios, least loss first
	Scenarios []scaleScenario `json:"scenarios"`
}

type scalePolicy struct {
	Policy       string  `json:"policy"`
	Loss         float64 `json:"loss"`
	SLO          float64 `json:"slo"`
	Cost         float64 `json:"cost_vs_clairvoyant"`
	ReplicaHours float64 `json:"replica_hours"`
	Reversals    float64 `json:"reversals_per_hour"`
	TTFTp99      float64 `json:"ttft_p99_ms"`
}

type scaleScenario struct {
	Name    string            `json:"name"`
	Class   string            `json:"class"`
	StartS  float64           `json:"start_s"`
	Results []scalesim.Result `json:"results"`
}

func simScaleCmd(e *Env) *cobra.Command {
	var seed uint64
	var n int
	var only []string
	c := &cobra.Command{
		Use:   "scale",
		Short: "Run scalers over drawn days of traffic in virtual time",
		Long: `Draw scenarios (days, ramps, steps, bursts, flash crowds, on-off, batch jobs, mixed;
replicas that take 30 to 900 s to start) and run Penstock's scaler, the scalers of
the field at their published defaults, and bounds that know the future.

Loss is replica-hours over the clairvoyant's plus 50 times every share of requests
under 99 % that misses its objectives. Scored time begins once a scaler can have
seen the traffic.`,
		Example: `  penstock sim scale --scenarios 8
  penstock sim scale --scenarios 32 --seed 40001 -o json`,
		Args: noArgs,
	}
	c.Flags().Uint64Var(&seed, "seed", 40001, "seed of the scenarios")
	c.Flags().IntVar(&n, "scenarios", 8, "how many to draw, 1 to 512")
	c.Flags().StringArrayVar(&only, "policy", nil, "run only policies whose name contains this (repeatable; bounds always run)")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if n < 1 || n > 512 {
			return usagef("", "--scenarios must be 1 to 512, not %d", n)
		}
		s := scaleSuite{Schema: "penstock/scale-suite/v1", Seed: seed, Scenarios: make([]scaleScenario, n)}
		var mu sync.Mutex
		done := 0
		err := inParallel(c.Context(), runtime.NumCPU(), n, func(i int) {
			s.Scenarios[i] = playScenario(scalesim.Draw(seed, i), only)
			mu.Lock()
			defer mu.Unlock()
			done++
			if tty, _ := e.Terminal(); tty {
				fmt.Fprintf(e.Stderr, "\rpenstock: %d of %d scenarios", done, n)
			}
		})
		if err != nil {
			return err
		}
		s.Policies = meanPolicies(s.Scenarios)
		if *out == "json" {
			return printJSON(e.Stdout, s)
		}
		printScaleSuite(e.Stdout, &s)
		return nil
	}
	return c
}

func playScenario(sc *scalesim.Scenario, only []string) scaleScenario {
	best := scalesim.Clairvoyant(sc)
	hindsight, previous := scalesim.BestStatic(sc)
	best.Policy, hindsight.Policy, previous.Policy = "clairvoyant", "static in hindsight", "static by the previous period"
	out := scaleScenario{Name: sc.Name, Class: sc.Class, StartS: sc.Start.Median, Results: []scalesim.Result{best, hindsight, previous}}
	for _, p := range append([]scalesim.Policy{&scalesim.Penstock{}}, scalesim.Baselines()...) {
		if !named(p.Name(), only) {
			continue
		}
		r := scalesim.Run(sc, p)
		r.Policy = p.Name()
		out.Results = append(out.Results, r)
	}
	for i := range out.Results {
		out.Results[i].Against(best.ReplicaHours)
	}
	return out
}

func named(name string, only []string) bool {
	for _, o := range only {
		if strings.Contains(name, o) {
			return true
		}
	}
	return len(only) == 0
}

func meanPolicies(scenarios []scaleScenario) []scalePolicy {
	at := map[string]int{}
	var out []scalePolicy
	for i := range scenarios {
		for _, r := range scenarios[i].Results {
			k, ok := at[r.Policy]
			if !ok {
				k = len(out)
				at[r.Policy] = k
				out = append(out, scalePolicy{Policy: r.Policy})
			}
			p, w := &out[k], 1/float64(len(scenarios))
			p.Loss += r.Loss * w
			p.SLO += r.Attainment * w
			p.Cost += r.Cost * w
			p.ReplicaHours += r.ReplicaHours * w
			p.Reversals += r.Reversals * w
			p.TTFTp99 += r.TTFTp99 * w
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Loss < out[j].Loss })
	return out
}

func printScaleSuite(w io.Writer, s *scaleSuite) {
	fmt.Fprintf(w, "%d scenarios, seed %d: means, least loss first\n\n", len(s.Scenarios), s.Seed)
	fmt.Fprintf(w, "%-30s %7s %8s %14s %12s %12s\n", "policy", "loss", "in SLO", "x clairvoyant", "replica h", "reversals/h")
	for _, p := range s.Policies {
		fmt.Fprintf(w, "%-30s %7.2f %7.2f%% %14.2f %12.1f %12.1f\n", p.Policy, p.Loss, 100*p.SLO, p.Cost, p.ReplicaHours, p.Reversals)
	}
}
