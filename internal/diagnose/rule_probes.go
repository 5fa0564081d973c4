// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of the probe rules.
const (
	// floorBudget is the budget in seconds below which a probe is called too short
	// without an observed start: public quickstarts with 150 s restart an 8B model
	// that has to be downloaded.
	floorBudget = 60
	// strictWindow is for how many seconds a busy engine may be silent: a long
	// prefill delays the answer to a probe by as much.
	strictWindow = 20
)

// checkProbes judges the probes of every container that serves a model.
func checkProbes(s *Set, k *sink) {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		for j := range w.Pod.Containers {
			c := &w.Pod.Containers[j]
			engine, serves := c.EngineOf()
			if serves == ServesNo || serves == ServesUnknown && !w.Fragment {
				continue
			}
			checkStartBudget(s, k, w, c)
			checkStrict(k, w, c)
			checkReadiness(k, w, c)
			checkProbeTarget(k, w, c, engine)
		}
	}
}

func where(w *Workload, c *Container) string {
	if c.Name == "" {
		return w.Ref()
	}
	return w.Ref() + " container " + c.Name
}

func probeFinding(w *Workload, c *Container, line int, code string) Finding {
	f := at(&w.Object, line, code)
	f.Object = where(w, c)
	return f
}

// checkStartBudget compares the time that the kubelet gives a start with the time
// that a start takes.
func checkStartBudget(s *Set, k *sink, w *Workload, c *Container) {
	p, code, which := c.Startup, "startup-budget-too-small", "startup"
	if p == nil {
		p, code, which = c.Liveness, "liveness-kills-start", "liveness"
	}
	if p == nil {
		return
	}
	budget := p.Budget()
	start, seen := s.Seen.SlowestStart(w.Name)
	var killed []float64
	for _, st := range s.Seen.Starts {
		if st.Seconds > budget {
			killed = append(killed, st.Seconds)
		}
	}
	switch {
	case seen && len(killed) == 0:
		return
	case !seen && budget >= max(floorBudget, loadFloor(c)):
		return
	}
	f := probeFinding(w, c, p.Line, code)
	f.Evidence = []Evidence{Ev(which+"_budget", budget, "s").From(fmt.Sprintf("%d + %d x %d", p.Delay.Or(0), p.Failure.Or(3), p.Period.Or(10)))}
	if seen {
		if len(killed) > 0 {
			start = killed[0]
		}
		slow, few := 0.0, 0
		for _, st := range s.Seen.Starts {
			v := Ev("verdict_for_"+Num(st.Seconds), "survives", "").From("observed start")
			if st.Seconds > budget {
				v.Value = "killed"
				few++
			}
			slow = max(slow, st.Seconds)
			f.Evidence = append(f.Evidence, v)
		}
		if few < len(s.Seen.Starts) {
			f.Severity = Warning
			if anyUnnamedKilled(s, budget) {
				f.Severity = Error
			}
		}
		start = max(start, slow)
		f.Message = fmt.Sprintf("the %s probe kills the pod at %s, every time: the slowest observed start takes %s", which, Seconds(budget), Seconds(start))
	} else {
		start = floorBudget * 5
		f.Severity = Warning
		f.Evidence = append(f.Evidence, Evidence{Name: "start", Value: nil, Unit: "s"})
		if least := loadFloor(c); least > floorBudget {
			start = max(start, 2*least)
			f.Evidence = append(f.Evidence, Ev("loading_takes", least, "s").Assumed("weights of the size in the model's name, read at 1 GB/s"))
		}
		f.Message = fmt.Sprintf("the %s probe kills the pod at %s; how long a start takes is not known here, but a model server needs 30 s with the smallest model and minutes with a large one", which, Seconds(budget))
	}
	f.Message += ". It looks like a crash loop, and each restart loads again"
	failures := ceilInt(2 * start / 10)
	f.Remedy = fmt.Sprintf("startupProbe:\n  httpGet: {path: %s, port: %s}\n  periodSeconds: 10\n  failureThreshold: %d   # %s, twice the slowest start\nRemove initialDelaySeconds and keep the liveness probe strict: it begins only after the startup probe passed.",
		pathOr(p), portOr(p), failures, Seconds(float64(failures*10)))
	f.Edits = budgetEdits(w, c, p, failures)
	k.add(f)
}

