// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"strconv"
	"strings"
)

// kind is what a line says of a start.
type kind uint8

const (
	kVersion       kind = iota
	kEngineInit         // the engine begins: imports are over
	kP2PBegin           //
	kP2PEnd             //
	kDistBegin          //
	kDistEnd            //
	kDownload           // seconds
	kDownloadBegin      //
	kDownloadEnd        //
	kLoadBegin          //
	kLoadEnd            //
	kWeights            // seconds: reading the weights
	kModel              // seconds and GiB: everything of loading
	kWeightsGB          // size only
	kProfiling          // seconds
	kFirstRun           // seconds: initial profiling and warm-up run
	kDynamo             // seconds
	kCompileGraph       // seconds: one graph
	kCompileTotal       // seconds: all of compiling, dynamo included
	kCacheLoad          // seconds: compiled graphs read from the cache
	kCacheHit           // the compile cache was used
	kKVTokens           // tokens
	kKVBlocks           // blocks
	kBlockSize          // tokens
	kConcurrency        // factor, at tokens
	kCaptureBegin       //
	kCapture            // seconds
	kKernelWarm         // seconds
	kInit               // seconds: all of the engine's initialisation
	kInitCompile        // seconds: compiling inside it, as newer versions say
	kShard              // seconds: TGI's shard, imports and weights
	kShardBegin         //
	kWarmBegin          //
	kWarmEnd            //
	kServer             // the HTTP server begins
	kReady              // it answers
	kRunner             // seconds: Ollama's runner, weights and all
	kFail               //
	kProgress           // a finished progress bar
)

// mark is one thing that the log says.
type mark struct {
	kind kind
	at   float64
	has  bool
	v    float64
	n    float64 // a second number of the line
	proc string
	text string
	line int
}

// pattern finds a kind of line by a part of its text, and the number after another
// part. The number counts only where its unit follows.
type pattern struct {
	part string
	kind kind
	// after is the text that stands before the number; "" no number.
	after string
	unit  unit
}

type unit uint8

const (
	none    unit = iota
	seconds      // s, sec, secs, seconds, ms, min
	size         // GB, GiB, MiB
	count        // a plain number, thousands separated by commas
	clocked      // Ns without a space, or seconds by default
)

