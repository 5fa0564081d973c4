// SPDX-License-Identifier: Apache-2.0

// Command bench measures what a proxy in front of model servers costs: CPU time
// per request, per streamed chunk and per long prompt, the delay that it adds, and
// the memory that an index of prompts takes. All contenders run on the same machine
// in the same run, interleaved, in front of the same fake engines, and the figure to
// look at is the ratio to nginx: absolute times move with the machine.
//
// The program is its own fake engine and its own two plain Go proxies: started with
// a role it becomes one of them, so that each has a process of its own to be
// measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "role=") {
		if err := runRole(strings.TrimPrefix(os.Args[1], "role="), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			if errors.Is(err, errFindings) {
				os.Exit(3)
			}
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are the flags of a run.
type settings struct {
	quick    bool
	format   string
	repeats  int
	only     string // contenders
	works    string
	nginx    string // path of the binary; "" leaves it out
	penstock string
	peers    map[string]string // programs of others by name; nil: none is asked for
	dir      string            // for configurations and logs
}

func parse() (settings, error) {
	var s settings
	flag.BoolVar(&s.quick, "quick", false, "short cells and two repeats: under a minute")
	flag.StringVar(&s.format, "format", "table", "table or json")
	flag.IntVar(&s.repeats, "repeats", 0, "interleaved repeats (default 3, quick 2)")
	flag.StringVar(&s.only, "contenders", "", "comma-separated names (default all)")
	flag.StringVar(&s.works, "works", "", "comma-separated names (default all)")
	flag.StringVar(&s.nginx, "nginx", "", "path of nginx; without it there is no ratio")
	flag.StringVar(&s.penstock, "penstock", "bin/penstock", "path of penstock")
	others := flag.String("peers", "", "other proxies and routers: haproxy=PATH,envoy=PATH,sglang=PYTHON,smg=PATH,vllm-router=PATH,litellm=PATH")
	flag.Parse()
	if *others != "" {
		var err error
		if s.peers, err = programs(*others); err != nil {
			return s, err
		}
	}
	if s.format != "table" && s.format != "json" {
		return s, fmt.Errorf("-format %q is neither table nor json", s.format)
	}
	if s.repeats <= 0 {
		s.repeats = 3
		if s.quick {
			s.repeats = 2
		}
	}
	return s, nil
}

func bench(ctx context.Context) error {
	s, err := parse()
	if err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "penstock-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	lab, err := newLab(ctx, s)
	if err != nil {
		return err
	}
	defer lab.stop()
	begin := time.Now()
	table := &results{}
	for repeat := range s.repeats {
		for _, w := range works(s) {
			if w.once && repeat > 0 {
				continue
			}
			for _, c := range lab.contenders {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if w.skip[c.name] || s.quick && c.pid == 0 && repeat > 0 {
					continue // the base line of delays needs no second look
				}
				progress("repeat %d of %d  %s  %s", repeat+1, s.repeats, w.name, c.name)
				m, err := lab.measure(ctx, c, w)
				if err != nil && ctx.Err() == nil && lab.isPeer(c.name) {
					progress("")
					fmt.Fprintf(os.Stderr, "bench: repeat %d, %s, %s: left out: %v\n", repeat+1, w.name, c.name, err)
					continue
				}
				if err != nil {
					return fmt.Errorf("%s, %s: %w", w.name, c.name, err)
				}
				table.add(repeat, w.name, c.name, m)
			}
		}
	}
	progress("")
	if s.format == "json" {
		return table.writeJSON(os.Stdout)
	}
	return table.writeTable(os.Stdout, time.Since(begin))
}

// progress replaces the line on a terminal; elsewhere it says nothing.
func progress(format string, args ...any) {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
	}
}

// runRole is the process of a fake engine or a plain proxy.
func runRole(role string, args []string) error {
	if role == "soak" {
		return runSoak(args)
	}
	fs := flag.NewFlagSet(role, flag.ContinueOnError)
	listen := fs.String("listen", "", "addresses, comma-separated")
	to := fs.String("to", "", "host:port of the engines, comma-separated")
	gap := fs.Duration("gap", 10*time.Millisecond, "time between chunks of a stream")
	if err := fs.Parse(args); err != nil {
		return err
	}
	switch role {
	case "engine":
		return serveEngines(strings.Split(*listen, ","), *gap)
	case "rawfloor":
		return serveRawFloor(*listen, strings.Split(*to, ","))
	case "reverseproxy":
		return serveReverseProxy(*listen, strings.Split(*to, ","))
	}
	return fmt.Errorf("role %q is unknown", role)
}

// self is the path of this program.
func self() string {
	p, err := os.Executable()
	if err != nil {
		return filepath.Clean(os.Args[0])
	}
	return p
}
