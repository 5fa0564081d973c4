// SPDX-License-Identifier: Apache-2.0

// Command epp measures what an endpoint picker costs beside the least that one on
// stock gRPC can cost: CPU per request of 2 KiB and of 400 KB, and per chunk of an
// answer. Both run in processes of their own, interleaved, driven by the same
// client; the figure to look at is the ratio to the floor.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/penstock-project/penstock/bench/proctree"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "role=floor" {
		if err := serveFloor(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "epp:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "epp:", err)
		os.Exit(1)
	}
}

// Row is one line of the result.
type Row struct {
	Work      string  `json:"work"`
	Contender string  `json:"contender"`
	CPU       float64 `json:"cpu_us"`
	Ratio     float64 `json:"ratio_to_floor"`
	// Net is Ratio without what the scrapes of the replicas cost meanwhile, whatever
	// the traffic.
	Net float64 `json:"net_ratio"`
	P50 float64 `json:"p50_ms"`
}

// engine is the least that the readiness gate of a picker asks for.
func engine(addr string) (func(), error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"bench","object":"model"}]}`)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "vllm:num_requests_running{engine=\"0\",model_name=\"bench\"} 0\nvllm:num_requests_waiting{engine=\"0\",model_name=\"bench\"} 0\n")
	})
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go s.Serve(l)
	return func() { s.Close() }, nil
}

func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "127.0.0.1:0"
	}
	defer l.Close()
	return l.Addr().String()
}

func run() error {
	bin := flag.String("penstock", "bin/penstock", "path of penstock")
	repeats := flag.Int("repeats", 3, "interleaved repeats")
	dur := flag.Duration("d", 2*time.Second, "length of a cell")
	endpoints := flag.Int("endpoints", 3, "replicas of the pool; their scrapes count, too")
	verbose := flag.Bool("v", false, "show the logs of the contenders")
	format := flag.String("format", "table", "table or json")
	flag.Parse()
	var engines []string
	for i := range *endpoints {
		engines = append(engines, fmt.Sprintf("127.10.%d.%d:18010", i/250, i%250+1))
	}
	for _, a := range engines {
		stop, err := engine(a)
		if err != nil {
			return err
		}
		defer stop()
	}
	addrs := map[string]string{"floor": freePort(), "penstock": freePort()}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"epp", "--epp", addrs["penstock"], "--admin", freePort()}
	for _, a := range engines {
		args = append(args, "--replica", "http://"+a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	procs := map[string]*exec.Cmd{
		"floor":    exec.CommandContext(ctx, self, "role=floor", addrs["floor"]),
		"penstock": exec.CommandContext(ctx, *bin, args...),
	}
	for name, p := range procs {
		if *verbose {
			p.Stderr = os.Stderr
		}
		if err := p.Start(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer func() { p.Process.Kill(); p.Wait() }()
	}
	rows, idle, err := measure(ctx, addrs, procs, *repeats, *dur)
	if err != nil {
		return err
	}
	if *format == "json" {
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"schema": "penstock/bench-epp/v1", "endpoints": *endpoints,
			"scraping_cpu_ms_per_s": idle * 1e3, "rows": rows})
	}
	fmt.Println("endpoint picker, CPU of its process; floor: stock gRPC that returns the body and always picks the same")
	fmt.Printf("%d replicas; reading their metrics costs %.1f ms CPU a second, which net leaves out\n", *endpoints, idle*1e3)
	fmt.Printf("%-12s %-10s %12s %8s %8s %8s %10s\n", "work", "contender", "CPU us", "x floor", "net", "goal", "p50 ms")
	for _, r := range rows {
		goal := ""
		if r.Contender != "floor" {
			goal = fmt.Sprintf("%.2f", goals[r.Work])
		}
		fmt.Printf("%-12s %-10s %12.1f %8.2f %8.2f %8s %10.2f\n", r.Work, r.Contender, r.CPU, r.Ratio, r.Net, goal, r.P50)
	}
	return nil
}

// goals are the ratios that the picker is held to.
var goals = map[string]float64{"chat-2k": 1.2, "prompt-400k": 1.0, "sse-chunk": 1.05}

var contenders = []string{"floor", "penstock"}

// measure returns the rows, and the CPU seconds a second of the picker without traffic.
func measure(ctx context.Context, addrs map[string]string, procs map[string]*exec.Cmd, repeats int, dur time.Duration) ([]Row, float64, error) {
	clients := map[string]*client{}
	for _, c := range contenders {
		cl, err := dial(ctx, addrs[c])
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", c, err)
		}
		clients[c] = cl
	}
	pid := procs["penstock"].Process.Pid
	before, start := proctree.CPUSeconds(pid), time.Now()
	time.Sleep(dur)
	idle := (proctree.CPUSeconds(pid) - before) / time.Since(start).Seconds()
	var rows []Row
	for _, w := range works {
		var net []float64
		cpu, p50 := map[string][]float64{}, map[string][]float64{}
		for range repeats {
			for _, c := range contenders {
				m, err := w.run(ctx, clients[c], procs[c].Process.Pid, dur)
				if err != nil {
					return nil, 0, fmt.Errorf("%s, %s: %w", w.name, c, err)
				}
				cpu[c], p50[c] = append(cpu[c], m.cpu), append(p50[c], m.p50)
				if c == "penstock" {
					net = append(net, (m.cpu-idle*m.wall)/last(cpu["floor"]))
				}
			}
		}
		var ratios []float64
		for i := range cpu["floor"] {
			ratios = append(ratios, cpu["penstock"][i]/cpu["floor"][i])
		}
		rows = append(rows,
			Row{w.name, "floor", median(cpu["floor"]), 1, 1, median(p50["floor"])},
			Row{w.name, "penstock", median(cpu["penstock"]), median(ratios), median(net), median(p50["penstock"])})
	}
	return rows, idle, nil
}

func last(v []float64) float64 { return v[len(v)-1] }

func longText(n int) string { return strings.Repeat("words of a long prompt, ", n/24) }
