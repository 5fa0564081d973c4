// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// option is an option of a command line with what follows it.
type option struct {
	name   string // with its dashes
	values []string
	line   int
}

// Words splits a text as a shell does: quotes, backslashes and comments; it expands
// nothing. lines holds the line of each word, from 1.
func Words(text string) (words []string, lines []int) {
	var b strings.Builder
	in, quote := false, rune(0)
	line, escaped, comment := 1, false, false
	end := func() {
		if in {
			words, lines = append(words, b.String()), append(lines, line)
		}
		b.Reset()
		in = false
	}
	for _, r := range text {
		switch {
		case comment:
			comment = r != '\n'
		case escaped:
			escaped = false
			if r != '\n' {
				b.WriteRune(r)
				in = true
			}
		case r == '\\' && quote != '\'':
			escaped = true
		case quote != 0:
			if r == quote {
				quote = 0
			} else {
				b.WriteRune(r)
			}
		case r == '"' || r == '\'':
			quote, in = r, true
		case r == ' ' || r == '\t' || r == '\r' || r == '\n':
			end()
		case r == '#' && !in:
			comment = true
		default:
			b.WriteRune(r)
			in = true
		}
		if r == '\n' {
			line++
		}
	}
	end()
	return words, lines
}

func options(text string) []option {
	words, lines := Words(text)
	var out []option
	for i, w := range words {
		if strings.HasPrefix(w, "--") && len(w) > 2 {
			name, value, ok := strings.Cut(w, "=")
			o := option{name: name, line: lines[i]}
			if ok {
				o.values = []string{value}
			}
			out = append(out, o)
		} else if len(out) > 0 {
			out[len(out)-1].values = append(out[len(out)-1].values, w)
		}
	}
	return out
}

func (o *option) value() string {
	if len(o.values) == 0 {
		return ""
	}
	return o.values[len(o.values)-1]
}

// integer returns the value where it is a number between lo and hi.
func (o *option) integer(lo, hi int) (int, bool) {
	n, err := strconv.Atoi(o.value())
	return n, err == nil && n >= lo && n <= hi
}

// smgPolicies are those that Penstock has by another spelling, and what stands for the rest.
var smgPolicies = map[string]string{
	"random": "random", "round_robin": "round-robin", "power_of_two": "power-of-two", "cache_aware": "penstock",
	"prefix_hash": "prefix-affinity", "consistent_hashing": "penstock", "manual": "penstock", "bucket": "penstock", "minimum_tokens": "penstock",
}

const whyPD = "prefill and decode on replicas of their own are not supported"

