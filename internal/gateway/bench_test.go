// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/relay"
)

// proxyRole names the environment variable that turns this test binary into one of
// the proxies that are measured, so that each has a process of its own.
const proxyRole = "PENSTOCK_BENCH_PROXY"

func TestMain(m *testing.M) {
	if role := os.Getenv(proxyRole); role != "" {
		runProxy(role, strings.Split(os.Getenv("PENSTOCK_BENCH_TO"), ","))
		return
	}
	os.Exit(bothPaths(m))
}

// runProxy serves until its standard input ends, and says where on its output.
func runProxy(role string, to []string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	var h http.Handler
	if role == "gateway" {
		h = benchGateway(to)
	} else {
		u, err := url.Parse(to[0])
		if err != nil {
			panic(err)
		}
		rp := &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(u) },
			FlushInterval: -1,
			Transport:     &http.Transport{MaxIdleConnsPerHost: 256},
		}
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			// Handed on as it arrives, a body cuts some answers: the server closes it
			// when the answer comes before its end was read.
			body := make([]byte, r.ContentLength)
			if _, err := io.ReadFull(r.Body, body); err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			rp.ServeHTTP(w, r)
		})
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/cpu" {
			fmt.Fprint(w, processCPU().Microseconds())
			return
		}
		h.ServeHTTP(w, r)
	}))
	fmt.Println("http://" + l.Addr().String())
	io.Copy(io.Discard, os.Stdin)
}

// benchGateway is a gateway with everything on: prefix routing by the default
// policy, records, metrics.
func benchGateway(to []string) http.Handler {
	f := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Pool: "p"}), Recorder: &records{}})
	s := &fleet.Snapshot{Pool: "p", Version: 1, At: fleet.At(time.Now())}
	for i, u := range to {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("r%d", i), URL: u, Phase: fleet.PhaseReady, Models: []string{"m"}, Rank: -1,
		}})
	}
	f.Observe(s)
	cat, err := NewCatalogue([]Pool{{Name: "p", Flow: f}})
	if err != nil {
		panic(err)
	}
	return New(Options{Catalogue: cat, Relay: relay.New(relay.Options{}), Router: "bench", Registerer: prometheus.NewRegistry()})
}

// proxy is a proxy in a process of its own.
type proxy struct {
	url string
	b   *testing.B
}

func startProxy(b *testing.B, role string, to ...string) *proxy {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), proxyRole+"="+role, "PENSTOCK_BENCH_TO="+strings.Join(to, ","))
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return &proxy{url: strings.TrimSpace(line), b: b}
}

// cpu returns the CPU time that the proxy has used so far.
func (p *proxy) cpu() time.Duration {
	res, err := http.Get(p.url + "/cpu")
	if err != nil {
		p.b.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.b.Fatal(err)
	}
	us, err := strconv.Atoi(string(text))
	if err != nil {
		p.b.Fatal(err)
	}
	return time.Duration(us) * time.Microsecond
}

// benchEngine answers at once: JSON, or a stream of n events with a gap.
func benchEngine(n int, gap time.Duration) http.Handler {
	event := []byte(`data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}` + "\n\n")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Stream") == "" {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, okBody)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range n {
			w.Write(event)
			w.(http.Flusher).Flush()
			time.Sleep(gap)
		}
		io.WriteString(w, finish+done)
	})
}

// BenchmarkGateway measures CPU time of the gateway's process beside that of a bare
// httputil.ReverseProxy in the same run: a short chat request, a streamed chunk, a
// prompt of 400 KB. Only the ratio means something on a shared machine.
func BenchmarkGateway(b *testing.B) {
	const events = 40
	engine, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: benchEngine(events, 5*time.Millisecond)}
	go srv.Serve(engine)
	b.Cleanup(func() { srv.Close() })
	to := "http://" + engine.Addr().String()
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 9000)
	body := func(n int) string {
		return `{"model":"m","messages":[{"role":"system","content":"` + text[:n] + `"},{"role":"user","content":"go on"}]}`
	}
	for _, w := range []struct {
		name    string
		body    string
		stream  bool
		clients int
		per     int // units of work in a request
	}{
		{"chat-2k", body(2000), false, 8, 1},
		{"sse-chunk", body(200), true, 50, events},
		{"prompt-400k", body(400000), false, 4, 1},
	} {
		for _, role := range []string{"reverseproxy", "gateway"} {
			b.Run(w.name+"/"+role, func(b *testing.B) {
				p := startProxy(b, role, to)
				load(b, p, w.body, w.stream, w.clients, 2*w.clients) // warm up
				from := p.cpu()
				b.ResetTimer()
				load(b, p, w.body, w.stream, w.clients, b.N)
				b.StopTimer()
				b.ReportMetric(float64((p.cpu()-from).Nanoseconds())/1e3/float64(b.N*w.per), "cpu-us/unit")
			})
		}
	}
}

// load sends n requests from so many clients at a time.
func load(b *testing.B, p *proxy, body string, stream bool, clients, n int) {
	tr := &http.Transport{MaxIdleConnsPerHost: clients}
	defer tr.CloseIdleConnections()
	work := make(chan struct{}, n)
	for range n {
		work <- struct{}{}
	}
	close(work)
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range work {
				req, _ := http.NewRequest("POST", p.url+"/v1/chat/completions", strings.NewReader(body))
				req.Header.Set("Content-Type", "application/json")
				if stream {
					req.Header.Set("X-Stream", "1")
				}
				res, err := tr.RoundTrip(req)
				if err != nil {
					b.Error(err)
					return
				}
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
					b.Error(res.StatusCode, err)
				}
				res.Body.Close()
			}
		})
	}
	wg.Wait()
}
