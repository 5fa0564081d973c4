// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// engines is how many fake engines stand behind every contender.
const engines = 4

// contender is one proxy under test.
type contender struct {
	name  string
	addr  string // where clients connect; of direct the first engine
	pid   int    // 0 for direct: nothing to measure
	ready string // URL that answers 200 once it serves
	cmd   *exec.Cmd
	admin string // of penstock: its admin API
	// patience is how often it is asked whether it serves, ten times a second; 0: 100.
	patience int
}

// lab is the set of running processes.
type lab struct {
	s          settings
	engine     *exec.Cmd
	engineAddr []string
	frozen     *exec.Cmd // the last engine, a process of its own that a work may freeze
	more       *exec.Cmd // a thousand engines
	contenders []*contender
}

func newLab(ctx context.Context, s settings) (*lab, error) {
	l := &lab{s: s}
	var err error
	if l.engineAddr, err = freeAddrs(engines); err != nil {
		return nil, err
	}
	last := engines - 1
	l.engine, err = l.spawn("engine", self(), "role=engine", "-listen", strings.Join(l.engineAddr[:last], ","))
	if err == nil {
		l.frozen, err = l.spawn("engine-frozen", self(), "role=engine", "-listen", l.engineAddr[last])
	}
	if err == nil {
		err = l.makeKey()
	}
	if err == nil {
		err = l.startAll(ctx)
	}
	if err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

// contenderOrder is the order in which contenders start, run and are printed.
var contenderOrder = []string{"direct", reference, "haproxy", "envoy", "reverseproxy", "rawfloor", "penstock", "penstock-portable", "penstock-boundary",
	"penstock-1000", "sglang-rr", "sglang-ca", "smg-rr", "smg-ca", "vllm-rr", "vllm-ca", "litellm"}

// onlyByName are contenders and works that run only where they are named.
var onlyByName = map[string]bool{"penstock-1000": true, "streams-9000": true, "streams-10000-h2": true, "crowd-10000-h2": true, "frozen-5s": true}

// wanted reports whether a comma-separated list, empty for all, holds name.
func wanted(list, name string) bool {
	return list == "" && !onlyByName[name] || strings.Contains(","+list+",", ","+name+",")
}

func (l *lab) startAll(ctx context.Context) error {
	starts := map[string]func(listen string) (*contender, error){
		"direct": l.direct, reference: l.startNginx, "reverseproxy": l.startPlain("reverseproxy"),
		"rawfloor": l.startPlain("rawfloor"), "penstock": l.startPenstock(""), "penstock-portable": l.startPenstock("portable"),
		"penstock-boundary": l.startBoundary, "penstock-1000": l.startThousand,
	}
	for _, p := range peers {
		starts[p.name] = func(listen string) (*contender, error) {
			if l.s.peers[p.program] == "" {
				return nil, errAbsent
			}
			return p.start(l, p.name, l.s.peers[p.program], listen)
		}
	}
	for _, name := range contenderOrder {
		if !wanted(l.s.only, name) {
			continue
		}
		addrs, err := freeAddrs(1)
		if err != nil {
			return err
		}
		c, err := starts[name](addrs[0])
		if errors.Is(err, errAbsent) && l.s.only == "" && l.s.peers == nil && l.isPeer(name) {
			continue // nobody asked for the peers
		}
		if errors.Is(err, errAbsent) {
			fmt.Fprintf(os.Stderr, "bench: %s: %v, left out\n", name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		c.name = name
		l.contenders = append(l.contenders, c)
		if err := c.wait(ctx); err != nil {
			if l.isPeer(c.name) {
				fmt.Fprintf(os.Stderr, "bench: %s does not serve, left out: %v%s\n", name, err, l.log(name))
				l.drop(c)
				continue
			}
			return fmt.Errorf("%s does not serve: %w%s", c.name, err, l.log(c.name))
		}
	}
	return nil
}

var errAbsent = errors.New("is not installed")

func (l *lab) direct(string) (*contender, error) { return &contender{addr: l.engineAddr[0]}, nil }

func (l *lab) startPlain(role string) func(string) (*contender, error) {
	return func(listen string) (*contender, error) {
		cmd, err := l.spawn(role, self(), "role="+role, "-listen", listen, "-to", strings.Join(l.engineAddr, ","))
		return &contender{addr: listen, cmd: cmd}, err
	}
}

// startPenstock starts penstock serve with one of its ways to carry streams; "": as it
// comes.
func (l *lab) startPenstock(streams string) func(string) (*contender, error) {
	return func(listen string) (*contender, error) {
		if _, err := os.Stat(l.s.penstock); err != nil {
			return nil, fmt.Errorf("%w (%s)", errAbsent, l.s.penstock)
		}
		admin, err := freeAddrs(1)
		if err != nil {
			return nil, err
		}
		args := []string{"PENSTOCK_RELAY=" + streams, l.s.penstock, "serve", "--listen", listen, "--admin", admin[0]}
		for _, a := range l.engineAddr {
			args = append(args, "--replica", "http://"+a)
		}
		cmd, err := l.spawn(strings.TrimSuffix("penstock-"+streams, "-"), "/usr/bin/env", args...)
		return &contender{addr: listen, cmd: cmd, ready: "http://" + listen + "/readyz", admin: admin[0]}, err
	}
}

// startThousand starts penstock serve in front of a thousand replicas.
func (l *lab) startThousand(listen string) (*contender, error) {
	addrs, err := freeAddrs(1000)
	if err != nil {
		return nil, err
	}
	if l.more, err = l.spawn("engines-1000", self(), "role=engine", "-listen", strings.Join(addrs, ",")); err != nil {
		return nil, err
	}
	four := l.engineAddr
	defer func() { l.engineAddr = four }()
	l.engineAddr = addrs
	return l.startPenstock("")(listen)
}

// boundaryConf turns on what the gateway has at its boundary: keys, limits of several
// kinds with a budget, fair queueing, a cache salt, hashes of prompts to a file, a
// rollout with shadow traffic off, data policy, roles, traces and metrics.
const boundaryConf = `listen: {http: %[1]q, admin: %[2]q}
auth: {keysFile: %[3]s/keys.json, admin: keys}
limits: {connectionsPerKey: 100000, streamsPerKey: 100000}
prices: [{model: "*", prompt: 1, output: 4}]
tenants:
  - name: bench
    weight: 1
    limits:
      - {per: 1m, tokens: 1000000000, requests: 100000000}
      - {per: 1h, outputTokens: 1000000000, scope: key}
      - {concurrent: 100000}
      - {every: month, budget: 900000000}
    queueCap: 100000
    logging: hash
    cacheSalt: tenant
    pools: [chat]
logging:
  sinks: [{name: file, dir: %[3]s/prompts}]
  rules: [{level: hash, sample: 10%%, sinks: [file]}]
rollouts:
  - {name: r, model: canary, baseline: {model: bench}, canary: {model: bench-2}, steps: [10%%]}
telemetry: {otlp: "http://%[4]s", sample: 10%%}
pools:
  - name: chat
    models: [{name: bench, aliases: [bench-2]}]
    replicas: {static: [%[5]s]}
`

// startBoundary starts penstock serve with everything at its boundary on.
func (l *lab) startBoundary(listen string) (*contender, error) {
	if _, err := os.Stat(l.s.penstock); err != nil {
		return nil, fmt.Errorf("%w (%s)", errAbsent, l.s.penstock)
	}
	admin, err := freeAddrs(1)
	if err != nil {
		return nil, err
	}
	var urls []string
	for _, a := range l.engineAddr {
		urls = append(urls, "http://"+a)
	}
	conf := filepath.Join(l.s.dir, "boundary.yaml")
	text := fmt.Sprintf(boundaryConf, listen, admin[0], l.s.dir, l.engineAddr[0], strings.Join(urls, ", "))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd, err := l.spawn("penstock-boundary", l.s.penstock, "serve", "--config", conf, "--log-level", "warn")
	return &contender{addr: listen, cmd: cmd, ready: "http://" + listen + "/readyz"}, err
}

// makeKey makes the key that all requests show.
func (l *lab) makeKey() error {
	if _, err := os.Stat(l.s.penstock); err != nil {
		return nil
	}
	out, err := exec.Command(l.s.penstock, "key", "create", "--file", filepath.Join(l.s.dir, "keys.json"), "--tenant", "bench").Output()
	if err != nil {
		return fmt.Errorf("penstock key create: %w", err)
	}
	authorization = "Authorization: Bearer " + strings.TrimSpace(string(out)) + "\r\n"
	return nil
}

// nginxConf is nginx as an operator would set it up for this: connections kept to
// the engines, no buffering of answers, bodies held in memory.
const nginxConf = `daemon off;
pid %[1]s/nginx.pid;
error_log %[1]s/nginx.log warn;
worker_processes auto;
worker_rlimit_nofile 20000;
events { worker_connections 19000; }
http {
  access_log off;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  keepalive_requests 10000000;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  upstream engines {
    least_conn;
%[2]s    keepalive 256;
    keepalive_requests 10000000;
  }
  server {
    listen %[3]s;
    location / {
      proxy_pass http://engines;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }
  }
}
`

func (l *lab) startNginx(listen string) (*contender, error) {
	if l.s.nginx == "" {
		return nil, errAbsent
	}
	servers := ""
	for _, a := range l.engineAddr {
		servers += "    server " + a + ";\n"
	}
	conf := filepath.Join(l.s.dir, "nginx.conf")
	text := fmt.Sprintf(nginxConf, l.s.dir, servers, listen)
	if os.Getuid() == 0 {
		text = "user root;\n" + text
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd, err := l.spawn("nginx", l.s.nginx, "-p", l.s.dir, "-e", filepath.Join(l.s.dir, "nginx.log"), "-c", conf)
	return &contender{addr: listen, cmd: cmd}, err
}

// spawn starts a process that ends with this one; its output goes to a log file.
func (l *lab) spawn(name, path string, args ...string) (*exec.Cmd, error) {
	f, err := os.Create(filepath.Join(l.s.dir, name+".out"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = f, f
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: true}
	return cmd, cmd.Start()
}

// log returns the end of what a process wrote.
func (l *lab) log(name string) string {
	b, err := os.ReadFile(filepath.Join(l.s.dir, name+".out"))
	if err != nil || len(b) == 0 {
		return ""
	}
	return "; it wrote:\n" + string(b[max(0, len(b)-2000):])
}

// wait blocks until the contender answers.
func (c *contender) wait(ctx context.Context) error {
	if c.cmd != nil {
		c.pid = c.cmd.Process.Pid
	}
	url := c.ready
	if url == "" {
		url = "http://" + c.addr + "/health"
	}
	var last error
	for range max(c.patience, 100) {
		if err := ctx.Err(); err != nil {
			return err
		}
		resp, err := http.Get(url)
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
			err = fmt.Errorf("%s: %s", url, resp.Status)
		}
		last = err
		time.Sleep(100 * time.Millisecond)
	}
	return last
}

// stop ends every process that was started.
func (l *lab) stop() {
	for _, c := range l.contenders {
		end(c.cmd)
	}
	end(l.engine)
	end(l.frozen)
	end(l.more)
}

// end stops a process with its children, in 3 s at most; nil is none.
func end(c *exec.Cmd) {
	if c == nil || c.Process == nil {
		return
	}
	done := make(chan struct{})
	go func() { c.Wait(); close(done) }()
	c.Process.Signal(syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(3 * time.Second):
	}
	syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // what it left behind, too
	<-done
}

// isPeer reports whether a contender is somebody else's program.
func (l *lab) isPeer(name string) bool {
	for _, p := range peers {
		if p.name == name {
			return true
		}
	}
	return false
}

// drop ends a contender that does not serve.
func (l *lab) drop(c *contender) {
	end(c.cmd)
	l.contenders = l.contenders[:len(l.contenders)-1]
}

// freeAddrs returns n loopback addresses whose ports are free now.
func freeAddrs(n int) ([]string, error) {
	var out []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		out = append(out, ln.Addr().String())
	}
	return out, nil
}
