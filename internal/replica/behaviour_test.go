// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/testinput"
)

// scrape returns the samples of /metrics by name and labels.
func scrape(t *testing.T, s *Server) map[string]float64 {
	t.Helper()
	_, body := get(t, s, "/metrics")
	out := map[string]float64{}
	for _, line := range strings.Split(body, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if _, ok := out[line[:i]]; ok {
			t.Fatalf("series twice: %q", line)
		}
		out[line[:i]] = v
	}
	return out
}

const series = `{engine="0",model_name="tiny"}`

func TestMetricFamilies(t *testing.T) {
	list, err := os.ReadFile(testinput.Shared(t, "examples/engine/vllm-0.32-metric-families.txt"))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{})
	ask(t, s, `{`+hello+`,"max_tokens":2}`)
	_, body := get(t, s, "/metrics")
	types, labels := map[string]string{}, map[string]map[string]bool{}
	typeLine := regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`)
	for _, m := range typeLine.FindAllStringSubmatch(body, -1) {
		types[m[1]] = m[2]
	}
	sample := regexp.MustCompile(`(?m)^([a-zA-Z0-9_:]+?)(_bucket|_sum|_count)?(?:\{(.*)\})? \S+$`)
	key := regexp.MustCompile(`([a-zA-Z_]+)="`)
	for _, m := range sample.FindAllStringSubmatch(body, -1) {
		name := m[1]
		if _, ok := types[name]; !ok {
			name += m[2]
		}
		if labels[name] == nil {
			labels[name] = map[string]bool{}
		}
		for _, k := range key.FindAllStringSubmatch(m[3], -1) {
			labels[name][k[1]] = true
		}
	}
	families := map[string]bool{"vllm:lora_requests_info": true} // only with LoRA
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		families[f[0]] = true
		var want []string
		if len(f) > 2 {
			want = strings.Split(f[2], ",")
		}
		var got []string
		for k := range labels[f[0]] {
			got = append(got, k)
		}
		sort.Strings(got)
		sort.Strings(want)
		if types[f[0]] != f[1] || strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("%s: type %q labels %v, want %s %v", f[0], types[f[0]], got, f[1], want)
		}
	}
	for name := range types {
		if !families[name] {
			t.Errorf("%s is no family of the engine", name)
		}
	}
}

func TestMetricValues(t *testing.T) {
	s := start(t, Options{KVTokens: 16000})
	prompt := 0
	for range 3 {
		prompt += ask(t, s, `{`+hello+`,"max_tokens":5,"ignore_eos":true}`).Usage.Prompt
	}
	m := scrape(t, s)
	for name, want := range map[string]float64{
		"vllm:num_requests_running" + series: 0, "vllm:num_requests_waiting" + series: 0, "vllm:kv_cache_usage_perc" + series: 0,
		"vllm:prompt_tokens_total" + series: float64(prompt), "vllm:generation_tokens_total" + series: 15,
		"vllm:prefix_cache_queries_total" + series:                                                float64(prompt),
		"vllm:time_to_first_token_seconds_count" + series:                                         3,
		"vllm:inter_token_latency_seconds_count" + series:                                         12,
		"vllm:e2e_request_latency_seconds_count" + series:                                         3,
		`vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"}`:       3,
		`vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}`:        0,
		`vllm:request_generation_tokens_bucket{engine="0",le="5.0",model_name="tiny"}`:            3,
		`vllm:request_generation_tokens_bucket{engine="0",le="2.0",model_name="tiny"}`:            0,
		`vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"}`:         3,
		`http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}`:          3,
		`http_request_duration_seconds_count{handler="/v1/chat/completions",method="POST"}`:       3,
		`vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}`:         0,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"}`: float64(prompt),
	} {
		if got, ok := m[name]; !ok || got != want {
			t.Errorf("%s = %v (%v), want %v", name, got, ok, want)
		}
	}
	for name := range m {
		if strings.HasPrefix(name, "vllm:cache_config_info") && (!strings.Contains(name, `num_gpu_blocks="1000"`) || !strings.Contains(name, `block_size="16"`)) {
			t.Errorf("cache config %s", name)
		}
	}
}