// patterns are the lines of the engines, whatever the version: what a release does
// not print is absent, what a later one renames is a line more.
var patterns = [...]pattern{
	{"vLLM API server version", kVersion, "", none},
	{"Initializing a V", kVersion, "", none},
	{"Initializing an LLM engine", kVersion, "", none},
	{"Initializing a V", kEngineInit, "", none},
	{"Initializing an LLM engine", kEngineInit, "", none},
	{"generating GPU P2P access cache", kP2PBegin, "", none},
	{"reading GPU P2P access cache", kP2PEnd, "", none},
	{"Init torch distributed begin", kDistBegin, "", none},
	{"Init torch distributed end", kDistEnd, "", none},
	{"Time spent downloading weights", kDownload, ": ", seconds},
	{"Starting check and download process", kDownloadBegin, "", none},
	{"Starting download process", kDownloadBegin, "", none},
	{"Successfully downloaded weights", kDownloadEnd, "", none},
	{"Starting to load model", kLoadBegin, "", none},
	{"Load weight begin", kLoadBegin, "", none},
	{"loading model tensors", kLoadBegin, "", none},
	{"llama_model_loader: loaded meta data", kLoadBegin, "", none},
	{"Load weight end", kLoadEnd, "elapsed=", seconds},
	{"Load weight end", kLoadEnd, "", none},
	{"warming up the model with an empty run", kLoadEnd, "", none},
	{"Loading weights took", kWeights, "took ", seconds},
	{"Loading weights time", kWeights, ": ", seconds},
	{"weights loading time", kWeights, ": ", seconds},
	{"Model loading took", kModel, "and ", seconds},
	{"Model init total", kModel, "-- ", seconds},
	{"Model loading took", kWeightsGB, "took ", size},
	{"Loading model weights took", kWeightsGB, "took ", size},
	{"model weights take", kWeightsGB, "take ", size},
	{"Load weight end", kWeightsGB, "mem usage=", size},
	{"Memory profiling takes", kProfiling, "takes ", seconds},
	{"Memory profiling took", kProfiling, "took ", seconds},
	{"Initial profiling/warmup run took", kFirstRun, "took ", seconds},
	{"Dynamo bytecode transform time", kDynamo, ": ", seconds},
	{"Compiling a graph for", kCompileGraph, "takes ", seconds},
	{"Compiling a graph for", kCompileGraph, "took ", seconds},
	{"torch.compile", kCompileTotal, "takes ", seconds},
	{"torch.compile", kCompileTotal, "took ", seconds},
	{"Directly load", kCacheLoad, "took ", seconds},
	{"Directly load", kCacheHit, "", none},
	{"loaded compile cache", kCacheHit, "", none},
	{"KV cache size", kKVTokens, ": ", count},
	{"max_total_num_tokens=", kKVTokens, "max_total_num_tokens=", count},
	{"Setting max batch total tokens to", kKVTokens, "to ", count},
	{"# GPU blocks", kKVBlocks, ": ", count},
	{"# gpu blocks", kKVBlocks, ": ", count},
	{"# cuda blocks", kKVBlocks, ": ", count},
	{"# CUDA blocks", kKVBlocks, ": ", count},
	{"block_size", kBlockSize, "block_size=", count},
	{"Maximum concurrency for", kConcurrency, "request: ", clocked},
	{"Capture cuda graph begin", kCaptureBegin, "", none},
	{"CUDA graph begin", kCaptureBegin, "", none},
	{"Graph capturing finished", kCapture, "finished in ", seconds},
	{"Capture cuda graph end", kCapture, "elapsed: ", seconds},
	{"CUDA graph end", kCapture, "elapsed=", seconds},
	{"cuda graph end", kCapture, "elapsed=", seconds},
	{"CUDA graph capture end", kCapture, "elapsed=", seconds},
	{"autotune finished in", kKernelWarm, "in ", seconds},
	{"warmup finished in", kKernelWarm, "in ", seconds},
	{"init engine (", kInit, "took ", seconds},
	{"init engine (", kInitCompile, "compilation: ", seconds},
	{"Shard ready in", kShard, "in ", seconds},
	{"Starting shard", kShardBegin, "", none},
	{"Warming up model", kWarmBegin, "", none},
	{"Setting max batch total tokens to", kWarmEnd, "", none},
	{"Starting vLLM", kServer, "", none},
	{"Started server process", kServer, "", none},
	{"Starting Webserver", kServer, "", none},
	{"Application startup complete", kReady, "", none},
	{"server is listening on", kReady, "", none},
	{"HTTP server listening", kReady, "", none},
	{"The server is fired up and ready to roll", kReady, "", none},
	{"llama runner started in", kRunner, "in ", seconds},
	{"EngineCore failed to start", kFail, "", none},
	{"Engine core initialization failed", kFail, "", none},
	{"CUDA out of memory", kFail, "", none},
	{"torch.OutOfMemoryError", kFail, "", none},
	{"Traceback (most recent call last)", kFail, "", none},
	{"failed to load model", kFail, "", none},
	{"Shard cannot start", kFail, "", none},
	{"Server process exited", kFail, "", none},
}

// marksOf reads every line against the table.
func marksOf(lines []line, c *clock) []mark {
	var out []mark
	for i := range lines {
		l := &lines[i]
		at, has := c.at(l)
		add := func(m mark) {
			m.at, m.has, m.proc, m.text, m.line = at, has, l.proc, l.msg, l.no
			out = append(out, m)
		}
		for j := range patterns {
			p := &patterns[j]
			k := strings.Index(l.msg, p.part)
			if k < 0 {
				continue
			}
			if p.unit == none {
				add(mark{kind: p.kind})
				continue
			}
			if v, n, ok := numberAfter(l.msg[k:], p.after, p.unit); ok {
				add(mark{kind: p.kind, v: v, n: n})
			}
		}
		if l.msg == "Connected" { // TGI's router
			add(mark{kind: kReady})
		}
		if m, ok := progress(l.msg); ok {
			add(m)
		}
	}
	return out
}

