// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// drillEnvoy is one Envoy in front of the picker.
type drillEnvoy struct {
	name     string
	url      string // where clients connect
	admin    string // base URL of its admin interface
	failOpen bool
	idle     time.Duration // its stream idle time-out; 0: none, a request may hang for ever
}

// drillPicker is the picker under drill.
type drillPicker interface {
	Terminate() error // SIGTERM
	Kill() error      // SIGKILL
	Freeze() error    // SIGSTOP
	Thaw() error      // SIGCONT
	Start() error     // after Terminate or Kill; whoever supervises it may do that instead
}

// drill is a run of `penstock drill epp`.
type drill struct {
	envoys    []*drillEnvoy
	picker    drillPicker
	model     string
	cluster   string        // of the picker, in Envoy's configuration
	limit     time.Duration // to notice that the picker is gone or back
	watch     time.Duration // how long to look once Envoy has noticed
	forbidden string        // host:port that no client may reach through Envoy; "" not tried
	hits      func() int    // requests that reached it
	log       io.Writer
	rules     []alertRule
	client    *http.Client
}

// DrillReport is what `penstock drill epp -o json` prints.
type DrillReport struct {
	Schema string      `json:"schema"` // penstock/drill/v1
	Steps  []DrillStep `json:"steps"`
	Failed int         `json:"failed"` // promises that do not hold
}

// DrillStep is what clients of one Envoy saw of one step.
type DrillStep struct {
	Step    string `json:"step"` // stop, freeze, kill
	Envoy   string `json:"envoy"`
	Mode    string `json:"mode"`    // fail-open, fail-close
	Promise string `json:"promise"` // what has to hold
	Holds   bool   `json:"holds"`
	Why     string `json:"why,omitempty"` // why it does not

	NoticedMS   float64        `json:"noticed_ms"`    // until Envoy's health check saw it; -1 never
	Before      map[string]int `json:"until_noticed"` // requests by what clients saw until then
	After       map[string]int `json:"after"`         // and from then on, with the picker still down
	SlowestMS   float64        `json:"slowest_ms"`    // of all that ended
	Stream      string         `json:"stream"`        // whole, cut: one that ran when it happened
	RecoveredMS float64        `json:"recovered_ms"`  // from the start of the picker to requests that pass
	Alerts      []string       `json:"alerts"`        // that fire
}

const drillSchema = "penstock/drill/v1"

// seen is one request of a client.
type seen struct {
	start, end time.Time
	what       string // status, or "no answer"
}

// hammer asks again and again until ctx ends; requests that run then may end.
func (d *drill) hammer(ctx context.Context, e *drillEnvoy, clients int) func() []seen {
	var mu sync.Mutex
	var all []seen
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				s := seen{start: time.Now()}
				s.what = d.ask(e, nil)
				s.end = time.Now()
				mu.Lock()
				all = append(all, s)
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return func() []seen { wg.Wait(); return all }
}

// ask sends one small request and says what came back.
func (d *drill) ask(e *drillEnvoy, set http.Header) string {
	limit := 30*time.Second + 2*e.idle
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	res, err := d.send(ctx, e, 2, false, set)
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return "cut"
	}
	return strconv.Itoa(res.StatusCode)
}

// stream reads a long answer to its end and says how it ended. running is closed
// when its first bytes came, or when it ended before that.
func (d *drill) stream(e *drillEnvoy, running chan<- struct{}) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute+2*e.idle)
	defer cancel()
	var once sync.Once
	runs := func() { once.Do(func() { close(running) }) }
	defer runs()
	res, err := d.send(ctx, e, 400, true, nil)
	if err != nil {
		return "no answer"
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return strconv.Itoa(res.StatusCode)
	}
	var tail []byte
	buf := make([]byte, 4096)
	for {
		n, err := res.Body.Read(buf)
		if n > 0 {
			runs()
			tail = append(tail, buf[:n]...)
			tail = tail[max(0, len(tail)-64):]
		}
		switch {
		case err == io.EOF && bytes.Contains(tail, []byte("[DONE]")):
			return "whole"
		case err != nil:
			return "cut"
		}
	}
}

