// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
)

func sample(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEngines(t *testing.T) {
	for _, c := range []struct {
		file, engine string
		want         map[string]float64
		total        float64 // NaN unknown
	}{
		{"vllm-012-k8s-ansi.log", "vllm", map[string]float64{
			"weights_s": 21.4, "model_loading_s": 52, "download_s": 27.5, "dynamo_s": 11.2, "compile_total_s": 40.7, "graph_s": 14,
			"init_engine_s": 63.5, "init_other_s": 8.8, "kv_tokens": 512000, "weights_gb": 30.59, "process_start_s": 24.9,
		}, 142.9},
		{"vllm-02x.log", "vllm", map[string]float64{
			"weights_s": 40, "compile_total_s": 13.01, "kernel_warmup_s": 120, "init_engine_s": 212.68, "init_other_s": 79.67, "process_start_s": 20,
		}, 274},
		{"sglang.log", "sglang", map[string]float64{"weights_s": 41, "graph_s": 11.39, "kv_tokens": 420000, "weights_gb": 15.07, "process_start_s": 9}, 70},
		{"sglang-nightly.log", "sglang", map[string]float64{"weights_s": 57.66, "graph_s": 16.4, "weights_gb": 16.11}, 100},
		{"tgi.log", "tgi", map[string]float64{"download_s": 31, "shard_s": 42.11, "warmup_s": 8, "kv_tokens": 156800}, 82},
		{"tgi-json.log", "tgi", map[string]float64{"shard_s": 29.7, "warmup_s": 9}, 39.9},
		{"llamacpp.log", "llama.cpp", map[string]float64{"weights_s": 12.1}, 13.97},
		{"ollama.log", "ollama", map[string]float64{"weights_s": 3.53}, 3.53},
		{"docker-json.log", "vllm", map[string]float64{"weights_s": 25, "init_engine_s": 29.5}, 60.2},
		{"new-year.log", "vllm", map[string]float64{"weights_s": 25, "init_engine_s": 29.5}, 60},
		{"torchserve-v0.log", "vllm", map[string]float64{"weights_s": 43, "weights_gb": 6.016, "graph_s": 32}, 86.28},
		{"trtllm.log", "tensorrt-llm", map[string]float64{"weights_s": 30.2}, 63},
		{"stern-prefix.log", "vllm", map[string]float64{"weights_s": 28.2, "init_engine_s": 59.1, "process_start_s": 19.8}, 108},
		{"vllm-json.log", "vllm", map[string]float64{"weights_s": 28.2, "init_engine_s": 59.1, "process_start_s": 19.9}, 108.2},
		{"cached-graphs.log", "vllm", map[string]float64{"compile_total_s": 8.69, "graph_s": 31, "init_other_s": 1.747}, 49.32},
	} {
		t.Run(c.file, func(t *testing.T) {
			r := Analyse(Input{Logs: []Log{{c.file, sample(t, c.file)}}})
			if r.Engine != c.engine {
				t.Errorf("engine %q, want %q", r.Engine, c.engine)
			}
			wantFacts(t, r, c.want)
			if r.Total == nil || math.Abs(*r.Total-c.total) > 1 {
				t.Errorf("total %v, want %v", r.Facts, c.total)
			}
			checkReport(t, r)
		})
	}
}

// checkReport holds what is true of every breakdown: no negative time, bars that
// add up to the total, valid JSON.
func checkReport(t testing.TB, r *Report) {
	t.Helper()
	for _, s := range r.Stages {
		if s.Seconds != nil && (*s.Seconds < 0 || math.IsNaN(*s.Seconds) || math.IsInf(*s.Seconds, 0)) {
			t.Errorf("stage %s takes %v", s.Name, *s.Seconds)
		}
	}
	if sum := sumOfBars(r); r.Total != nil && r.Stage("unexplained") != nil && math.Abs(sum-*r.Total) > 0.5 {
		t.Errorf("bars add up to %v, the total is %v", sum, *r.Total)
	}
	b, err := json.Marshal(r)
	if err != nil || !json.Valid(b) {
		t.Errorf("JSON: %v", err)
	}
}

func TestFailedStart(t *testing.T) {
	r := Analyse(Input{Logs: []Log{{"failed.log", sample(t, "failed.log")}}})
	if len(r.Findings) == 0 || r.Findings[0].Code != "start-failed" || r.Findings[0].Line != 5 {
		t.Errorf("findings %+v", r.Findings)
	}
	if r.Ready {
		t.Error("a failed start is reported as ready")
	}
}

func TestUnknownLinesStayUnexplained(t *testing.T) {
	r := Analyse(Input{Logs: []Log{{"x", "2026-01-01 10:00:00 hello\n2026-01-01 10:05:00 took 200 apples and 30 GB\n"}}})
	if len(r.Bars()) != 1 || r.Bars()[0].Name != "unexplained" || *r.Bars()[0].Seconds != 300 {
		t.Errorf("stages %+v", r.Stages)
	}
	if len(r.Findings) != 0 {
		t.Errorf("findings %+v", r.Findings)
	}
	empty := Analyse(Input{})
	if empty.Total != nil || len(empty.Stages) != 0 {
		t.Errorf("nothing gives %+v", empty)
	}
}

func TestFastStartIsNoFinding(t *testing.T) {
	r := Analyse(Input{Logs: []Log{{"llamacpp.log", sample(t, "llamacpp.log")}}})
	if len(r.Findings) != 0 {
		t.Errorf("a start of 14 s gives %+v", r.Findings)
	}
}

func TestZonesAreAligned(t *testing.T) {
	// The engine writes local time without a zone, seven hours off.
	events := diagnose.ParseEvents(`2026-03-01T16:00:00Z Normal Scheduled pod/x assigned
2026-03-01T16:00:02Z Normal Pulled pod/x Container image "x" already present on machine
2026-03-01T16:00:03Z Normal Started pod/x Started container vllm
2026-03-01T16:02:00Z Normal Ready pod/x (condition Ready=True)`)
	log := `INFO 03-01 09:00:23 [gpu_model_runner.py:1] Starting to load model m...
INFO 03-01 09:01:03 [gpu_model_runner.py:2] Model loading took 8.0 GiB and 40.000000 seconds
INFO 03-01 09:01:50 [core.py:3] init engine (profile, create kv cache, warmup model) took 45.00 seconds
`
	r := Analyse(Input{Logs: []Log{{"l", log}}, Events: events})
	wantFacts(t, r, map[string]float64{"process_start_s": 20, "weights_s": 40, "total_s": 120, "container_start_to_ready_s": 117})
	if s := r.Stage("readiness"); s == nil || *s.Seconds != 10 {
		t.Errorf("readiness %+v", s)
	}
}

func TestInitContainersAndVolumes(t *testing.T) {
	r := Analyse(Input{Events: diagnose.ParseEvents(`  Normal  Scheduled  8m    default-scheduler  Successfully assigned a/b to n
  Normal  SuccessfulAttachVolume  7m40s  attachdetach-controller  AttachVolume.Attach succeeded
  Normal  Pulled     7m38s  kubelet            Container image "fetch" already present on machine
  Normal  Started    7m37s kubelet            Started container fetch
  Normal  Pulled     4m27s  kubelet            Container image "vllm" already present on machine
  Normal  Started    4m26s kubelet            Started container vllm`), Logs: []Log{{"l", sample(t, "stern-prefix.log") + "INFO:     Application startup complete.\n"}}})
	wantFacts(t, r, map[string]float64{"init_containers_s": 190, "total_s": 322})
	if s := r.Stage("volume_attach"); s == nil || *s.Seconds != 20 {
		t.Errorf("volume %+v", s)
	}
	checkReport(t, r)
}

func TestCarriageReturnsAndRestart(t *testing.T) {
	log := "INFO 03-01 09:00:00 [api_server.py:1] vLLM API server version 0.9.0\n" +
		"INFO 03-01 09:00:50 [m.py:2] Model loading took 8.0 GiB and 40.000000 seconds\n" +
		"INFO:     Application startup complete.\n" +
		"INFO 03-01 10:00:00 [api_server.py:1] vLLM API server version 0.9.0\n" +
		"\rCapturing CUDA graph shapes:  50%|#####     | 10/20 [00:06<00:06,  1.0it/s]\rCapturing CUDA graph shapes: 100%|##########| 20/20 [00:12<00:00,  1.0it/s]\n" +
		"INFO 03-01 10:00:30 [m.py:2] Model loading took 8.0 GiB and 20.000000 seconds\n"
	r := Analyse(Input{Logs: []Log{{"l", log}}})
	wantFacts(t, r, map[string]float64{"weights_s": 20, "graph_s": 12})
}

func FuzzAnalyse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.log")
	for _, p := range files {
		b, _ := os.ReadFile(p)
		f.Add(string(b), "")
	}
	f.Add("", "  Normal   Pulled     19s               kubelet            Successfully pulled image \"x\" in 4m47.129s (5m3.623s including waiting). Image size: 1 bytes.")
	f.Fuzz(func(t *testing.T, log, events string) {
		checkReport(t, Analyse(Input{Logs: []Log{{"l", log}}, Events: diagnose.ParseEvents(events)}))
	})
}