func TestDisconnectFreesTheSequence(t *testing.T) {
	s := start(t, Options{Speed: 1})
	for _, stream := range []string{"true", "false"} {
		ctx, cancel := context.WithCancel(context.Background())
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/chat/completions", strings.NewReader(`{`+hello+`,"max_tokens":100000,"ignore_eos":true,"stream":`+stream+`}`))
		req.Header.Set("Content-Type", "application/json")
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			if resp, err := http.DefaultClient.Do(req); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		eventually(t, "request runs", func() bool { return s.Stats().Running == 1 && s.Stats().KVUsedTokens > 0 })
		cancel()
		eventually(t, "request is gone", func() bool { return s.InFlight() == 0 && s.Stats().Running == 0 && s.Stats().KVUsedTokens == 0 })
		wg.Wait()
	}
	if n := scrape(t, s)[`vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}`]; n != 0 {
		t.Errorf("aborts count as success: %v", n)
	}
}

func TestQueueLimit(t *testing.T) {
	s := start(t, Options{Speed: 1, MaxSeqs: 1, MaxQueued: 1})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/completions", strings.NewReader(`{"model":"tiny","prompt":"a","max_tokens":100000,"ignore_eos":true,"stream":true}`))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for range 3 {
		r, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(`{"model":"tiny","prompt":"b"}`))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 503 || !strings.Contains(string(b), `"type":"Service Unavailable"`) || r.Header.Get("Retry-After") != "" {
			t.Errorf("over the limit: %d %s", r.StatusCode, b)
		}
	}
	if n := scrape(t, s)[`vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}`]; n != 3 {
		t.Errorf("%v rejections", n)
	}
}

func TestLoRA(t *testing.T) {
	s := start(t, Options{LoRA: []string{"ad1"}})
	load := func(name string) (int, string) {
		return post(t, s, "/v1/load_lora_adapter", fmt.Sprintf(`{"lora_name":%q,"lora_path":"/adapters/%s"}`, name, name))
	}
	if status, b := load("ad2"); status != 200 || b != "Success: LoRA adapter 'ad2' added successfully." {
		t.Errorf("load: %d %s", status, b)
	}
	if status, b := load("ad2"); status != 400 || !strings.Contains(b, `"InvalidUserInput"`) || !strings.Contains(b, "load_inplace") {
		t.Errorf("load again: %d %s", status, b)
	}
	s.FailLoRA("bad", 404, "Loading lora bad failed: no adapter found")
	if status, b := load("bad"); status != 404 || !strings.Contains(b, "NotFoundError") {
		t.Errorf("load that fails: %d %s", status, b)
	}
	if a := ask(t, s, `{"model":"ad2","max_tokens":20,"messages":[{"role":"user","content":"a"}]}`); a.Model != "ad2" {
		t.Errorf("answer of model %q", a.Model)
	}
	unload := func(name string) (int, string) {
		return post(t, s, "/v1/unload_lora_adapter", fmt.Sprintf(`{"lora_name":%q}`, name))
	}
	if status, b := unload("ad2"); status != 200 || b != "Success: LoRA adapter 'ad2' removed successfully." {
		t.Errorf("unload: %d %s", status, b)
	}
	if status, b := unload("ad2"); status != 404 || !strings.Contains(b, "cannot be found") {
		t.Errorf("unload again: %d %s", status, b)
	}
	if status, _ := post(t, s, "/v1/chat/completions", `{"model":"ad2","messages":[{"role":"user","content":"a"}]}`); status != 404 {
		t.Errorf("unloaded adapter answers %d", status)
	}
	// Old label sets stay, each value is the time at which the set last held, and the
	// waiting list repeats the running one.
	newest, at, n := "", 0.0, 0
	for name, v := range scrape(t, s) {
		if strings.HasPrefix(name, "vllm:lora_requests_info") {
			n++
			if v > at {
				newest, at = name, v
			}
		}
	}
	if n != 2 || newest != `vllm:lora_requests_info{max_lora="8",running_lora_adapters="",waiting_lora_adapters=""}` {
		t.Errorf("%d series, newest %s", n, newest)
	}
	if _, ok := scrape(t, s)[`vllm:lora_requests_info{max_lora="8",running_lora_adapters="ad2",waiting_lora_adapters="ad2"}`]; !ok {
		t.Error("the series of the adapter that ran is gone")
	}
}

