// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// AdapterPlan are the LoRA adapters that every replica should list. Penstock changes
// nothing at a replica but this, and only where the operator allows it.
type AdapterPlan struct {
	Names []string
	Path  string // of an adapter as replicas see it; {name} stands for its name
}

func (p *AdapterPlan) pathOf(name string) string { return strings.ReplaceAll(p.Path, "{name}", name) }

// SetAdapters changes what replicas are asked to load. What failed is tried again
// where its path is another one.
func (o *Observer) SetAdapters(p AdapterPlan) {
	p.Names = slices.Clone(p.Names)
	o.plan.Store(&p)
}

const (
	loadTimeout = time.Minute
	loadLook    = 250 * time.Millisecond
	planLook    = 2 * time.Second // while nothing is asked for
	// A load that may succeed another time is tried loadTries times, after pauses that double
	// from loadPause; then it counts as failed and is tried again after loadRest.
	loadTries = 5
	loadPause = time.Second
	loadRest  = 10 * time.Minute
	// listedWithin is how long after a load the replica's list of models may lack it:
	// the list is read every modelsEvery.
	listedWithin = 2 * modelsEvery
	maxLoadBody  = 64 << 10
)

// loader keeps the adapters of the plan loaded at one replica. Its methods are safe
// for concurrent use.
type loader struct {
	base, auth string
	client     *http.Client

	mu    sync.Mutex
	state map[string]*adapterLoad
}

// adapterLoad is one adapter that the replica does not list, or did not lately.
type adapterLoad struct {
	path   string
	tries  int
	next   fleet.Time // not before; fleet.Never: it failed for good
	loaded fleet.Time // 0: not
	failed bool
	reason string
	at     fleet.Time // of the state
}

// forget starts again: the process is another one.
func (l *loader) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = nil
}

// due returns an adapter to load now; "" where there is none. listed are the models
// that the replica lists.
func (l *loader) due(now fleet.Time, p *AdapterPlan, listed []string) (name, path string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.state {
		if !slices.Contains(p.Names, n) {
			delete(l.state, n)
		}
	}
	for _, n := range p.Names {
		s := l.state[n]
		if slices.Contains(listed, n) {
			delete(l.state, n)
			continue
		}
		if s == nil || s.path != p.pathOf(n) || s.loaded != 0 && now.Sub(s.loaded) >= listedWithin {
			s = &adapterLoad{path: p.pathOf(n), at: now}
			if l.state == nil {
				l.state = map[string]*adapterLoad{}
			}
			l.state[n] = s
		}
		if s.loaded == 0 && s.next <= now && name == "" {
			name, path = n, s.path
		}
	}
	return name, path
}

// done notes how a load ended: reason "" is well, permanent that another try of the
// same would end the same.
func (l *loader) done(now fleet.Time, name, path, reason string, permanent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.state[name]
	if s == nil || s.path != path {
		return // the plan or the process changed meanwhile
	}
	s.tries++
	s.reason, s.at = reason, now
	switch {
	case reason == "":
		s.loaded, s.failed = now, false
	case permanent:
		s.failed, s.next = true, fleet.Never
	case s.tries >= loadTries:
		s.failed, s.next = true, now.Add(loadRest)
	default:
		s.next = now.Add(loadPause << (s.tries - 1))
	}
}

// show adds to a row what the replica does not tell by itself: adapters that are being
// loaded, that were loaded just now, and that it refuses.
func (l *loader) show(now fleet.Time, row *fleet.EndpointState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.state) == 0 {
		return
	}
	adapters, models, names := slices.Clone(row.Adapters), row.Models, row.AdapterNames
	for n, s := range l.state {
		switch {
		case slices.Contains(row.Models, n):
		case s.loaded != 0 && now.Sub(s.loaded) < listedWithin && len(row.Models) > 0:
			models, names = append(slices.Clone(models), n), append(slices.Clone(names), n)
		case s.failed:
			adapters = append(adapters, fleet.Adapter{Name: n, State: fleet.AdapterFailed, At: s.at, Reason: s.reason})
		default:
			adapters = append(adapters, fleet.Adapter{Name: n, State: fleet.AdapterLoading, At: s.at, Reason: s.reason})
		}
	}
	slices.SortFunc(adapters, func(a, b fleet.Adapter) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(models)
	slices.Sort(names)
	row.Adapters, row.Models, row.AdapterNames = adapters, models, names
}

