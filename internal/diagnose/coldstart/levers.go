// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// cacheRate is how fast a worker reads weights that lie in the page cache, in GiB a
// second: 8.48 GiB on each of eight workers in about 10 s, as measured for a 70B
// model in 8 bits.
const cacheRate = 0.85

// least is the gain in seconds below which a lever is not worth a line.
const least = 5

// pull lists the levers, largest gain first, and what is left with them pulled.
func (r *Report) pull() {
	add := func(stage string, saves float64, basis, remedy, price string) {
		if saves >= least {
			r.Levers = append(r.Levers, Lever{Stage: stage, Saves: diagnose.Round(saves, 1), Basis: basis, Remedy: remedy, Price: price})
		}
	}
	for i := range r.Stages {
		s := &r.Stages[i]
		if s.Seconds == nil {
			continue
		}
		v := *s.Seconds
		switch s.Name {
		case "image_pull":
			add(s.Name, v, "measured", "Pre-pull the image on the GPU nodes, load it lazily (image streaming), or make it smaller.", "")
		case "weights", "model_loading":
			if s.In == "" {
				r.weightsLever(v, add)
			}
		case "download":
			if s.In == "" {
				add(s.Name, v, "measured", "Keep the weights on a volume or in a node cache instead of downloading them at each start.", "")
			}
		case "init_containers":
			add(s.Name, v, "measured", "Move what the init containers fetch onto a volume or a node cache that new replicas mount.", "")
		case "volume_attach":
			add(s.Name, v, "measured", "Use a local disk or a shared file system: a block volume has to be detached and attached.", "")
		case "shard":
			add(s.Name, v*0.6, "assumed: imports are the other part", "Keep the weights on a local disk or stream them.", "")
		case "node_wait":
			add(s.Name, v, "measured", "Keep a warm node: a placeholder pod of low priority that holds the GPU and is evicted.", "an idle GPU node")
		case "p2p_check":
			add(s.Name, v, "measured", "Keep the P2P access cache on a volume, or set VLLM_SKIP_P2P_CHECK=1 where peer access is known to work.", "")
		case "graph_capture":
			add(s.Name, v, "measured", "Capture fewer batch sizes (--compilation-config cudagraph_capture_sizes, --cuda-graph-max-bs) or start with --enforce-eager.", "throughput at the sizes left out")
		case "compile":
			r.compileLever(v, add)
		case "kernel_warmup":
			add(s.Name, v, "measured", "Keep the kernel caches (DeepGEMM, Triton, FlashInfer) on a volume.", "")
		}
	}
	slices.SortStableFunc(r.Levers, func(a, b Lever) int { return cmp.Compare(b.Saves, a.Saves) })
	r.dominant()
	if r.Total == nil || len(r.Levers) == 0 || !r.Ready {
		return
	}
	all, keep := *r.Total, *r.Total
	graph := false
	for _, l := range r.Levers {
		all -= l.Saves
		if l.Stage == "graph_capture" {
			graph = true
			continue
		}
		keep -= l.Saves
	}
	if graph && len(r.Levers) > 1 {
		r.WhatIf = append(r.WhatIf, WhatIf{"all but graph_capture", diagnose.Round(max(0, keep), 1)})
	}
	r.WhatIf = append(r.WhatIf, WhatIf{"all", diagnose.Round(max(0, all), 1)})
}

// weightsLever is what reading from a local disk or a stream would save: the time
// less what the page cache needs for as many bytes.
func (r *Report) weightsLever(v float64, add func(string, float64, string, string, string)) {
	left, basis := min(v, 10), "assumed: 10 s from the page cache"
	if gb, ok := r.Facts.Get("weights_gb"); ok {
		left = gb / cacheRate
		basis = fmt.Sprintf("assumed: %s GiB per worker from the page cache in %s", diagnose.Num(diagnose.Round(gb, 2)), diagnose.Seconds(diagnose.Round(left, 1)))
	}
	stage := "weights"
	if r.Stage("model_loading") != nil {
		stage = "model_loading"
	}
	add(stage, v-left, basis, "Put the weights on a local disk or in a node cache, or stream them into the GPU (a streaming load format, peer-to-peer).", "")
}

