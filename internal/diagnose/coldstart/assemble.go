// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"math"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// stages writes what the logs explain. Bars are the stages that follow each other;
// what one of them contains is written with In.
func (lg *logInfo) stages(r *Report, ev *pod) {
	if lg.count == 0 {
		if s, ok := ev.starting(); ok {
			r.add("starting", s, "", diagnose.Evidence{Name: "state", Value: "not ready yet"})
		}
		return
	}
	lg.processStage(r, ev)
	lg.loadStages(r)
	lg.initStages(r)
	lg.otherStages(r)
	lg.readyStage(r, ev)
	lg.capacity(r)
	r.order()
}

// processStage is the time from the start of the container, or of the log, to the
// first thing that has a stage of its own: imports, mostly.
func (lg *logInfo) processStage(r *Report, ev *pod) {
	begin, from := 0.0, ""
	switch {
	case lg.comparable && ev.hasStarted:
		begin, from = ev.started, "container_started"
	case lg.hasSpan:
		begin, from = lg.first, "first_line"
	default:
		return
	}
	end, ok := lg.firstWork()
	if !ok || end-begin < 0.5 {
		return
	}
	r.add("process_start", end-begin, "", timed(diagnose.Round(end-begin, 1), from+"_to_first_stage"))
	r.fact("process_start_s", diagnose.Round(end-begin, 3), "s")
}

// firstWork is when the first stage after the imports began.
func (lg *logInfo) firstWork() (float64, bool) {
	best, ok := math.Inf(1), false
	take := func(t float64, has bool) {
		if has && t < best {
			best, ok = t, true
		}
	}
	for _, k := range [...]kind{kP2PBegin, kDistBegin, kDownloadBegin, kLoadBegin, kShardBegin} {
		take(lg.when(k, false))
	}
	for i := range lg.marks {
		m := &lg.marks[i]
		switch m.kind {
		case kModel, kWeights, kDownload, kRunner:
			take(m.at-m.v, m.has)
		}
	}
	return best, ok
}

func (lg *logInfo) loadStages(r *Report) {
	if s, ok := lg.between(kDistBegin, kDistEnd); ok && s > 0 {
		r.add("distributed_init", s, "", timed(s, "begin_to_end"))
	}
	if s, ok := lg.between(kP2PBegin, kP2PEnd); ok {
		r.add("p2p_check", s, "", timed(s, "generating_to_reading_the_access_cache"))
		r.fact("p2p_s", s, "s")
	}
	model, hasModel := lg.most(kModel, false)
	weights, hasWeights := lg.most(kWeights, true)
	download, hasDownload := lg.most(kDownload, true)
	gb, hasGB := lg.most(kWeightsGB, false)
	var sizeEv []diagnose.Evidence
	if hasGB {
		r.fact("weights_gb", gb, "GB")
		sizeEv = append(sizeEv, diagnose.Ev("size", gb, "GiB per worker"))
	}
	switch {
	case hasModel && hasWeights && weights <= model && weights < model*0.98:
		r.add("model_loading", model, "", append(sizeEv, stated(model, "model_loading"))...)
		r.add("weights", weights, "model_loading", stated(weights, "loading_weights"))
		r.fact("weights_s", weights, "s")
		r.fact("model_loading_s", model, "s")
	case hasModel:
		e := append(sizeEv, stated(model, "model_loading"))
		if hasWeights {
			e = append(e, stated(weights, "loading_weights"))
		}
		r.add("weights", model, "", e...)
		r.fact("weights_s", model, "s")
		r.fact("model_loading_s", model, "s")
	case hasWeights:
		r.add("weights", weights, "", append(sizeEv, stated(weights, "loading_weights"))...)
		r.fact("weights_s", weights, "s")
	default:
		lg.loadByTime(r, sizeEv, hasGB)
	}
	if hasDownload {
		in := ""
		if hasModel {
			in = "model_loading"
			if r.Stage("model_loading") == nil {
				in = "weights"
			}
		}
		r.add("download", download, in, stated(download, "downloading_weights"))
		r.fact("download_s", download, "s")
	} else if s, ok := lg.between(kDownloadBegin, kDownloadEnd); ok && s > 0 {
		r.add("download", s, "", timed(s, "download_begin_to_end"))
		r.fact("download_s", s, "s")
	}
}

