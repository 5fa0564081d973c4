// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"net/http"
	"os"
	runtimemetrics "runtime/metrics"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
)

// cacheConfig is the label set of vllm:cache_config_info. It has no model_name.
func cacheConfig(p *engine.Profile, rank int) string {
	n := strconv.Itoa
	block := n(p.BlockTokens)
	labels := map[string]string{
		"block_size": block, "_block_size_resolved": "True", "effective_attention_block_size": block, "hash_block_size": block,
		"num_gpu_blocks": n(p.Blocks()), "kv_cache_size_tokens": n(p.Blocks() * p.BlockTokens),
		"kv_cache_max_concurrency": strconv.FormatFloat(float64(p.KVTokens)/float64(max(1, p.MaxModelLen)), 'f', 2, 64),
		"enable_prefix_caching":    "True", "engine": n(rank), "cache_dtype": "auto", "gpu_memory_utilization": "0.9",
		"is_attention_free": "False", "num_cpu_blocks": "None", "num_gpu_blocks_override": "None",
		"prefix_caching_hash_algo": "xxh3", "prefix_match_unit": block, "user_specified_block_size": "False",
		"cache_hit_alignment_tokens": block, "sliding_window": "None", "mamba_cache_mode": "none",
	}
	for _, k := range strings.Fields(`enable_mamba_shared_prefix_checkpoint kv_cache_dtype_skip_layers kv_cache_layout
		kv_cache_memory_bytes kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill mamba_block_size mamba_cache_dtype
		mamba_page_size_padded mamba_ssm_cache_dtype prefix_cache_retention_interval replayssm_buffer_len skip_page_size_padded
		swa_bounded_replay use_kda_recoverssm use_replayssm`) {
		labels[k] = "None"
	}
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for i, k := range keys {
		keys[i] = label(k, labels[k])
	}
	return strings.Join(keys, ",")
}

// writeProcess writes the families of the process. Values are those of this process,
// which may hold several replicas; the start time is the replica's own.
func (s *Server) writeProcess(x *exposition) {
	rt := []runtimemetrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	runtimemetrics.Read(rt)
	gcs, memory, released := rt[0].Value.Uint64(), rt[1].Value.Uint64(), rt[2].Value.Uint64()
	for _, f := range []struct{ name, help string }{
		{"python_gc_objects_collected_total", "Objects collected; of the simulation's own runtime."},
		{"python_gc_objects_uncollectable_total", "Objects that cannot be collected."},
		{"python_gc_collections_total", "Collections."},
	} {
		x.family(f.name, "counter", f.help)
		for _, g := range []string{"0", "1", "2"} {
			v := 0.0
			if f.name == "python_gc_collections_total" && g == "2" {
				v = float64(gcs)
			}
			x.sample(f.name, label("generation", g), v)
		}
	}
	x.family("python_info", "gauge", "Platform; a simulation has no Python.")
	x.sample("python_info", `implementation="penstock-simulated",major="0",minor="0",patchlevel="0",version="0"`, 1)
	gauge := func(name, help string, v float64) {
		x.family(name, "gauge", help)
		x.sample(name, "", v)
	}
	gauge("process_virtual_memory_bytes", "Virtual memory in bytes.", float64(memory))
	gauge("process_resident_memory_bytes", "Resident memory in bytes.", float64(memory-released))
	gauge("process_start_time_seconds", "Start of the engine, Unix seconds.", unixSeconds(s.born))
	var ru syscall.Rusage
	cpu := 0.0
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) == nil {
		cpu = float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
	}
	x.family("process_cpu_seconds_total", "counter", "CPU time in seconds.")
	x.sample("process_cpu_seconds_total", "", cpu)
	if now := time.Now(); now.Sub(s.fdsAt) > 5*time.Second { // a long list costs more than the rest of a scrape
		if d, err := os.ReadDir("/proc/self/fd"); err == nil {
			s.fds, s.fdsAt = len(d), now
		}
	}
	gauge("process_open_fds", "Open file descriptors.", float64(s.fds))
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		gauge("process_max_fds", "Limit of file descriptors.", float64(lim.Cur))
	}
}