// compileLever is what a kept compile cache would save: everything but the tracing.
// A cache that was used already saves nothing more.
func (r *Report) compileLever(v float64, add func(string, float64, string, string, string)) {
	for _, e := range r.Stage("compile").Evidence {
		if e.Name == "compile_cache" {
			return
		}
	}
	trace, basis := 0.0, "assumed: nothing is traced again"
	if d := r.Stage("dynamo"); d != nil && d.Seconds != nil {
		trace, basis = *d.Seconds, "measured; the tracing remains"
	}
	add("compile", v-trace, basis, "Keep the compile cache on a volume (VLLM_CACHE_ROOT) that new replicas mount.", "")
}

// dominant names the largest bar.
func (r *Report) dominant() {
	best := 0.0
	for _, s := range r.Bars() {
		if *s.Seconds > best && s.Name != "unexplained" && s.Name != "starting" {
			best, r.Dominant = *s.Seconds, strings.ReplaceAll(s.Name, "_", "-")
		}
	}
	if r.Dominant != "" {
		r.fact("dominant", r.Dominant, "")
	}
	if s, ok := r.Facts.Get("container_start_to_ready_s"); ok {
		r.fact("startup_probe_budget_s", float64(int(s*1.5/10+0.999)*10), "s")
	}
	if r.Total != nil && r.Ready {
		r.fact("autoscaler_lead_time_s", *r.Total, "s")
	}
}

// slowFrom is the total in seconds from which a start is worth a finding.
const slowFrom = 30

func (r *Report) findings(in *Input, ev *pod, lg *logInfo) {
	r.Findings = append(r.Findings, ev.probeFindings(in.EventsFile)...)
	name := "start"
	file := in.EventsFile
	if len(in.Logs) > 0 {
		file = in.Logs[0].Name
	}
	if lg.failed != nil && !lg.hasReady {
		f := diagnose.New("start-failed", name, file, lg.failed.line)
		f.Evidence = []diagnose.Evidence{{Name: "line", Value: short(lg.failed.text)}, diagnose.Ev("at_line", lg.failed.line, "")}
		f.Message = "the engine did not come up: " + lg.failed.text
		f.Remedy = "Read the log from that line on. The stages before it are shown; what follows never ran."
		r.Findings = append(r.Findings, f)
	}
	if len(r.Levers) > 0 && (r.Total == nil || *r.Total >= slowFrom) {
		r.Findings = append(r.Findings, r.slow(name, file))
	}
}

// slow is the finding that names the largest removable stage.
func (r *Report) slow(name, file string) diagnose.Finding {
	l := r.Levers[0]
	f := diagnose.New("slow-start", name, file, 0)
	f.Evidence = []diagnose.Evidence{{Name: "dominant", Value: r.Dominant}}
	share := ""
	if r.Total != nil {
		f.Evidence = append(f.Evidence, diagnose.Ev("total", *r.Total, "s"))
		share = fmt.Sprintf(" of %s", diagnose.Seconds(*r.Total))
		if !r.Ready {
			share += " so far"
		}
	}
	for _, s := range r.Bars() {
		f.Evidence = append(f.Evidence, diagnose.Ev(s.Name, *s.Seconds, "s"))
	}
	f.Message = fmt.Sprintf("%s can be saved%s: the largest removable stage is %s", diagnose.Seconds(l.Saves), share, strings.ReplaceAll(l.Stage, "_", " "))
	var steps []string
	for _, l := range r.Levers {
		s := fmt.Sprintf("%s: about %s (%s). %s", strings.ReplaceAll(l.Stage, "_", " "), diagnose.Seconds(l.Saves), l.Basis, l.Remedy)
		if l.Price != "" {
			s += " Price: " + l.Price + "."
		}
		steps = append(steps, s)
	}
	for _, w := range r.WhatIf {
		steps = append(steps, fmt.Sprintf("With %s: about %s.", strings.ReplaceAll(w.Levers, "_", " "), diagnose.Seconds(w.Total)))
	}
	f.Remedy = strings.Join(steps, "\n")
	return f
}