// smgReasons are of options by their beginnings, the longest that fits.
var smgReasons = map[string]string{
	"--cache-threshold": "nothing to set: each candidate has a price in ms", "--balance-": "nothing to set: each candidate has a price in ms",
	"--eviction-interval": "the index of prefixes is bounded and learns how much each replica keeps", "--max-tree-size": "the index of prefixes is bounded by itself",
	"--block-size": "learned from the replicas", "--prefix-token-count": "prefixes of all lengths are known", "--prefix-hash-load-factor": "waiting has its price",
	"--max-idle-secs": "sessions are bound to nothing", "--assignment-mode": "sessions are bound to nothing",
	"--pd-disaggregation": whyPD, "--prefill": whyPD, "--decode": whyPD, "--mini-lb": whyPD, "--vllm-pd-disaggregation": whyPD,
	"--retry": whyRetry, "--disable-retries": whyRetry, "--cb-": whyHealth, "--disable-circuit-breaker": whyHealth, "--health-": whyHealth,
	"--disable-health-check": whyHealth, "--worker-startup-": "a replica gets nothing until it is ready, however long that takes", "--load-monitor-interval": whyHealth,
	"--request-timeout-secs": whyTime, "--max-concurrent-requests": whyCaps, "--rate-limit-tokens-per-second": "write tenants[].limits: [{per: 1m, requests: ...}]",
	"--queue-size":    "write route.holdMax in a pool that is scaled, tenants[].queueCap for one tenant",
	"--log-dir":       "logs go to standard error; let systemd or the container keep them",
	"--log-level":     "`penstock serve --log-level` has the same levels",
	"--model-path":    "no tokenizer is needed: prompts are known by their text, or by the engine's own /tokenize with engine.tokens: exact",
	"--tokenizer":     "no tokenizer is needed: prompts are known by their text, or by the engine's own /tokenize with engine.tokens: exact",
	"--chat-template": "the engines apply it", "--disable-tokenizer-autoload": "no tokenizer is needed",
	"--reasoning-parser": "the engines parse: give them the option", "--tool-call-parser": "the engines parse: give them the option",
	"--mcp-": "tools are called by clients", "--history-backend": "conversations are kept by clients or engines", "--oracle-": "conversations are kept by clients or engines",
	"--postgres-": "conversations are kept by clients or engines", "--redis-": "conversations are kept by clients or engines", "--enable-wasm": "there are no extensions",
	"--storage-": "there are no extensions", "--schema-config": "conversations are kept by clients or engines", "--webrtc-": "there is no audio over WebRTC",
	"--cross-region": "regions know nothing of each other; several routers of one place do, by share.peers",
	"--enable-mesh":  "write share.peers and share.listen, see docs/how-to/several-routers.md", "--mesh-": "write share.peers and share.listen, see docs/how-to/several-routers.md",
	"--router-": "write share.peers and share.listen, see docs/how-to/several-routers.md",
	"--dp-":     "each rank of data parallelism must be a replica with an address of its own", "--enable-igw": "pools are several by themselves",
	"--backend": "the engine is known by what it answers", "--request-id-headers": "x-request-id is read and answered",
	"--cors-allowed-origins": "browsers of other origins are not served; put that before the gateway",
	"--model-id-from":        "models are what the replicas list", "--jwt-": "write auth.jwt: [{issuer: ..., audience: ...}]", "--control-plane-": "write auth.admin: keys",
	"--enable-trace": "write telemetry.otlp", "--otlp-": "write telemetry.otlp", "--shutdown-grace-period-secs": "`penstock serve --drain-timeout`",
	"--bootstrap-port-annotation": whyPD, "--client-cert-path": "certificates of a client's own are not shown to replicas; put the key of the replicas into engine.apiKeyFile",
	"--client-key-path": "certificates of a client's own are not shown to replicas; put the key of the replicas into engine.apiKeyFile",
}

