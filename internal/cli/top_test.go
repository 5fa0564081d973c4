// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/console"
)

// updateTop in the environment writes the goldens of penstock top.
const updateTop = "PENSTOCK_UPDATE_TOP"

// topState is a pool in trouble: one replica of each kind that reads differently.
const topState = `{"schema":"penstock/live/v1","time":"2026-01-02T03:04:05Z","version":"v1.2","uptime_s":3725,"ready":true,"pools":[
{"name":"chat","policy":"penstock","models":["llama-3.1-8b"],"slo":{"ttft_ms":1000,"itl_ms":100},
 "verdict":{"state":"degraded","sentence":"Users wait: TTFT p95 3.1 s, promised 1.0 s. Queue time binds: 34 requests wait at 3 ready replicas.","binding":"queue","command":"penstock diagnose","since":"2026-01-02T03:00:00Z"},
 "recent":{"requests":1200,"failed":3,"ttft_p50_ms":812,"ttft_p95_ms":3100,"hit":0.54,"hit_random":0.09,"hit_best":0.61},
 "now":{"waiting":34,"held":2,"in_flight":98,"kv_max":0.93,"kv_mean":0.88,"requests_per_s":20.4,"prompt_tokens_per_s":41230,"output_tokens_per_s":2104,"ttft_p95_ms":3100,"desired":5},
 "phases":{"ready":3,"loading":1},
 "replicas":[
 {"id":"r-0","phase":"ready","phase_s":4000,"run":32,"wait":14,"in_flight":46,"kv":0.93,"hit":0.61,"ttft_p95_ms":3900,"age_ms":400,"adapters":["legal","sql"]},
 {"id":"r-1","phase":"ready","phase_s":4000,"run":32,"wait":11,"in_flight":43,"kv":0.88,"hit":0.58,"ttft_p95_ms":3000,"age_ms":400},
 {"id":"r-2","phase":"ready","phase_s":61,"run":9,"wait":9,"in_flight":9,"kv":0.42,"hit":null,"ttft_p95_ms":null,"age_ms":42000,"slow":true},
 {"id":"r-3","phase":"loading","phase_s":200,"reason":"HTTP 503","run":null,"wait":null,"in_flight":0,"kv":null,"hit":null,"ttft_p95_ms":null,"age_ms":null}]},
{"name":"embed","policy":"penstock","models":["bge"],"slo":{"ttft_ms":2000,"itl_ms":100},"verdict":{"state":"idle","sentence":"No requests in the last minute; 1 replica is ready.","command":"penstock status embed","since":"0001-01-01T00:00:00Z"},
 "recent":{"requests":0,"failed":0,"ttft_p50_ms":null,"ttft_p95_ms":null,"hit":null,"hit_random":null,"hit_best":null},"now":{},"phases":{"ready":1},
 "replicas":[{"id":"e-0","phase":"ready","phase_s":10,"run":0,"wait":0,"in_flight":0,"kv":0,"hit":null,"ttft_p95_ms":null,"age_ms":100}]}],
"findings":[],"marks":[],"parts":[]}`

func topModelOf(t *testing.T, now time.Time) *topModel {
	t.Helper()
	l := new(console.Live)
	if err := json.Unmarshal([]byte(topState), l); err != nil {
		t.Fatal(err)
	}
	m := &topModel{server: "http://127.0.0.1:9900"}
	for i := range 30 {
		m.take(l, now.Add(time.Duration(i-29)*time.Second))
	}
	m.spark["chat"] = []float64{200, 240, -1, 900, 1800, 3100}
	cached := 1792
	for i := range 3 {
		ttft := 640.0 + float64(i)
		m.add([]console.Row{{ID: fmt.Sprintf("q%d", i), Time: time.Date(2026, 1, 2, 3, 4, i, 0, time.Local), Model: "llama-3.1-8b", Replica: "r-1", Why: "lowest cost", Kind: "ok", TTFTMS: &ttft, Prompt: 2140, Cached: &cached}})
	}
	m.add([]console.Row{{ID: "q3\x1b[2J", Time: time.Date(2026, 1, 2, 3, 4, 9, 0, time.Local), Model: "llama-3.1-8b", Why: "no replica is ready", Kind: "refused", Prompt: 9}})
	return m
}

func press(m *topModel, keys ...string) topWish {
	w := wishNothing
	for _, k := range keys {
		w = m.key(k)
	}
	return w
}

