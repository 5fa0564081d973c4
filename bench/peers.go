// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// peers are the proxies and routers that scripts/peers.sh installs, with the command
// that starts each. Each runs as it comes, but for what makes it comparable: no access
// log, connections kept to the engines, answers not held back.
var peers = []struct {
	name    string
	program string // as scripts/peers.sh names it
	start   func(l *lab, name, program, listen string) (*contender, error)
}{
	{"haproxy", "haproxy", startHAProxy},
	{"envoy", "envoy", startEnvoy},
	{"sglang-rr", "sglang", rustRouter("round_robin", "-m", "sglang_router.launch_router")},
	{"sglang-ca", "sglang", rustRouter("cache_aware", "-m", "sglang_router.launch_router")},
	{"smg-rr", "smg", rustRouter("round_robin", "launch")},
	{"smg-ca", "smg", rustRouter("cache_aware", "launch")},
	{"vllm-rr", "vllm-router", rustRouter("round_robin")},
	{"vllm-ca", "vllm-router", rustRouter("cache_aware")},
	{"litellm", "litellm", startLiteLLM},
}

// programs reads -peers, name=path pairs; an empty path leaves a program out.
func programs(flag string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range strings.Split(flag, ",") {
		if p == "" {
			continue
		}
		name, path, ok := strings.Cut(p, "=")
		if !ok {
			return nil, fmt.Errorf("-peers: %q is not name=path", p)
		}
		out[name] = path
	}
	return out, nil
}

// servers writes one line for each engine.
func (l *lab) servers(line func(i int, addr string) string) string {
	var b strings.Builder
	for i, a := range l.engineAddr {
		b.WriteString(line(i, a))
	}
	return b.String()
}

// spawnWith starts a peer whose configuration is a file.
func (l *lab) spawnWith(name, program, listen, file, text string, args ...string) (*contender, error) {
	conf := filepath.Join(l.s.dir, file)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	for i, a := range args {
		if a == "CONF" {
			args[i] = conf
		}
	}
	cmd, err := l.spawn(name, program, args...)
	return &contender{addr: listen, cmd: cmd}, err
}

const haproxyConf = `global
  maxconn 9500
defaults
  mode http
  option http-no-delay
  option abortonclose
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  http-reuse always
frontend f
  bind %s
  default_backend engines
backend engines
  balance leastconn
%s`

func startHAProxy(l *lab, name, program, listen string) (*contender, error) {
	servers := l.servers(func(i int, a string) string { return fmt.Sprintf("  server e%d %s\n", i, a) })
	return l.spawnWith(name, program, listen, "haproxy.cfg", fmt.Sprintf(haproxyConf, listen, servers), "-db", "-q", "-f", "CONF")
}

const envoyConf = `static_resources:
  listeners:
  - address: {socket_address: {address: 127.0.0.1, port_value: %s}}
    filter_chains:
    - filters:
      - name: hcm
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          stream_idle_timeout: 0s
          http_filters:
          - name: router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - {name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: engines, timeout: 0s}}]}
  clusters:
  - name: engines
    connect_timeout: 5s
    lb_policy: LEAST_REQUEST
    circuit_breakers: {thresholds: [{max_connections: 20000, max_pending_requests: 20000, max_requests: 20000}]}
    load_assignment:
      cluster_name: engines
      endpoints:
      - lb_endpoints:
%s`

func startEnvoy(l *lab, name, program, listen string) (*contender, error) {
	servers := l.servers(func(_ int, a string) string {
		host, port, _ := strings.Cut(a, ":")
		return fmt.Sprintf("        - endpoint: {address: {socket_address: {address: %s, port_value: %s}}}\n", host, port)
	})
	_, port, _ := strings.Cut(listen, ":")
	return l.spawnWith(name, program, listen, "envoy.yaml", fmt.Sprintf(envoyConf, port, servers),
		"-c", "CONF", "--disable-hot-restart", "--log-level", "error")
}

// rustRouter starts one of the three routers that have their flags in common.
func rustRouter(policy string, before ...string) func(*lab, string, string, string) (*contender, error) {
	return func(l *lab, name, program, listen string) (*contender, error) {
		metrics, err := freeAddrs(1)
		if err != nil {
			return nil, err
		}
		host, port, _ := strings.Cut(listen, ":")
		_, metricsPort, _ := strings.Cut(metrics[0], ":")
		args := append(append([]string(nil), before...), "--host", host, "--port", port, "--policy", policy,
			"--prometheus-host", host, "--prometheus-port", metricsPort, "--log-level", "error", "--worker-urls")
		for _, a := range l.engineAddr {
			args = append(args, "http://"+a)
		}
		cmd, err := l.spawn(name, program, args...)
		return &contender{addr: listen, cmd: cmd, patience: 400}, err
	}
}

func startLiteLLM(l *lab, name, program, listen string) (*contender, error) {
	models := l.servers(func(_ int, a string) string {
		return fmt.Sprintf("  - {model_name: bench, litellm_params: {model: openai/bench, api_base: \"http://%s/v1\", api_key: none}}\n", a)
	})
	// Without a key of its own it does not start unless it is told to. It listens on loopback.
	text := "model_list:\n" + models + "router_settings: {routing_strategy: least-busy}\ngeneral_settings: {dangerously_permit_weak_or_unset_master_key: true}\n"
	host, port, _ := strings.Cut(listen, ":")
	c, err := l.spawnWith(name, program, listen, "litellm.yaml", text, "--config", "CONF", "--host", host, "--port", port, "--num_workers", "1", "--telemetry", "False")
	if err != nil {
		return nil, err
	}
	c.ready, c.patience = "http://"+listen+"/health/liveliness", 1200
	return c, nil
}