func smgReason(name string) string {
	best := ""
	for prefix := range smgReasons {
		if strings.HasPrefix(name, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	if best == "" {
		return "not known to this converter; look up what it does there"
	}
	return smgReasons[best]
}

// router is what the options of one command line said.
type router struct {
	*job
	pool       *pool
	host, port option
	promHost   option
	prom       option
	discovery  option
}

// smg converts the command line of sgl-router, of smg, and of what is like them.
func (j *job) smg() error {
	opts := options(string(j.in.Data))
	if len(opts) == 0 {
		return fmt.Errorf("%s holds no options such as --worker-urls", j.in.Name)
	}
	r := &router{job: j, pool: &pool{port: 80}}
	r.pool.policy, r.pool.was = "penstock", "cache_aware, which is the default"
	for i := range opts {
		if !r.find(&opts[i]) && !r.set(&opts[i]) {
			j.note(Left, opts[i].name, opts[i].line, smgReason(opts[i].name))
		}
	}
	r.listeners()
	if r.discovery.name != "" && len(r.pool.selector) == 0 {
		j.note(Left, r.discovery.name, r.discovery.line, "it finds nothing without the labels of --selector")
	}
	if r.discovery.name == "" {
		for _, o := range opts {
			if o.name == "--selector" || strings.HasPrefix(o.name, "--service-discovery-") {
				j.note(Left, o.name, o.line, "without --service-discovery it says nothing")
			}
		}
		r.pool.selector = nil
	}
	if len(r.pool.selector) > 0 && len(r.pool.static) > 0 {
		j.note(Changed, "--worker-urls", 0, "a pool has one source of replicas, here the labels: put these into a pool of their own")
		r.pool.static = nil
	}
	if len(r.pool.selector)+len(r.pool.static) > 0 {
		p := j.out.pool("workers")
		r.pool.name = p.name
		*p = *r.pool
	}
	return nil
}

// find takes what tells of the replicas.
func (r *router) find(o *option) bool {
	switch o.name {
	case "--worker-urls":
		for _, v := range o.values {
			if a := replica(v); a != "" {
				r.pool.add(a)
			} else {
				r.note(Left, o.name, o.line, "a worker of it is no http or https URL that Penstock could serve (gRPC is not spoken to engines)")
			}
		}
	case "--service-discovery":
		r.discovery = *o
	case "--selector":
		for _, v := range o.values {
			for l := range strings.SplitSeq(v, ",") {
				if k, _, ok := strings.Cut(l, "="); !ok || k == "" {
					r.note(Left, o.name, o.line, "a label of it is not of the form KEY=VALUE")
				} else if !slices.Contains(r.pool.selector, plain(l)) {
					r.pool.selector = append(r.pool.selector, plain(l))
				}
			}
		}
	case "--service-discovery-port":
		if n, ok := o.integer(1, 65535); ok {
			r.pool.port = n
			return true
		}
		return false
	case "--service-discovery-namespace":
		r.pool.namespace = plain(o.value())
	case "--api-key":
		r.pool.keyFile = "workers.key"
		r.note(Todo, o.name, o.line, "write the key for the workers into the file workers.key; clients get keys of their own by `penstock key create`")
	default:
		return false
	}
	return true
}

// set takes the rest of what has a counterpart.
func (r *router) set(o *option) bool {
	switch o.name {
	case "--policy":
		was := plain(o.value())
		r.pool.was = was
		policy := smgPolicies[was]
		if policy == "" {
			return false
		}
		r.pool.policy = policy
		if was == "cache_aware" || policy != "penstock" {
			break
		}
		r.note(Changed, o.name, o.line, "Penstock has none like it; where a prompt was cached is part of each price. Headers that name sessions go into route.sessionHeaders")
	case "--host":
		r.host = *o
	case "--port":
		r.port = *o
	case "--prometheus-port":
		r.prom = *o
	case "--prometheus-host":
		r.promHost = *o
	case "--max-payload-size":
		n, ok := o.integer(1<<10, 1<<31)
		if !ok {
			return false
		}
		r.out.body = strconv.Itoa(n) + "B"
	case "--tls-cert-path":
		r.out.tls[0] = o.value()
	case "--tls-key-path":
		r.out.tls[1] = o.value()
	case "--queue-timeout-secs":
		n, ok := o.integer(1, 86400)
		if !ok {
			return false
		}
		r.pool.holdFor = strconv.Itoa(n) + "s"
		r.note(Changed, o.name, o.line, "route.holdFor: how long a request may wait while no replica is ready or takes it")
	default:
		return false
	}
	return true
}

// listeners writes where clients and Prometheus come to.
func (r *router) listeners() {
	if r.port.name != "" || r.host.name != "" {
		port := 30000
		if n, ok := r.port.integer(1, 65535); ok {
			port = n
		} else if r.port.name != "" {
			r.note(Left, r.port.name, r.port.line, "it is no port")
		}
		r.out.listen = append(r.out.listen, [2]string{"http", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
		if r.host.name != "" && r.host.value() != "127.0.0.1" {
			r.note(Todo, r.host.name, r.host.line, "the gateway listens on loopback until clients need keys: write auth.keysFile, then the address into listen.http")
		}
	}
	host := strings.Trim(r.promHost.value(), "[]")
	n, ok := r.prom.integer(1, 65535)
	if r.promHost.name != "" && (!ok || net.ParseIP(host) == nil) {
		r.note(Left, r.promHost.name, r.promHost.line, "it is no IP address, or there is no --prometheus-port beside it")
	}
	if ok {
		if net.ParseIP(host) == nil {
			host = "127.0.0.1"
		}
		r.out.listen = append(r.out.listen, [2]string{"prometheus", net.JoinHostPort(host, strconv.Itoa(n))})
		r.note(Changed, r.prom.name, r.prom.line, "the metrics have other names: docs/reference/metrics.md")
	} else if r.prom.name != "" {
		r.note(Left, r.prom.name, r.prom.line, "it is no port")
	}
	if (r.out.tls[0] == "") != (r.out.tls[1] == "") {
		r.note(Left, "--tls-cert-path", 0, "certificate and key come together")
		r.out.tls = [2]string{}
	}
}