func anyUnnamedKilled(s *Set, budget float64) bool {
	for _, st := range s.Seen.Starts {
		if st.Name == "" && st.Seconds > budget {
			return true
		}
	}
	return false
}

func budgetEdits(w *Workload, c *Container, p *Probe, failures int) []Edit {
	if c.Startup != nil {
		period := max(1, p.Period.Or(10))
		n := ceilInt(float64(failures*10) / float64(period))
		if p.Failure.Set {
			return []Edit{replaceField(w.File, p.Failure, strconv.Itoa(n))}
		}
		if e, ok := addKeys(w.File, p.At, fmt.Sprintf("failureThreshold: %d", n)); ok {
			return []Edit{e}
		}
		return nil
	}
	line := fmt.Sprintf("startupProbe: {httpGet: {path: %s, port: %s}, periodSeconds: 10, failureThreshold: %d}", pathOr(p), portOr(p), failures)
	if p.Kind == ProbeTCP {
		line = fmt.Sprintf("startupProbe: {httpGet: {path: /health, port: %s}, periodSeconds: 10, failureThreshold: %d}", portOr(p), failures)
	}
	if e, ok := addKeys(w.File, c.At, line); ok {
		return []Edit{e}
	}
	return nil
}

func pathOr(p *Probe) string {
	if p.Path.V != "" {
		return p.Path.V
	}
	return "/health"
}

func portOr(p *Probe) string {
	if p.Port.V != "" {
		return p.Port.V
	}
	return "8000"
}

// checkStrict finds probes that a busy engine fails.
func checkStrict(k *sink, w *Workload, c *Container) {
	if p := c.Liveness; p != nil && p.Window() < strictWindow && p.Timeout.Or(1) < 5 {
		f := probeFinding(w, c, p.Line, "liveness-too-strict")
		f.Evidence = []Evidence{Ev("silence_allowed", p.Window(), "s"), Ev("timeout", p.Timeout.Or(1), "s")}
		f.Message = fmt.Sprintf("the liveness probe restarts an engine that is silent for %s; a long prefill or a burst delays /health by as much, and the restart throws away the loaded model and its cache", Seconds(p.Window()))
		f.Remedy = "livenessProbe:\n  periodSeconds: 10\n  timeoutSeconds: 10\n  failureThreshold: 6"
		f.Edits = strictEdits(w.File, p, 10, 10, 6)
		k.add(f)
	}
	if p := c.Readiness; p != nil && p.Window() <= 3 && p.Timeout.Or(1) <= 2 {
		f := probeFinding(w, c, p.Line, "readiness-flaps")
		f.Evidence = []Evidence{Ev("silence_allowed", p.Window(), "s"), Ev("timeout", p.Timeout.Or(1), "s")}
		f.Message = fmt.Sprintf("the readiness probe drops a replica that is silent for %s: under load replicas leave and return, and each leave moves its load to the others", Seconds(p.Window()))
		f.Remedy = "readinessProbe:\n  periodSeconds: 5\n  timeoutSeconds: 5\n  failureThreshold: 3"
		f.Edits = strictEdits(w.File, p, 5, 5, 3)
		k.add(f)
	}
}