// numberAfter reads the number that follows a text, if its unit is the wanted one.
// For a concurrency n is the number of tokens.
func numberAfter(s, after string, u unit) (v, n float64, ok bool) {
	i := strings.LastIndex(s, after)
	if u == count {
		i = strings.Index(s, after)
	}
	if i < 0 {
		return 0, 0, false
	}
	rest := strings.TrimLeft(s[i+len(after):], " *")
	j := 0
	for j < len(rest) && (rest[j] >= '0' && rest[j] <= '9' || rest[j] == '.' || rest[j] == ',' && u == count) {
		j++
	}
	num := strings.TrimRight(rest[:j], ".,")
	v, err := strconv.ParseFloat(strings.ReplaceAll(num, ",", ""), 64)
	if err != nil {
		return 0, 0, false
	}
	word := strings.TrimLeft(rest[len(num):], " *")
	k := 0
	for k < len(word) && (word[k] >= 'a' && word[k] <= 'z' || word[k] >= 'A' && word[k] <= 'Z') {
		k++
	}
	word = word[:k]
	switch u {
	case count:
		return v, 0, true
	case clocked:
		if t, _, good := numberAfter(s, "concurrency for ", count); good {
			n = t
		}
		return v, n, word == "x" || word == ""
	case size:
		switch word {
		case "GB", "GiB", "G":
			return v, 0, true
		case "MiB", "MB", "M":
			return v / 1024, 0, true
		}
		return 0, 0, false
	}
	switch word {
	case "s", "sec", "secs", "second", "seconds":
		return v, 0, true
	case "ms", "milliseconds":
		return v / 1000, 0, true
	case "min", "mins", "minutes":
		return v * 60, 0, true
	}
	return 0, 0, false
}

// progress reads a finished progress bar: "NAME: 100%|...| 35/35 [00:16<00:00,".
// The time before "<" is what has passed.
func progress(s string) (mark, bool) {
	if !strings.Contains(s, "100%") {
		return mark{}, false
	}
	i := strings.LastIndexByte(s, '[')
	if i < 0 {
		return mark{}, false
	}
	elapsed, _, ok := strings.Cut(s[i+1:], "<")
	if !ok {
		return mark{}, false
	}
	total := 0.0
	parts := strings.Split(elapsed, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return mark{}, false
	}
	for _, p := range parts {
		v, err := strconv.ParseFloat(p, 64)
		if err != nil {
			return mark{}, false
		}
		total = total*60 + v
	}
	return mark{kind: kProgress, v: total}, true
}

// engineOf tells the engine from the marks and, where one says it, its version.
func engineOf(lines []line, marks []mark) (engine, version string) {
	for i := range marks {
		if marks[i].kind == kVersion && version == "" {
			version = versionIn(marks[i].text)
		}
	}
	for i := range marks {
		if marks[i].kind == kRunner {
			return "ollama", version // it runs llama.cpp and prints its lines
		}
	}
	for i := range lines {
		m := lines[i].msg
		switch {
		case strings.Contains(m, "vLLM API server") || strings.Contains(m, "LLM engine (v") || strings.Contains(m, "init engine (profile") || strings.Contains(m, "vLLM server"):
			return "vllm", version
		case strings.Contains(m, "server_args=ServerArgs") || strings.Contains(m, "Load weight begin") || strings.Contains(m, "fired up and ready to roll"):
			return "sglang", version
		case strings.Contains(m, "Starting shard") || strings.Contains(m, "Shard ready in") || strings.Contains(m, "Waiting for shard"):
			return "tgi", version
		case strings.Contains(m, "llama_model_loader") || strings.Contains(m, "load_tensors") || strings.Contains(m, "llama_context"):
			return "llama.cpp", version
		case lines[i].trt || strings.Contains(m, "TensorRT-LLM"):
			return "tensorrt-llm", version
		case strings.Contains(m, "Loading model weights took") || strings.Contains(m, "Model loading took") || strings.Contains(m, "torch.compile takes") || strings.Contains(m, "Graph capturing finished") || strings.Contains(m, "GPU blocks"):
			return "vllm", version
		}
	}
	return "", version
}

func versionIn(s string) string {
	for _, mark := range [...]string{"(v", "version "} {
		_, rest, ok := strings.Cut(s, mark)
		if !ok {
			continue
		}
		j := 0
		for j < len(rest) && rest[j] != ')' && rest[j] != ' ' && rest[j] != ',' {
			j++
		}
		if j > 0 && rest[0] >= '0' && rest[0] <= '9' {
			return rest[:j]
		}
	}
	return ""
}