func TestTopFrames(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := &Env{Now: func() time.Time { return now }, Getenv: func(string) string { return "" }, Terminal: func() (bool, int) { return true, 80 }}
	for _, c := range []struct {
		name string
		w, h int
		prep func(*topModel)
	}{
		{"replicas-80x24", 80, 24, func(m *topModel) { press(m, "j") }},
		{"replicas-140x40", 140, 40, func(m *topModel) {}},
		{"replicas-ascii-filter", 80, 24, func(m *topModel) { m.ascii = true; press(m, "/", "r", "-", "3", "enter") }},
		{"sorted", 80, 24, func(m *topModel) { press(m, "s", "s") }},
		{"typing", 80, 24, func(m *topModel) { press(m, "/", "l", "x", "backspace", "e") }},
		{"second-pool", 80, 24, func(m *topModel) { press(m, "tab") }},
		{"replica", 80, 24, func(m *topModel) { press(m, "j", "j", "enter") }},
		{"decisions", 100, 24, func(m *topModel) { press(m, "d", "j") }},
		{"help", 80, 24, func(m *topModel) { press(m, "?") }},
		{"lost", 80, 24, func(m *topModel) { m.received = now.Add(-9 * time.Second) }},
		{"asking", 80, 24, func(m *topModel) { *m = topModel{server: m.server} }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := topModelOf(t, now)
			c.prep(m)
			got := m.draw(e, c.w, c.h).String()
			for i, l := range strings.Split(got, "\n") {
				if n := len([]rune(l)); n > c.w {
					t.Errorf("line %d has %d columns", i, n)
				}
			}
			name := filepath.Join("testdata", "top", c.name+".txt")
			if os.Getenv(updateTop) != "" {
				if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestTopKeys(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m := topModelOf(t, now)
	if press(m, "q") != wishQuit || press(m, "/", "q") != wishNothing || m.filter != "q" || press(m, "ctrl-c") != wishQuit {
		t.Error("q quits, except in the filter; ctrl-c always")
	}
	press(m, "esc")
	if press(m, "d", "enter") != wishExplain || m.selected != "q3\x1b[2J" || m.view != topDecision {
		t.Errorf("enter on a decision explains the newest: %q", m.selected)
	}
	if press(m, "?", "esc", "esc"); m.view != topReplicas {
		t.Errorf("esc leads back step by step, now in %d", m.view)
	}
	press(m, "d", "p")
	n := len(m.rows)
	if m.add([]console.Row{{ID: "later"}}); len(m.rows) != n {
		t.Error("paused, and still rows come in")
	}
	// Selection stays with the replica, not with the line.
	m = topModelOf(t, now)
	press(m, "j", "j", "j", "j", "j")
	if m.selected != "r-3" {
		t.Errorf("selected %q", m.selected)
	}
	if press(m, "s"); m.selected != "r-3" {
		t.Errorf("after sorting: %q", m.selected)
	}
}

// TestTopSendsOnlyWhatChanged: a frame that is equal sends nothing, one that differs
// in a number sends some bytes, and a replayed stream of differences ends in the
// same picture.
func TestTopSendsOnlyWhatChanged(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	e := &Env{Now: func() time.Time { return now }, Getenv: func(string) string { return "" }, Terminal: func() (bool, int) { return true, 80 }}
	m := topModelOf(t, now)
	first := m.draw(e, 80, 24)
	tty := newTTY(80, 24)
	tty.write(t, first.diff(nil, true))
	if d := m.draw(e, 80, 24).diff(first, true); d != "" {
		t.Errorf("an equal frame sent %q", d)
	}
	v := 15.0
	m.live.Pools[0].Replicas[0].Waiting = &v
	second := m.draw(e, 80, 24)
	d := second.diff(first, true)
	if len(d) == 0 || len(d) > 80 || !strings.HasPrefix(d, syncBegin) || !strings.HasSuffix(d, syncEnd) {
		t.Errorf("one digit took %d bytes: %q", len(d), d)
	}
	tty.write(t, d)
	press(m, "d")
	third := m.draw(e, 80, 24)
	tty.write(t, third.diff(second, false))
	if got, want := tty.String(), third.String(); got != want {
		t.Errorf("the terminal shows\n%s\nwanted\n%s", got, want)
	}
	if strings.Contains(third.diff(nil, false), "\x1b[0;3") {
		t.Error("colour where none is wanted")
	}
	if strings.Count(third.diff(nil, false), "\x1b[2J") != 1 {
		t.Error("a request id steers the terminal")
	}
}

// tty understands the sequences that diff sends.
type tty struct{ s *screen }

func newTTY(w, h int) *tty { return &tty{newScreen(w, h)} }

func (v *tty) String() string { return v.s.String() }

var sequence = regexp.MustCompile(`^\x1b\[(\??)([0-9;]*)([A-Za-z])`)

func (v *tty) write(t *testing.T, text string) {
	x, y := 0, 0
	for text != "" {
		if g := sequence.FindStringSubmatch(text); g != nil {
			switch {
			case g[3] == "H":
				fmt.Sscanf(g[2], "%d;%d", &y, &x)
				x, y = x-1, y-1
			case g[3] == "J":
				v.s = newScreen(v.s.w, v.s.h)
			}
			text = text[len(g[0]):]
			continue
		}
		r := []rune(text)[0]
		if r == 0x1b {
			t.Fatalf("unknown sequence at %q", text[:min(len(text), 12)])
		}
		x = v.s.put(x, y, string(r), inkPlain)
		text = text[len(string(r)):]
	}
}

func TestSplitKeys(t *testing.T) {
	for in, want := range map[string]string{
		"jk": "j k", "\x1b[A\x1b[B": "up down", "\x1b": "esc", "é": "é", "\r\x03": "enter ctrl-c", "\x1b[5~q": "pgup q", "\x1b[99;1x": "", "/\x7f": "/ backspace",
	} {
		if got := strings.Join(splitKeys(in), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