func strictEdits(file string, p *Probe, period, timeout, failures int) []Edit {
	var out []Edit
	var missing []string
	set := func(f Field[int], name string, v int) {
		if f.Set {
			out = append(out, replaceField(file, f, strconv.Itoa(v)))
		} else {
			missing = append(missing, fmt.Sprintf("%s: %d", name, v))
		}
	}
	set(p.Period, "periodSeconds", period)
	set(p.Timeout, "timeoutSeconds", timeout)
	set(p.Failure, "failureThreshold", failures)
	if len(missing) > 0 {
		if e, ok := addKeys(file, p.At, missing...); ok {
			out = append(out, e)
		}
	}
	return out
}

// checkReadiness finds readiness that does not know whether the model is loaded,
// and starts that nothing watches.
func checkReadiness(k *sink, w *Workload, c *Container) {
	p := c.Readiness
	if p != nil && p.Kind == ProbeTCP {
		f := probeFinding(w, c, p.Line, "readiness-tcp")
		f.Evidence = []Evidence{{Name: "readinessProbe", Value: "tcpSocket"}}
		if c.Image.V != "" {
			f.Evidence = append(f.Evidence, Evidence{Name: "image", Value: c.Image.V})
		}
		f.Message = "a tcpSocket probe is green as soon as the port listens: a replica gets traffic before it can answer, during the overload that created it"
		f.Remedy = fmt.Sprintf("readinessProbe:\n  httpGet: {path: /v1/models, port: %s}\n  periodSeconds: 5\n  timeoutSeconds: 5\n  failureThreshold: 3", portOr(p))
		f.Edits = tcpEdits(w, p)
		k.add(f)
	}
	if c.Startup == nil && c.Liveness == nil && p != nil && (p.Kind == ProbeTCP || p.Delay.V >= 30) {
		f := probeFinding(w, c, c.Line, "no-startup-probe")
		f.Evidence = []Evidence{{Name: "startupProbe", Value: "none"}, {Name: "livenessProbe", Value: "none"}, Ev("readiness_delay", p.Delay.Or(0), "s")}
		f.Message = fmt.Sprintf("nothing watches the start: there is no startup probe, the readiness delay of %s is a guess at it, and without a liveness probe an engine that hangs is never restarted", Seconds(float64(p.Delay.Or(0))))
		f.Remedy = fmt.Sprintf("startupProbe:\n  httpGet: {path: /health, port: %s}\n  periodSeconds: 10\n  failureThreshold: 60\nlivenessProbe:\n  httpGet: {path: /health, port: %s}\n  periodSeconds: 10\n  timeoutSeconds: 10\n  failureThreshold: 6", portOr(p), portOr(p))
		lines := []string{
			fmt.Sprintf("startupProbe: {httpGet: {path: /health, port: %s}, periodSeconds: 10, failureThreshold: 60}", portOr(p)),
			fmt.Sprintf("livenessProbe: {httpGet: {path: /health, port: %s}, periodSeconds: 10, timeoutSeconds: 10, failureThreshold: 6}", portOr(p)),
		}
		if e, ok := addKeys(w.File, c.At, lines...); ok {
			f.Edits = []Edit{e}
		}
		k.add(f)
	}
}

func tcpEdits(w *Workload, p *Probe) []Edit {
	if p.KindAt.Len == 0 || p.HandlerAt.Line == 0 {
		return nil
	}
	out := []Edit{{File: w.File, Line: p.KindAt.Line, Col: p.KindAt.Col, Del: p.KindAt.Len, Text: "httpGet"}}
	if e, ok := addKeys(w.File, p.HandlerAt, "path: /v1/models"); ok {
		return append(out, e)
	}
	return nil
}

// healthPaths lists the paths that an engine answers a GET on, for engines whose
// list is short enough to be known; "" where it is not.
func healthPaths(e Engine) string {
	switch e {
	case EngineVLLM:
		return "/health /ping /version /v1/models /load /metrics /docs /openapi.json /is_sleeping"
	case EngineSGLang:
		return "/health /health_generate /ping /v1/models /get_model_info /model_info /get_server_info /server_info /get_load /metrics /docs /openapi.json"
	case EngineTGI:
		return "/health /info /ping /v1/models /metrics / /docs"
	}
	return ""
}

