// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/load"
	"github.com/penstock-project/penstock/internal/sim"
	"github.com/penstock-project/penstock/internal/workload"
)

// The demo of LoRA adapters: half of the replicas and a quarter of the adapters of
// the measurement in `sim lora`, so that a minute is enough for most adapters to be
// asked for more than once.
const (
	loraDemoLength   = 60 * time.Second
	loraDemoLeast    = 30 * time.Second
	loraDemoAdapters = 218
	loraDemoZipf     = 1.18
	loraDemoRate     = 24.0 // requests a second: a third of what the fleet carries

	// What the demo asks of the policy beside a first token that comes sooner than
	// under random: a part of what a cache which knows the future finds resident for
	// the same requests, and the evenness that is promised.
	loraDemoResident  = 0.75
	loraDemoImbalance = 1.10
)

func loraDemoNames() []string {
	names := make([]string, loraDemoAdapters)
	for i := range names {
		names[i] = fmt.Sprintf("adapter-%d", i)
	}
	return names
}

func loraDemoTraffic(seed uint64) workload.Spec {
	return workload.Spec{
		Kind: workload.KindChat, Seed: seed, Rate: loraDemoRate, Turns: 1, EvenTurns: true, Apps: loraDemoAdapters, Open: true,
		Adapters: loraDemoAdapters, AdapterZipf: loraDemoZipf, Input: 300, Output: 25, MaxContext: 4000,
	}
}

// loraDemoReport is the JSON result.
type loraDemoReport struct {
	Schema    string          `json:"schema"` // penstock/demo-lora/v1
	DurationS float64         `json:"duration_s"`
	Replicas  int             `json:"replicas"`
	Slots     int             `json:"slots"` // adapters that a replica keeps at a time
	Adapters  int             `json:"adapters"`
	Zipf      float64         `json:"zipf"`
	Rate      float64         `json:"requests_per_s"`
	Phases    []loraDemoPhase `json:"phases"` // one for each policy
	Goal      loraDemoGoal    `json:"goal"`
	OK        bool            `json:"ok"`
	Verdict   string          `json:"verdict"`
}

// loraDemoGoal is what the last phase has to reach.
type loraDemoGoal struct {
	Resident  float64 `json:"share_of_ceiling"`
	Imbalance float64 `json:"imbalance"`
}

// loraDemoPhase is what the replicas did and what clients saw under one policy.
type loraDemoPhase struct {
	Policy   string `json:"policy"`
	Requests int    `json:"requests"` // that ended, errors included
	Errors   int    `json:"errors"`
	// Unfinished requests were cut at the end of the phase.
	Unfinished int `json:"unfinished"`
	// Resident is the share of requests whose adapter was in a slot, Ceiling the
	// largest that any placement could have had: all slots as one cache that knows
	// the future, empty at the start.
	Resident  float64       `json:"resident_share"`
	Ceiling   float64       `json:"ceiling"`
	Imbalance float64       `json:"imbalance"` // busy time of the busiest replica over the mean
	Loads     int64         `json:"loads"`
	Evictions int64         `json:"evictions"`
	TTFT      *load.Latency `json:"ttft_ms"`
}

func runLoRADemo(ctx context.Context, e *Env, f *demoFlags, json bool) error {
	begin := time.Now()
	d, err := startDemo(ctx, e, f.listen, f.admin, demoPolicies[0], loraDemoNames()...)
	defer d.close()
	if err != nil || ctx.Err() != nil {
		return err
	}
	rep := &loraDemoReport{
		Schema: "penstock/demo-lora/v1", Replicas: len(d.replicas), Slots: d.replicas[0].Profile().LoRASlots,
		Adapters: loraDemoAdapters, Zipf: loraDemoZipf, Rate: loraDemoRate, Phases: []loraDemoPhase{},
		Goal: loraDemoGoal{Resident: loraDemoResident, Imbalance: loraDemoImbalance},
	}
	if !json {
		d.printLoRAIntro(rep)
	}
	length := (cmp.Or(f.duration, loraDemoLength) - time.Since(begin) - 2*demoTail - time.Second) / 2
	for i, policy := range demoPolicies {
		if err := d.turnTo(ctx, i); err != nil {
			return err
		}
		p, err := d.loraPhase(ctx, policy, f.seed, length)
		if err != nil || ctx.Err() != nil {
			return err
		}
		rep.Phases = append(rep.Phases, p)
	}
	rep.DurationS = round3(time.Since(begin).Seconds())
	rep.judge()
	if json {
		if err := printJSON(e.Stdout, rep); err != nil {
			return err
		}
	} else {
		printLoRADemo(e.Stdout, rep)
	}
	if !rep.OK {
		return errSilent(ExitFindings)
	}
	return nil
}

