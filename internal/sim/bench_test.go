// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/testinput"
	"github.com/penstock-project/penstock/internal/workload"
)

// BenchmarkMooncake prints simulated requests per second of one core on the
// Mooncake conversation trace in its own 512-token blocks, over 8 replicas, with a
// light picker (row sim-light) and with ours (row sim-penstock).
func BenchmarkMooncake(b *testing.B) {
	f, err := os.Open(testinput.Shared(b, "traces/mooncake/conversation_trace.jsonl"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	trace, err := workload.ReadTrace(f, workload.ReadOptions{Seed: 1})
	if err != nil {
		b.Fatal(err)
	}
	p, _ := engine.Lookup("qwen3-32b-2xh100")
	p.BlockTokens, p.KVTokens = trace.BlockTokens, 1_000_000
	t := NewTraffic(trace.Source(workload.Play{Speedup: 1}), 0, trace.BlockTokens)
	c := Config{Profile: p, Replicas: 8, BlockTokens: trace.BlockTokens, Seed: 1}
	for _, row := range []struct {
		name string
		p    Contender
	}{
		{"sim-light", Contender{Name: "random", Policy: route.PolicyRandom}},
		{"sim-penstock", Contender{Name: Ours, Policy: route.PolicyPenstock, Queue: true}},
	} {
		b.Run(row.name, func(b *testing.B) {
			var mem runtime.MemStats
			var r Result
			begin := cpuSeconds(b)
			for b.Loop() {
				r = RunContender(c, row.p, t)
			}
			cpu := cpuSeconds(b) - begin
			runtime.ReadMemStats(&mem)
			b.ReportMetric(float64(t.requests)*float64(b.N)/cpu, "requests/cpu-s")
			b.ReportMetric(float64(mem.HeapSys)/1e6, "heap-MB")
			b.ReportMetric(r.TTFTMean, "ttft-ms")
			b.ReportMetric(r.HitRatio, "hits")
		})
	}
}

// cpuSeconds is the CPU time of the process: on a shared machine the clock on the
// wall measures the neighbours.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