// stream begins a long streamed answer and returns its reader after the first frame.
func stream(t *testing.T, s *Server, tokens int) (*http.Response, *bufio.Reader) {
	t.Helper()
	resp, err := http.Post(s.URL()+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"tiny","prompt":"a","max_tokens":%d,"ignore_eos":true,"stream":true}`, tokens)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	r := bufio.NewReader(resp.Body)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
		t.Fatalf("first line %q %v", line, err)
	}
	return resp, r
}

func TestDrain(t *testing.T) {
	for _, tc := range []struct {
		name    string
		timeout time.Duration
		tokens  int
		ends    string
	}{
		{"answer ends in time", time.Minute, 300, `"finish_reason":"length"`},
		{"answer is cut", time.Millisecond, 100000, `"message":"EngineCore encountered an issue`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := start(t, Options{Speed: 5, ShutdownTimeout: tc.timeout})
			_, r := stream(t, s, tc.tokens)
			done := make(chan struct{})
			s.mu.Lock()
			s.draining = true // what Shutdown sets first
			s.mu.Unlock()
			if status, _ := get(t, s, "/health"); status != 200 {
				t.Errorf("health while draining: %d", status)
			}
			if status, b := post(t, s, "/v1/completions", `{"model":"tiny","prompt":"a"}`); status != 500 || !strings.Contains(b, "cannot schedule new futures after shutdown") {
				t.Errorf("new work while draining: %d %s", status, b)
			}
			go func() { defer close(done); s.Shutdown(context.Background()) }()
			rest, err := io.ReadAll(r)
			if err != nil || !strings.Contains(string(rest), tc.ends) || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
				t.Errorf("stream ended with %.200q %v", rest[max(0, len(rest)-200):], err)
			}
			<-done
			if _, err := http.Get(s.URL() + "/health"); err == nil {
				t.Error("the port is still open")
			}
		})
	}
}