func (d *drill) send(ctx context.Context, e *drillEnvoy, tokens int, stream bool, set http.Header) (*http.Response, error) {
	body, err := json.Marshal(map[string]any{
		"model": d.model, "stream": stream, "max_tokens": tokens, "ignore_eos": stream,
		"messages": []map[string]string{{"role": "user", "content": "This is a drill."}},
	})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range set {
		req.Header[k] = v
	}
	return d.client.Do(req)
}

// stat reads one number of Envoy's own statistics; -1 where it is not there.
func (d *drill) stat(e *drillEnvoy, name string) int {
	text, err := d.read(e.admin + "/stats?filter=^" + regexp.QuoteMeta(name) + "$")
	if err != nil {
		return -1
	}
	_, v, ok := strings.Cut(text, ": ")
	n, err := strconv.Atoi(strings.TrimSpace(v))
	if !ok || err != nil {
		return -1
	}
	return n
}

func (d *drill) read(url string) (string, error) {
	res, err := d.client.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func (d *drill) healthy(e *drillEnvoy) int {
	return d.stat(e, "cluster."+d.cluster+".membership_healthy")
}

// until waits for ok, up to the limit of the drill, and says how long it took.
func (d *drill) until(ctx context.Context, ok func() bool) (time.Duration, bool) {
	start := time.Now()
	for !ok() {
		if ctx.Err() != nil || time.Since(start) > d.limit {
			return time.Since(start), false
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(start), true
}

// run does the steps. It fails where the pool did not work to begin with or did not
// come back.
func (d *drill) run(ctx context.Context) (*DrillReport, error) {
	rep := &DrillReport{Schema: drillSchema, Steps: []DrillStep{}}
	if err := d.settled(ctx); err != nil {
		return nil, err
	}
	for _, step := range []string{"stop", "freeze", "kill"} {
		fmt.Fprintf(d.log, "penstock: drill: %s the picker\n", step)
		steps, err := d.step(ctx, step)
		if err != nil {
			return nil, err
		}
		for i := range steps {
			if !steps[i].Holds {
				rep.Failed++
			}
		}
		rep.Steps = append(rep.Steps, steps...)
	}
	return rep, nil
}

// settled waits until requests pass through every Envoy with the picker's help.
func (d *drill) settled(ctx context.Context) error {
	for _, e := range d.envoys {
		if _, ok := d.until(ctx, func() bool { return d.healthy(e) > 0 }); !ok {
			return failf("the drill starts from a pool that works; cluster "+d.cluster+" is the picker's, see --picker-cluster",
				"%s: Envoy sees no healthy picker in cluster %s", e.name, d.cluster)
		}
		last := ""
		if _, ok := d.until(ctx, func() bool {
			for range 5 {
				if last = d.ask(e, nil); last != "200" {
					return false
				}
			}
			return true
		}); !ok {
			return failf("the drill starts from a pool that works", "%s: requests for model %s end in %s", e.name, d.model, last)
		}
	}
	return nil
}

// step does one thing to the picker and looks at it through every Envoy.
func (d *drill) step(ctx context.Context, step string) ([]DrillStep, error) {
	n := len(d.envoys)
	steps := make([]DrillStep, n)
	stats := make([]string, n)
	early := make([]func() []seen, n)
	streams := make([]chan string, n)
	load, stop := context.WithCancel(ctx)
	defer stop()
	for i, e := range d.envoys {
		steps[i] = DrillStep{Step: step, Envoy: e.name, Mode: mode(e.failOpen), NoticedMS: -1}
		stats[i], _ = d.read(e.admin + "/stats/prometheus")
		early[i] = d.hammer(load, e, 3)
		streams[i] = make(chan string, 1)
		running := make(chan struct{})
		go func() { streams[i] <- d.stream(e, running) }()
		<-running
	}
	time.Sleep(500 * time.Millisecond)
	acted := time.Now()
	if err := d.act(step); err != nil {
		return nil, failf("", "%s: %v", step, err)
	}
	noticed := d.notice(ctx, steps, acted)
	stop() // requests that hang may end; those that begin now are another question
	late, lateStop := context.WithCancel(ctx)
	defer lateStop()
	after := make([]func() []seen, n)
	for i, e := range d.envoys {
		after[i] = d.hammer(late, e, 2)
	}
	spoofed := d.spoof()
	time.Sleep(d.watch)
	lateStop()
	for i := range d.envoys {
		s := after[i]()
		steps[i].After, steps[i].SlowestMS = tally(s), slowest(s)
		now, _ := d.read(d.envoys[i].admin + "/stats/prometheus")
		steps[i].Alerts = d.firing(stats[i], now)
	}
	for i := range d.envoys { // a frozen picker: what hangs ends by the idle time-out, before it goes on
		s := early[i]()
		steps[i].SlowestMS = max(steps[i].SlowestMS, slowest(s))
		s = slices.DeleteFunc(s, func(s seen) bool { return s.end.Before(acted) })
		steps[i].Before = tally(s)
	}
	started := time.Now()
	if err := d.revive(step); err != nil {
		return nil, failf("", "after %s: %v", step, err)
	}
	if err := d.settled(ctx); err != nil {
		return nil, err
	}
	for i, e := range d.envoys {
		steps[i].RecoveredMS = milliseconds(time.Since(started))
		steps[i].Stream = <-streams[i]
		steps[i].judge(e, noticed[i], spoofed)
	}
	return steps, nil
}

// notice waits until every Envoy has seen that the picker is gone.
func (d *drill) notice(ctx context.Context, steps []DrillStep, acted time.Time) []bool {
	ok := make([]bool, len(d.envoys))
	d.until(ctx, func() bool {
		all := true
		for i, e := range d.envoys {
			if !ok[i] && d.healthy(e) == 0 {
				ok[i], steps[i].NoticedMS = true, milliseconds(time.Since(acted))
			}
			all = all && ok[i]
		}
		return all
	})
	return ok
}

func (d *drill) act(step string) error {
	switch step {
	case "stop":
		return d.picker.Terminate()
	case "freeze":
		return d.picker.Freeze()
	}
	return d.picker.Kill()
}

func (d *drill) revive(step string) error {
	if step == "freeze" {
		return d.picker.Thaw()
	}
	return d.picker.Start()
}

// spoof names a destination of its own in a client's header; with the picker down
// nobody overwrites it. It returns how often that worked.
func (d *drill) spoof() int {
	if d.forbidden == "" {
		return 0
	}
	before := d.hits()
	for _, e := range d.envoys {
		for range 3 {
			d.ask(e, http.Header{"X-Gateway-Destination-Endpoint": {d.forbidden}})
		}
	}
	return d.hits() - before
}

func (d *drill) firing(before, after string) []string {
	out := []string{}
	for i := range d.rules {
		if d.rules[i].fires(before, after) {
			out = append(out, d.rules[i].Name)
		}
	}
	return out
}

func mode(failOpen bool) string {
	if failOpen {
		return "fail-open"
	}
	return "fail-close"
}

func milliseconds(d time.Duration) float64 { return float64(d.Round(time.Millisecond).Milliseconds()) }

func tally(all []seen) map[string]int {
	out := map[string]int{}
	for _, s := range all {
		out[s.what]++
	}
	return out
}

func slowest(all []seen) float64 {
	most := time.Duration(0)
	for _, s := range all {
		most = max(most, s.end.Sub(s.start))
	}
	return milliseconds(most)
}