// load asks the replica. The reason is the engine's message as it is.
func (l *loader) load(ctx context.Context, name, path string) (reason string, permanent bool) {
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"lora_name": name, "lora_path": path})
	if err != nil {
		return err.Error(), true
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.base+"/v1/load_lora_adapter", bytes.NewReader(body))
	if err != nil {
		return err.Error(), true
	}
	req.Header.Set("User-Agent", "penstock")
	req.Header.Set("Content-Type", "application/json")
	if l.auth != "" {
		req.Header.Set("Authorization", l.auth)
	}
	res, err := l.client.Do(req)
	if err != nil {
		_, why := judgeError(err, "/v1/load_lora_adapter")
		return why, false
	}
	defer drop(res)
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxLoadBody)) // what came is what there is to tell
	return judgeLoad(res.StatusCode, answer)
}

// judgeLoad reads an engine's answer to a load. That it has the adapter already is as
// good as a load.
func judgeLoad(status int, body []byte) (reason string, permanent bool) {
	message := engineMessage(body)
	switch {
	case status >= 200 && status < 300:
		return "", false
	case status == http.StatusBadRequest && strings.Contains(message, "already been loaded"):
		return "", false
	case status == http.StatusNotFound && (message == "" || message == "Not Found"):
		return "/v1/load_lora_adapter answers 404: the engine does not allow it (vLLM: VLLM_ALLOW_RUNTIME_LORA_UPDATING)", true
	case message == "":
		message = fmt.Sprintf("/v1/load_lora_adapter answers %d", status)
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return message, false
	}
	return message, status >= 300 && status < 500
}

// engineMessage is the message of an engine's error body in the shapes that engines
// give it; a short text is itself.
func engineMessage(body []byte) string {
	var e struct {
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(body, &e) != nil {
		return strings.TrimSpace(string(body[:min(len(body), 512)]))
	}
	if e.Message != "" {
		return e.Message
	}
	var nested struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(e.Error, &nested) == nil && nested.Message != "" {
		return nested.Message
	}
	for _, raw := range []json.RawMessage{e.Detail, e.Error} {
		var text string
		if json.Unmarshal(raw, &text) == nil && text != "" {
			return text
		}
	}
	return ""
}

// keepLoaded loads what the plan asks for until ctx ends. It has its own goroutine: a
// load that takes long keeps nobody from looking at the replica. One load runs at a
// time, as engines do it.
func (e *endpoint) keepLoaded(ctx context.Context) {
	for ctx.Err() == nil {
		plan := e.o.plan.Load()
		if plan.Path == "" || len(plan.Names) == 0 {
			e.loader.forget()
			sleep(ctx, jitter(planLook))
			continue
		}
		e.loadDue(ctx, plan)
		sleep(ctx, jitter(loadLook))
	}
}

// loadDue loads what is due, one after the other.
func (e *endpoint) loadDue(ctx context.Context, plan *AdapterPlan) {
	for ctx.Err() == nil && e.o.plan.Load() == plan {
		e.mu.Lock()
		ready, models := e.state.Phase == fleet.PhaseReady, e.state.Models
		e.mu.Unlock()
		if !ready {
			e.loader.forget()
			return
		}
		name, path := e.loader.due(e.o.clock(), plan, models)
		if name == "" {
			return
		}
		reason, permanent := e.loader.load(ctx, name, path)
		if ctx.Err() != nil {
			return
		}
		e.loader.done(e.o.clock(), name, path, reason, permanent)
		log := e.o.log.With("pool", e.o.pool, "replica", e.target.ID, "adapter", name, "path", path)
		if reason == "" {
			log.Info("adapter loaded")
		} else {
			log.Warn("adapter not loaded", "permanent", permanent, "reason", reason)
		}
		e.o.kick()
	}
}