// httpCounters are the web server's own families, by route.
type httpCounters struct {
	mu     sync.Mutex
	routes map[routeKey]*routeCount
	fast   histogram // all requests, fine buckets
}

type routeKey struct{ handler, method, status string }

type routeCount struct {
	n             uint64
	sizeIn, sizeO float64
	seconds       histogram
}

func (h *httpCounters) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.routes = nil
}

func (h *httpCounters) observe(handler, method string, status int, in, out int64, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.routes == nil {
		h.routes = map[routeKey]*routeCount{}
		h.fast = newHistogram([]float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60})
	}
	k := routeKey{handler, method, strconv.Itoa(status/100) + "xx"}
	c := h.routes[k]
	if c == nil {
		c = &routeCount{seconds: newHistogram([]float64{0.1, 0.5, 1})}
		h.routes[k] = c
	}
	c.n++
	c.sizeIn += float64(max(0, in))
	c.sizeO += float64(out)
	c.seconds.observe(d.Seconds(), 1)
	h.fast.observe(d.Seconds(), 1)
}

func (h *httpCounters) write(x *exposition) {
	h.mu.Lock()
	defer h.mu.Unlock()
	keys := make([]routeKey, 0, len(h.routes))
	for k := range h.routes {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		a, b := keys[i], keys[j]
		return a.handler+a.method+a.status < b.handler+b.method+b.status
	})
	x.family("http_requests_total", "counter", "Requests by handler, method and status.")
	for _, k := range keys {
		x.sample("http_requests_total", label("handler", k.handler)+","+label("method", k.method)+","+label("status", k.status), float64(h.routes[k].n))
	}
	for _, f := range []struct {
		name, help string
		size       func(*routeCount) float64
	}{
		{"http_request_size_bytes", "Bytes of request bodies.", func(c *routeCount) float64 { return c.sizeIn }},
		{"http_response_size_bytes", "Bytes of answers.", func(c *routeCount) float64 { return c.sizeO }},
	} {
		x.family(f.name, "summary", f.help)
		h.byHandler(keys, func(handler string, cs []*routeCount) {
			n, sum := 0.0, 0.0
			for _, c := range cs {
				n, sum = n+float64(c.n), sum+f.size(c)
			}
			x.sample(f.name+"_count", label("handler", handler), n)
			x.sample(f.name+"_sum", label("handler", handler), sum)
		})
	}
	if h.routes == nil {
		return
	}
	x.histogram("http_request_duration_highr_seconds", "Time of requests, fine buckets.", "", "", &h.fast)
	x.family("http_request_duration_seconds", "histogram", "Time of requests by handler and method.")
	for i, k := range keys {
		if i > 0 && keys[i-1].handler == k.handler && keys[i-1].method == k.method {
			continue
		}
		sum := newHistogram([]float64{0.1, 0.5, 1})
		for _, o := range keys[i:] {
			if o.handler == k.handler && o.method == k.method {
				c := h.routes[o]
				for b := range sum.counts {
					sum.counts[b] += c.seconds.counts[b]
				}
				sum.n, sum.sum = sum.n+c.seconds.n, sum.sum+c.seconds.sum
			}
		}
		x.series("http_request_duration_seconds", label("handler", k.handler), label("method", k.method), &sum)
	}
}

// byHandler calls fn for each handler with its rows; keys are sorted by handler.
func (h *httpCounters) byHandler(keys []routeKey, fn func(string, []*routeCount)) {
	for i := 0; i < len(keys); {
		var cs []*routeCount
		j := i
		for ; j < len(keys) && keys[j].handler == keys[i].handler; j++ {
			cs = append(cs, h.routes[keys[j]])
		}
		fn(keys[i].handler, cs)
		i = j
	}
}

// statusWriter remembers what a handler answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController flush.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