func TestDescribeIsAsPromised(t *testing.T) {
	r := Analyse(Input{Events: diagnose.ParseEvents(`  Normal   Pulled     19s   kubelet   Container image "x" already present on machine
  Normal   Started    18s   kubelet   Started container vllm
  Warning  Unhealthy  3s (x3 over 13s)  kubelet  Startup probe failed: HTTP probe failed with statuscode: 503`)})
	if len(r.Findings) != 0 {
		t.Errorf("a probe that fails while the model loads is no finding: %+v", r.Findings)
	}
	if !strings.Contains(string(must(json.Marshal(r))), `"schema":"penstock/findings/v1"`) {
		t.Error("no schema")
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// A log that goes on while the engine serves tells of a start that ended when the
// engine said so: the line that says it has no time of its own.
func TestServingIsNoStart(t *testing.T) {
	log := `(APIServer pid=7) INFO 11-29 10:00:00 [api_utils.py:286] vLLM API server version 0.32.0
(EngineCore pid=9) INFO 11-29 10:00:20 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
(EngineCore pid=9) INFO 11-29 10:00:30 [default_loader.py:268] Loading weights took 8.00 seconds
(EngineCore pid=9) INFO 11-29 10:00:40 [core.py:193] init engine (profile, create kv cache, warmup model) took 9.00 seconds
(APIServer pid=7) INFO 11-29 10:00:42 [launcher.py:195] Route: /health, Methods: GET
INFO:     Application startup complete.
INFO:     127.0.0.1:39560 - "GET /health HTTP/1.1" 200 OK
(APIServer pid=7) INFO 11-29 10:10:00 [loggers.py:335] Engine 000: Avg prompt throughput: 14.0 tokens/s
(APIServer pid=7) INFO 11-29 10:20:00 [loggers.py:335] Engine 000: Avg prompt throughput: 14.0 tokens/s
`
	r := Analyse(Input{Logs: []Log{{"vllm.log", log}}})
	if s := r.Stage("readiness"); s == nil || *s.Seconds > 2 {
		t.Errorf("readiness %+v", s)
	}
	if r.Total == nil || *r.Total != 42 {
		t.Errorf("total %v", r.Total)
	}
}
