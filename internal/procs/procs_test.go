// SPDX-License-Identifier: Apache-2.0

package procs_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/cli"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/procs"
)

// TestMain lets the test binary stand in for penstock: the processes of these tests
// are real `penstock replica` servers.
func TestMain(m *testing.M) {
	if os.Getenv("PENSTOCK_TEST_MAIN") != "" {
		os.Exit(cli.Main(cli.OS()))
	}
	os.Setenv("PENSTOCK_TEST_MAIN", "1")
	os.Exit(m.Run())
}

// health is what an observer would say of the replicas.
type health struct {
	mu     sync.Mutex
	flight map[string]int
	urls   map[string]string
}

func (h *health) seen(id string) (procs.Seen, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := procs.Seen{Phase: fleet.PhasePending, InFlight: h.flight[id], At: fleet.At(time.Now())}
	if u, ok := h.urls[id]; ok {
		c := http.Client{Timeout: time.Second}
		if res, err := c.Get(u + "/health"); err == nil {
			res.Body.Close()
			s.Phase = fleet.PhaseReady
		}
	}
	return s, true
}

func (h *health) setFlight(id string, n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flight[id] = n
}

type fixture struct {
	*procs.Pool
	h    *health
	stop func()
}

func run(t *testing.T, o procs.Options) *fixture {
	t.Helper()
	h := &health{flight: map[string]int{}, urls: map[string]string{}}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if o.Command == nil {
		o.Command = []string{self, "replica", "--model", "{model}", "--listen", "127.0.0.1:{port}", "--startup", "100ms"}
	}
	o.Pool, o.Model, o.Seen = "chat", "m", h.seen
	o.ShortPause(50 * time.Millisecond)
	p, err := procs.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	f := &fixture{Pool: p, h: h}
	f.stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(f.stop)
	go func() { // the drain is what an observer tells: a drained replica is not ready
		for ctx.Err() == nil {
			list := p.List()
			h.mu.Lock()
			for _, i := range list {
				h.urls[i.ID] = i.URL
				if i.State != "running" {
					delete(h.urls, i.ID)
				}
			}
			h.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return f
}

func (f *fixture) apply(t *testing.T, n int, victims ...string) {
	t.Helper()
	if err := f.Apply(t.Context(), n, victims); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) until(t *testing.T, what string, ok func([]procs.Info) bool) []procs.Info {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for time.Now().Before(deadline) {
		if l := f.List(); ok(l) {
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("not within a minute: %s; there is %+v", what, f.List())
	return nil
}

func ready(n int) func([]procs.Info) bool {
	return func(l []procs.Info) bool {
		k := 0
		for _, i := range l {
			if i.Ready && i.State == "running" {
				k++
			}
		}
		return k == n && len(l) == n
	}
}

func gone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for syscall.Kill(pid, 0) == nil && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
	}
	if syscall.Kill(pid, 0) == nil {
		t.Errorf("process %d was left behind", pid)
	}
}

func TestStartDrainStop(t *testing.T) {
	f := run(t, procs.Options{Max: 4})
	f.apply(t, 2)
	l := f.until(t, "two ready replicas", ready(2))
	if l[0].Port == l[1].Port || l[0].ID == l[1].ID {
		t.Errorf("two replicas share a port or a name: %+v", l)
	}
	if b, err := os.ReadFile(l[0].Log); err != nil || !strings.Contains(string(b), "Simulated engine") {
		t.Errorf("log %s: %v, %q", l[0].Log, err, b)
	}
	// The victim that was named has a stream: it stays until that has ended.
	f.h.setFlight(l[0].ID, 1)
	f.apply(t, 1, l[0].ID)
	f.until(t, "the named victim drains", func(l []procs.Info) bool { return l[0].State == "draining" })
	time.Sleep(time.Second)
	if s := f.List(); len(s) != 2 || s[0].State != "draining" {
		t.Fatalf("a replica with a stream was ended: %+v", s)
	}
	st, err := f.State(t.Context())
	if err != nil || st.Replicas != 2 || st.Wanted != 1 || len(st.Pending) != 0 {
		t.Errorf("state while draining: %+v, %v", st, err)
	}
	// What drains is taken back before anything is started.
	f.apply(t, 2)
	f.until(t, "the victim is back", ready(2))
	f.apply(t, 1, l[0].ID)
	f.h.setFlight(l[0].ID, 0)
	rest := f.until(t, "one replica", ready(1))
	if rest[0].ID != l[1].ID {
		t.Errorf("%s was ended instead of %s", l[1].ID, l[0].ID)
	}
	gone(t, l[0].PID)
	f.stop()
	gone(t, l[1].PID)
}

func TestNeverMoreThanMax(t *testing.T) {
	f := run(t, procs.Options{Max: 2})
	f.apply(t, 9)
	f.until(t, "two ready replicas", ready(2))
	st, _ := f.State(t.Context())
	if st.Wanted != 9 || !strings.Contains(st.Blocked, "max is 2") {
		t.Errorf("state: %+v", st)
	}
}

func TestCrashLoop(t *testing.T) {
	f := run(t, procs.Options{Command: []string{"/bin/sh", "-c", "echo loading; echo 'RuntimeError: no weights in {model}' >&2; exit 3"}})
	f.apply(t, 2)
	deadline := time.Now().Add(60 * time.Second)
	var st flow.HandState
	for st, _ = f.State(t.Context()); st.Blocked == "" && time.Now().Before(deadline); st, _ = f.State(t.Context()) {
		time.Sleep(20 * time.Millisecond)
	}
	if !strings.HasPrefix(st.Blocked, "crash loop: ") || !strings.Contains(st.Blocked, "exit status 3: RuntimeError: no weights in m") {
		t.Errorf("blocked: %q", st.Blocked)
	}
	for _, p := range st.Pending {
		if p.Reason == "" {
			t.Errorf("a pending replica without a reason: %+v", p)
		}
	}
	f.apply(t, 0)
	f.until(t, "nothing runs", func(l []procs.Info) bool { return len(l) == 0 })
}

func TestDeadReplicaIsReplaced(t *testing.T) {
	f := run(t, procs.Options{})
	f.apply(t, 1)
	l := f.until(t, "a ready replica", ready(1))
	if err := syscall.Kill(l[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.until(t, "another one", func(n []procs.Info) bool { return ready(1)(n) && n[0].ID != l[0].ID })
}

// A replica that is not needed sleeps, is woken before anything is started, and ends
// when it has slept long enough.
func TestSleepBeforeStop(t *testing.T) {
	self, _ := os.Executable()
	f := run(t, procs.Options{Max: 2, Sleep: time.Hour,
		Command: []string{self, "replica", "--model", "{model}", "--listen", "127.0.0.1:{port}", "--enable-sleep-mode"}})
	f.apply(t, 1)
	l := f.until(t, "a ready replica", ready(1))
	f.apply(t, 0)
	f.until(t, "it sleeps", func(l []procs.Info) bool { return len(l) == 1 && l[0].State == "asleep" })
	res, err := http.Get(l[0].URL + "/is_sleeping")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if !strings.Contains(string(b), "true") {
		t.Errorf("the engine says %s", b)
	}
	if st, _ := f.State(t.Context()); st.Wanted != 0 || len(st.Pending) != 0 {
		t.Errorf("state: %+v", st)
	}
	f.apply(t, 1)
	again := f.until(t, "it is awake", ready(1))
	if again[0].PID != l[0].PID {
		t.Errorf("another process was started: %+v", again)
	}
	f.stop()
	gone(t, l[0].PID)
}

// A process that ignores SIGTERM, with a worker of its own: both are gone.
func TestGroupIsKilled(t *testing.T) {
	dir := t.TempDir()
	f := run(t, procs.Options{StopGrace: 300 * time.Millisecond,
		Command: []string{"/bin/sh", "-c", "trap '' TERM; sleep 300 & echo $! > " + filepath.Join(dir, "worker") + "; while :; do sleep 1; done"}})
	f.apply(t, 1)
	l := f.until(t, "a process", func(l []procs.Info) bool {
		b, _ := os.ReadFile(filepath.Join(dir, "worker"))
		return len(l) == 1 && len(b) > 1
	})
	b, _ := os.ReadFile(filepath.Join(dir, "worker"))
	worker := 0
	fmt.Sscan(string(b), &worker)
	f.stop()
	gone(t, l[0].PID)
	gone(t, worker)
}

func TestOrphansAreAdopted(t *testing.T) {
	dir := t.TempDir()
	f := run(t, procs.Options{Dir: dir, Keep: true})
	f.apply(t, 2)
	l := f.until(t, "two ready replicas", ready(2))
	f.stop() // as after a crash: they go on
	g := run(t, procs.Options{Dir: dir})
	again := g.until(t, "both adopted", ready(2))
	for i := range again {
		if again[i].PID != l[i].PID || again[i].ID != l[i].ID || !again[i].Adopted {
			t.Errorf("%+v is not %+v", again[i], l[i])
		}
	}
	if st, _ := g.State(t.Context()); st.Wanted != 2 {
		t.Errorf("a scale-up in the middle is forgotten: %+v", st)
	}
	g.apply(t, 3)
	g.until(t, "a third with a new name", func(n []procs.Info) bool { return ready(3)(n) && n[2].ID != l[0].ID && n[2].ID != l[1].ID })
	g.stop()
	for _, i := range l {
		gone(t, i.PID)
	}
}

func TestOrphansOfAnotherCommandEnd(t *testing.T) {
	dir := t.TempDir()
	f := run(t, procs.Options{Dir: dir, Keep: true, Command: []string{"/bin/sleep", "300"}})
	f.apply(t, 1)
	l := f.until(t, "a process", func(l []procs.Info) bool { return len(l) == 1 })
	f.stop()
	g := run(t, procs.Options{Dir: dir})
	g.until(t, "the old one is gone", func(l []procs.Info) bool { return len(l) == 0 })
	gone(t, l[0].PID)
}