func TestWeather(t *testing.T) {
	s := start(t, Options{Speed: 20})
	set := func(f Faults) {
		t.Helper()
		if err := s.SetFaults(f); err != nil {
			t.Fatal(err)
		}
	}
	set(Faults{ErrorPercent: 25, ErrorStatus: 502})
	failed := 0
	for range 40 {
		if status, _ := post(t, s, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":1}`); status == 502 {
			failed++
		}
	}
	if failed != 10 {
		t.Errorf("%d of 40 failed at 25 %%", failed)
	}

	set(Faults{DieAfter: 3})
	_, r := stream(t, s, 1000)
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a stream that dies ends properly")
	}
	set(Faults{})

	set(Faults{Stall: true})
	done := make(chan int, 1)
	go func() {
		status, _ := post(t, s, "/v1/completions", `{"model":"tiny","prompt":"a","max_tokens":1}`)
		done <- status
	}()
	eventually(t, "work waits in a stalled engine", func() bool { return s.InFlight() == 1 })
	if status, _ := get(t, s, "/health"); status != 200 {
		t.Errorf("health of a stalled engine: %d", status)
	}
	set(Faults{})
	if status := <-done; status != 200 {
		t.Errorf("work after a stall: %d", status)
	}

	set(Faults{Hang: true})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/health", nil)
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("health of a hung replica: %v", err)
	}
	set(Faults{NoMetrics: true})
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	req, _ = http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/metrics", nil)
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("metrics that stopped: %v", err)
	}
	if status, _ := get(t, s, "/health"); status != 200 {
		t.Errorf("health without metrics: %d", status)
	}
	set(Faults{Slow: 1000})
	if s.clock.rate != 0.02 {
		t.Errorf("clock of a slowed engine runs at %v", s.clock.rate)
	}
	for _, bad := range []Faults{{Slow: 0.5}, {ErrorPercent: 101}, {ErrorStatus: 200}, {DieAfter: -1}} {
		if s.SetFaults(bad) == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestRestartInPlace(t *testing.T) {
	s := start(t, Options{Speed: 5, LoRA: []string{"ad1"}})
	body := `{"model":"tiny","max_tokens":1,"messages":[{"role":"user","content":"` + strings.Repeat("warm words ", 50) + `"}]}`
	ask(t, s, body)
	if ask(t, s, body).Usage.Details.Cached == 0 {
		t.Error("cache is cold before the restart")
	}
	post(t, s, "/v1/load_lora_adapter", `{"lora_name":"ad2","lora_path":"/a"}`)
	before := scrape(t, s)["process_start_time_seconds"]
	_, r := stream(t, s, 100000)
	addr := s.Addr()
	if err := s.Restart(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(r); err == nil {
		t.Error("a stream survives a restart")
	}
	http.DefaultClient.CloseIdleConnections()
	if s.Addr() != addr {
		t.Errorf("address %s became %s", addr, s.Addr())
	}
	m := scrape(t, s)
	if m["process_start_time_seconds"] <= before || m["vllm:prompt_tokens_total"+series] != 0 || m["vllm:num_requests_running"+series] != 0 {
		t.Errorf("start %v (before %v), prompt tokens %v, running %v", m["process_start_time_seconds"], before, m["vllm:prompt_tokens_total"+series], m["vllm:num_requests_running"+series])
	}
	if ask(t, s, body).Usage.Details.Cached != 0 {
		t.Error("cache is warm after the restart")
	}
	if _, b := get(t, s, "/v1/models"); strings.Contains(b, "ad2") || !strings.Contains(b, "ad1") {
		t.Errorf("models after the restart: %s", b)
	}
	s.Kill()
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("a killed replica takes connections")
	}
	if err := s.Restart(0); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	ask(t, s, body)
}

func TestKeepAliveCloses(t *testing.T) {
	s := start(t, Options{})
	if err := s.SetFaults(Faults{KeepAliveMS: 30}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(conn); err != nil { // ends when the server closes
		t.Error(err)
	}
}

func TestStartup(t *testing.T) {
	var log lockedBuffer
	s, err := New(Options{Models: []string{"tiny"}, Listen: "127.0.0.1:0", Startup: 50 * time.Millisecond, Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	done := make(chan error, 1)
	go func() { done <- s.Start(context.Background()) }()
	eventually(t, "weights load", func() bool { return strings.Contains(log.String(), "Loading model weights") })
	if c, err := net.Dial("tcp", s.Addr()); err == nil {
		c.Close()
		if !strings.Contains(log.String(), "Engine initialised") { // what is logged last before it
			t.Error("the port is open before the engine is ready")
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if status, _ := get(t, s, "/health"); status != 200 {
		t.Errorf("health after the start: %d", status)
	}
	for _, want := range []string{"Architecture of", "KV cache size: 520000 tokens", "Application startup complete."} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, log.String())
		}
	}
	other, err := New(Options{Models: []string{"tiny"}, Listen: s.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Start(context.Background()); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a port in use: %v", err)
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestControlAPI(t *testing.T) {
	s := start(t, Options{})
	call := func(method, path, body string) (int, string) {
		req, _ := http.NewRequest(method, path, strings.NewReader(body))
		w := &recorder{header: http.Header{}, status: 200}
		s.Control().ServeHTTP(w, req)
		return w.status, w.body.String()
	}
	if status, b := call("PUT", "/faults", `{"slow":4}`); status != 200 || s.Faults().Slow != 4 {
		t.Errorf("%d %s", status, b)
	}
	if _, b := call("GET", "/faults", ""); !strings.Contains(b, `"slow":4`) {
		t.Errorf("faults %s", b)
	}
	if status, b := call("PUT", "/faults", `{"sloow":4}`); status != 400 || !strings.Contains(b, "sloow") {
		t.Errorf("unknown fault: %d %s", status, b)
	}
	if status, b := call("POST", "/restart?down=soon", ""); status != 400 || !strings.Contains(b, "soon") {
		t.Errorf("bad duration: %d %s", status, b)
	}
	if status, _ := call("POST", "/lora_error", `{"name":"x","status":400,"message":"shape"}`); status != 200 {
		t.Errorf("lora_error: %d", status)
	}
	if status, b := post(t, s, "/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"/x"}`); status != 400 || !strings.Contains(b, `"shape"`) {
		t.Errorf("load: %d %s", status, b)
	}
	if status, b := call("GET", "/stats", ""); status != 200 || !strings.Contains(b, "KVTokens") {
		t.Errorf("stats: %d %s", status, b)
	}
}

type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(s int)   { r.status = s }
func (r *recorder) Write(p []byte) (int, error) {
	return r.body.Write(p)
}