// loadByTime bounds the loading by timestamps where no line states it. A size
// alone leaves it unknown.
func (lg *logInfo) loadByTime(r *Report, ev []diagnose.Evidence, hasGB bool) {
	end, okEnd := lg.when(kLoadEnd, true)
	if s, ok := lg.most(kLoadEnd, false); ok && s > 0 {
		r.add("weights", s, "", append(ev, stated(s, "load_weight"))...)
		r.fact("weights_s", s, "s")
		return
	}
	if !okEnd && hasGB {
		end, okEnd = lg.when(kWeightsGB, false)
	}
	begin, okBegin := lg.when(kLoadBegin, false)
	switch {
	case okBegin && okEnd && end >= begin:
		r.add("weights", end-begin, "", append(ev, timed(end-begin, "load_begin_to_end"))...)
		r.fact("weights_s", end-begin, "s")
		return
	}
	if s, ok := lg.most(kRunner, false); ok {
		r.add("weights", s, "", append(ev, stated(s, "runner_started"))...)
		r.fact("weights_s", s, "s")
		return
	}
	if s, ok := lg.bar("Loading safetensors", "Loading pt checkpoint", "Loading weights", "Multi-thread loading"); ok {
		r.add("weights", s, "", append(ev, diagnose.Ev("progress_bar", s, "s").From("progress bar, whole seconds"))...)
		r.fact("weights_s", s, "s")
		return
	}
	if hasGB {
		r.unknown("weights", "", ev...)
	}
	r.fact("weights_s", nil, "s")
}

// initStages writes the engine's initialisation and what it contains.
func (lg *logInfo) initStages(r *Report) {
	total, hasInit := lg.most(kInit, false)
	in := ""
	if hasInit {
		in = "init_engine"
	}
	named := 0.0
	compile, dynamo := lg.compileStages(r, in)
	named += compile
	_ = dynamo
	if s, ok := lg.most(kCacheLoad, true); ok {
		if total, hasTotal := lg.most(kCompileTotal, false); !hasTotal || total < compileParts(lg)-0.01 {
			r.add("compile_cache_load", s, in, stated(s, "load_compiled_graphs"))
			named += s
		}
	}
	if s, ok := lg.most(kProfiling, false); ok {
		r.add("profiling", s, in, stated(s, "memory_profiling"))
		r.fact("profiling_s", s, "s")
		if compile == 0 {
			named += s
		}
	}
	warm, hasWarm := lg.most(kKernelWarm, true)
	if b, ok := lg.bar("DeepGEMM", "warmup", "Warmup", "autotune", "AutoTuner", "Autotuning", "JIT"); ok {
		warm, hasWarm = warm+b, true
	}
	if hasWarm {
		r.add("kernel_warmup", warm, in, stated(warm, "kernel_warm_up"))
		r.fact("kernel_warmup_s", warm, "s")
		named += warm
	}
	capture, hasCapture := lg.most(kCapture, true)
	capEv := stated(capture, "graph_capture")
	if !hasCapture {
		if b, ok := lg.bar("Capturing"); ok {
			capture, hasCapture = b, true
			capEv = diagnose.Ev("progress_bar", b, "s").From("progress bar, whole seconds")
		}
	}
	if hasCapture {
		r.add("graph_capture", capture, in, capEv)
		r.fact("graph_s", capture, "s")
		r.fact("graph_capture_s", capture, "s")
		named += capture
	}
	if !hasInit {
		return
	}
	r.fact("init_engine_s", total, "s")
	r.fact("init_s", total, "s")
	other := math.Max(0, total-named)
	r.fact("init_other_s", diagnose.Round(other, 3), "s")
	r.add("init_other", other, in, diagnose.Ev("init_engine", total, "s"), diagnose.Ev("named_inside", diagnose.Round(named, 3), "s"))
	// The parts are the bars; the whole is shown for reference and not added.
	for i := range r.Stages {
		if r.Stages[i].In == "init_engine" {
			r.Stages[i].In = ""
			r.Stages[i].Evidence = append(r.Stages[i].Evidence, diagnose.Evidence{Name: "inside", Value: "init_engine"})
		}
		if r.Stages[i].Name == "profiling" && compile > 0 {
			r.Stages[i].In = "init_other" // with compilation on, profiling runs the compiler
		}
	}
	v := diagnose.Round(total, 3)
	r.Stages = append(r.Stages, Stage{Name: "init_engine", Seconds: &v, In: "total of its parts", Evidence: []diagnose.Evidence{stated(total, "init_engine")}})
}