// loraPhase plays the traffic under a policy, slots empty at the start.
func (d *demoFleet) loraPhase(ctx context.Context, policy string, seed uint64, length time.Duration) (loraDemoPhase, error) {
	r, err := d.play(loraDemoTraffic(seed), workload.FeedOptions{}, length, nil)
	if err != nil {
		return loraDemoPhase{}, err
	}
	fmt.Fprintf(d.env.Stderr, "penstock: policy %s, slots empty, %s\n", policy, length.Round(time.Second))
	bar := startProgress(d.env, r, length, 0)
	res := r.Run(ctx)
	bar.stop()
	p := loraDemoPhase{Policy: policy, Requests: res.Requests, Errors: res.Failed(), Unfinished: res.Unfinished, TTFT: res.TTFT}
	asked := int64(0)
	var busy []float64
	for _, r := range d.replicas {
		s := r.Stats()
		p.Loads += s.AdapterLoads
		p.Evictions += s.AdapterEvictions
		asked += begun(&s)
		busy = append(busy, s.BusySeconds)
	}
	p.Resident = round3(1 - float64(p.Loads)/float64(max(1, asked)))
	p.Imbalance = round3(imbalance(busy))
	p.Ceiling = round3(loraDemoCeiling(seed, res.Requests+res.Unfinished, len(d.replicas)*d.replicas[0].Profile().LoRASlots))
	return p, nil
}

// begun counts the requests that joined a batch.
func begun(s *engine.Stats) int64 { return s.Finished + s.Cancelled + int64(s.Running) }

// imbalance is the greatest value over the mean; 0 where all are zero.
func imbalance(v []float64) float64 {
	sum, most := 0.0, 0.0
	for _, x := range v {
		sum, most = sum+x, max(most, x)
	}
	if sum == 0 {
		return 0
	}
	return most * float64(len(v)) / sum
}

// loraDemoCeiling is the share of the first n requests of the demo that find their
// adapter in one cache of so many slots that knows what comes.
func loraDemoCeiling(seed uint64, n, slots int) float64 {
	g, err := workload.NewGenerator(loraDemoTraffic(seed))
	if err != nil {
		return 0
	}
	asked := make([]string, n)
	for i := range asked {
		asked[i] = g.Next().Adapter
	}
	return sim.CeilingOf(asked, slots).Clairvoyant
}

// judge compares the phases with each other and with the goal.
func (r *loraDemoReport) judge() {
	random, ours := &r.Phases[0], &r.Phases[len(r.Phases)-1]
	var wrong []string
	miss := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if ours.Errors > 0 {
		miss("%d requests were lost", ours.Errors)
	}
	switch {
	case random.TTFT == nil || ours.TTFT == nil:
		miss("no request was answered")
	case ours.TTFT.Mean >= random.TTFT.Mean:
		miss("the mean TTFT of %s is not below %s under random", milliText(ours.TTFT.Mean), milliText(random.TTFT.Mean))
	}
	if ours.Resident <= random.Resident || ours.Resident < r.Goal.Resident*ours.Ceiling {
		miss("%s resident is below %s, %.2f times what is possible", percent(ours.Resident), percent(r.Goal.Resident*ours.Ceiling), r.Goal.Resident)
	}
	if ours.Imbalance > r.Goal.Imbalance {
		miss("an imbalance of %.2f is above %.2f", ours.Imbalance, r.Goal.Imbalance)
	}
	r.OK, r.Verdict = len(wrong) == 0, strings.Join(wrong, "; ")
	if r.OK {
		r.Verdict = fmt.Sprintf("%.1f times as many requests as under random found their adapter resident, the mean first token came %.1f times as soon",
			ours.Resident/max(random.Resident, 1e-3), random.TTFT.Mean/max(ours.TTFT.Mean, 1e-3))
	}
}

func (d *demoFleet) printLoRAIntro(r *loraDemoReport) {
	server := atServer(d.server.AdminURL())
	fmt.Fprintf(d.env.Stdout, `%d simulated replicas (Llama 3.1 8B on an RTX 4090 each) behind %s
%d LoRA adapters, asked for with Zipf %g, %.0f requests a second; a replica keeps %d at a
time, and a step that has to load one takes 50 ms more

Try it in another terminal:
  penstock status --adapters%s
  penstock explain --last%s

`, r.Replicas, d.server.GatewayURL(), r.Adapters, r.Zipf, r.Rate, r.Slots, server, server)
}

func printLoRADemo(w io.Writer, r *loraDemoReport) {
	t := newTable("POLICY", ">RESIDENT", ">POSSIBLE", ">IMBALANCE", ">LOADS", ">EVICTIONS", ">TTFT MEAN", ">P50", ">P99", ">REQUESTS", ">ERRORS")
	for _, p := range r.Phases {
		mean, p50, p99 := "-", "-", "-"
		if p.TTFT != nil {
			mean, p50, p99 = milliText(p.TTFT.Mean), milliText(p.TTFT.P50), milliText(p.TTFT.P99)
		}
		t.add(p.Policy, percent(p.Resident), percent(p.Ceiling), fmt.Sprintf("%.2f", p.Imbalance), withCommas(int(p.Loads)),
			withCommas(int(p.Evictions)), mean, p50, p99, withCommas(p.Requests), withCommas(p.Errors))
	}
	t.write(w)
	fmt.Fprintf(w, `
Resident is the share of requests that found their adapter in a slot. Possible is what
all %d slots would have had as one cache that knows the future: every adapter has to be
loaded once.

%s
penstock sim lora plays 874 adapters on 16 replicas, in virtual time.
`, r.Replicas*r.Slots, r.Verdict)
}