// strangePaths are health paths of other servers, which people copy.
var strangePaths = [...]string{"/healthz", "/ready", "/readyz", "/livez", "/live", "/v1/health/ready", "/v1/health/live", "/v2/health/ready", "/v2/health/live", "/health/ready", "/health/live", "/status", "/v1/health"}

// checkProbeTarget finds probes that ask a path or a port that nobody answers.
func checkProbeTarget(k *sink, w *Workload, c *Container, engine Engine) {
	for _, p := range [...]*Probe{c.Startup, c.Liveness, c.Readiness} {
		if p == nil {
			continue
		}
		if known := healthPaths(engine); p.Kind == ProbeHTTP && known != "" && !hasWord(known, p.Path.V) && strange(p.Path.V) && !proxied(w, c) {
			f := probeFinding(w, c, p.Path.Line(p.Line), "wrong-probe-path")
			f.Evidence = []Evidence{{Name: "path", Value: p.Path.V}, {Name: "engine", Value: string(engine)}, {Name: "answers", Value: "404"}}
			f.Message = fmt.Sprintf("%s does not answer %s: the probe gets a 404 from a healthy server", engine, p.Path.V)
			f.Remedy = "path: /health"
			f.Edits = []Edit{replaceField(w.File, p.Path, "/health")}
			k.add(f)
		}
		if f, bad := wrongPort(w, c, p, engine); bad {
			k.add(f)
		}
	}
}

func strange(path string) bool {
	for _, s := range strangePaths {
		if path == s {
			return true
		}
	}
	return false
}

// proxied reports whether another container of the pod could answer in the
// engine's place.
func proxied(w *Workload, c *Container) bool { return len(w.Pod.Containers) > 1 }

// wrongPort compares a probe's port with the port that the engine was told to
// listen on, and a port name with the names that the container declares.
func wrongPort(w *Workload, c *Container, p *Probe, engine Engine) (Finding, bool) {
	if !p.Port.Set || p.Kind == ProbeGRPC {
		return Finding{}, false
	}
	want, err := strconv.Atoi(p.Port.V)
	if err != nil {
		for _, cp := range c.Ports {
			if cp.Name == p.Port.V {
				return Finding{}, false
			}
		}
		if len(c.Ports) == 0 || strings.ContainsAny(p.Port.V, "{$") {
			return Finding{}, false
		}
		f := probeFinding(w, c, p.Port.Line(p.Line), "wrong-probe-port")
		f.Evidence = []Evidence{{Name: "port", Value: p.Port.V}, {Name: "declared", Value: portNames(c)}}
		f.Message = fmt.Sprintf("the container declares no port named %s (it has %s): the probe never passes", p.Port.V, portNames(c))
		f.Remedy = "Use a name that the container declares, or the number."
		return f, true
	}
	listen, flag, ok := c.flagInt("--port", "--http-port")
	if !ok || listen == want || proxied(w, c) || len(w.Pod.Init) > 0 {
		return Finding{}, false
	}
	f := probeFinding(w, c, p.Port.Line(p.Line), "wrong-probe-port")
	f.Evidence = []Evidence{Ev("probe_port", want, ""), Ev("listens_on", listen, "").From("line " + strconv.Itoa(flag.At.Line))}
	f.Message = fmt.Sprintf("the probe asks port %d and the engine listens on %d: it never passes", want, listen)
	f.Remedy = fmt.Sprintf("port: %d", listen)
	f.Edits = []Edit{replaceField(w.File, p.Port, strconv.Itoa(listen))}
	return f, true
}

func portNames(c *Container) string {
	var out []string
	for _, p := range c.Ports {
		if p.Name != "" {
			out = append(out, p.Name)
		}
	}
	if len(out) == 0 {
		return "no names"
	}
	return strings.Join(out, ", ")
}