// compileParts is what the lines about single graphs add up to.
func compileParts(lg *logInfo) float64 {
	d, _ := lg.most(kDynamo, true)
	g, _ := lg.most(kCompileGraph, true)
	c, _ := lg.most(kCacheLoad, true)
	return d + g + c
}

// compileStages writes compiling: the stated total, which contains the tracing, or
// the sum of its parts where no total is stated.
func (lg *logInfo) compileStages(r *Report, in string) (total, dynamo float64) {
	dynamo, hasDynamo := lg.most(kDynamo, true)
	graphs, hasGraphs := lg.most(kCompileGraph, true)
	total, hasTotal := lg.most(kCompileTotal, false)
	ev := []diagnose.Evidence{stated(total, "torch_compile_total")}
	if !hasTotal {
		if c, ok := lg.most(kInitCompile, false); ok {
			total, hasTotal = c, true
			ev = []diagnose.Evidence{stated(total, "compilation_inside_init")}
		} else if hasDynamo || hasGraphs {
			total, hasTotal = dynamo+graphs, true
			ev = []diagnose.Evidence{diagnose.Ev("sum_of_parts", total, "s")}
		}
	}
	if !hasTotal {
		return 0, 0
	}
	if lg.cacheHit {
		ev = append(ev, diagnose.Evidence{Name: "compile_cache", Value: "used"})
	}
	r.add("compile", total, in, ev...)
	r.fact("compile_total_s", total, "s")
	if hasDynamo {
		r.add("dynamo", dynamo, "compile", stated(dynamo, "bytecode_transform"))
		r.fact("dynamo_s", dynamo, "s")
	}
	return total, dynamo
}

// otherStages are those of engines that do not initialise in vLLM's way.
func (lg *logInfo) otherStages(r *Report) {
	if s, ok := lg.most(kShard, false); ok {
		r.add("shard", s, "", stated(s, "shard_ready"), diagnose.Evidence{Name: "contains", Value: "imports and weights"})
		r.fact("shard_s", s, "s")
	}
	if s, ok := lg.between(kWarmBegin, kWarmEnd); ok && s > 0 {
		r.add("warmup", s, "", timed(s, "warm_up_begin_to_end"))
		r.fact("warmup_s", s, "s")
	}
	if s, ok := lg.most(kFirstRun, false); ok && r.Stage("init_engine") == nil {
		r.add("warmup", s, "", stated(s, "initial_run"))
	}
}

// readyStage is the time from the end of the last stage to the first answer.
func (lg *logInfo) readyStage(r *Report, ev *pod) {
	end, ok := lg.lastWork()
	if !ok {
		return
	}
	switch {
	case ev.hasReady && lg.comparable && ev.ready > end:
		r.add("readiness", ev.ready-end, "", timed(ev.ready-end, "end_of_initialisation_to_Ready"))
	case lg.hasReady && lg.ready > end:
		r.add("readiness", lg.ready-end, "", timed(lg.ready-end, "end_of_initialisation_to_the_HTTP_server"))
	}
}

// lastWork is when the last stage that the log names ended.
func (lg *logInfo) lastWork() (float64, bool) {
	best, ok := 0.0, false
	for _, k := range [...]kind{kInit, kCapture, kModel, kWeights, kShard, kWarmEnd, kLoadEnd, kRunner} {
		if t, has := lg.when(k, true); has && (!ok || t > best) {
			best, ok = t, true
		}
	}
	return best, ok
}

// capacity notes what the log says of the KV cache, which is no time.
func (lg *logInfo) capacity(r *Report) {
	tokens, hasTokens := lg.number(kKVTokens)
	blocks, hasBlocks := lg.number(kKVBlocks)
	if hasBlocks {
		r.fact("kv_blocks", blocks, "blocks")
		if !hasTokens {
			size, known := lg.number(kBlockSize)
			if !known || size < 1 {
				size = 16 // the default of the versions that count blocks
			}
			tokens, hasTokens = blocks*size, true
		}
	}
	if hasTokens {
		r.fact("kv_tokens", tokens, "tokens")
	}
	for i := range lg.marks {
		if m := &lg.marks[i]; m.kind == kConcurrency && m.n > 0 {
			r.fact("max_concurrency", m.v, "requests")
			r.fact("max_concurrency_at", m.n, "tokens")
			r.fact("kv_tokens_by_concurrency", diagnose.Round(m.v*m.n, 0), "tokens")
			return
		}
	}
}
