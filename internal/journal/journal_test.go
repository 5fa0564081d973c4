// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// capture is a decision over n candidates.
func capture(i, n int) *route.Capture {
	c := new(route.Capture)
	c.Reset("chat", &fleet.Request{ID: id(i), Tenant: "acme", Model: "m", Arrived: 1e18})
	d := &c.Decision
	d.Policy, d.At, d.SnapshotVersion = "penstock", 1e18, 7
	for k := range n {
		d.Candidates = append(d.Candidates, route.Candidate{Slot: int32(k), Endpoint: fmt.Sprint("r", k), CostMS: float64(k), Speed: 1})
	}
	d.Chosen, d.Index = 0, 0
	c.Finished = true
	c.Outcome = fleet.Outcome{Status: 200, FirstToken: 1e18 + 5e8, End: 1e18 + 1e9, PromptTokens: 100, CachedTokens: 64, OutputTokens: i}
	return c
}

func id(i int) string { return fmt.Sprintf("q-%05d", i) }

func open(t *testing.T, o Options) *Journal {
	t.Helper()
	j, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func ids(l []*route.Record) string {
	var out []string
	for _, r := range l {
		out = append(out, strings.TrimPrefix(r.ID, "q-000"))
	}
	return strings.Join(out, " ")
}

func TestRingKeepsTheLast(t *testing.T) {
	j := open(t, Options{Memory: 4})
	for i := range 10 {
		if old := j.Capture(capture(i, 2)); (old == nil) != (i < 4) {
			t.Errorf("record %d gave back %v", i, old)
		} else if old != nil && old.ID != id(i-4) {
			t.Errorf("record %d gave back %s", i, old.ID)
		}
	}
	j.Record(&route.Record{ID: "plain"})
	if got := ids(j.Query(Filter{}, 100)); got != "plain 09 08 07" {
		t.Errorf("query: %s", got)
	}
	if _, ok := j.Get(id(6)); ok {
		t.Error("a record that was overwritten is found")
	}
	r, ok := j.Get(id(8))
	if !ok || r.Outcome.CachedTokens == nil || *r.Outcome.CachedTokens != 64 || len(r.Candidates) != 2 || r.Schema != route.Schema {
		t.Errorf("record %+v", r)
	}
	if r, ok := j.Last(ByID(id(9))); !ok || r.ID != id(9) {
		t.Errorf("last = %v", r)
	}
	if s := j.Stats(); s.Records != 11 || s.InMemory != 4 || s.Dropped != 0 {
		t.Errorf("stats %+v", s)
	}
	if l := open(t, Options{Memory: 3}).Query(Filter{}, 5); l == nil || len(l) != 0 {
		t.Errorf("an empty journal answers %v", l)
	}
}

// TestReadersAndReuse runs readers against a writer that uses returned captures
// again, as flow does: the race detector and the contents must stay quiet.
func TestReadersAndReuse(t *testing.T) {
	j := open(t, Options{Memory: 8})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, r := range j.Query(Filter{}, 8) {
					if len(r.Candidates) != 3 || r.Candidates[2].Endpoint != "r2" {
						t.Errorf("a torn record: %+v", r)
						return
					}
				}
			}
		})
	}
	var free *route.Capture
	for i := range 3000 {
		c := free
		if c == nil {
			c = new(route.Capture)
		}
		fresh := capture(i, 3)
		c.Reset("chat", &fleet.Request{ID: id(i)})
		c.Decision.Candidates = append(c.Decision.Candidates[:0], fresh.Decision.Candidates...)
		free = j.Capture(c)
	}
	close(stop)
	wg.Wait()
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	j := open(t, Options{Memory: 16})
	free := capture(0, 8)
	for range 32 {
		if free = j.Capture(free); free == nil {
			free = capture(0, 8)
		}
	}
	if n := testing.AllocsPerRun(100, func() { free = j.Capture(free) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestSubscribe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, err := New(Options{Memory: 4})
		if err != nil {
			t.Fatal(err)
		}
		j.Capture(capture(0, 1))
		ctx, cancel := context.WithCancel(t.Context())
		f, err := ParseFilter("output>1")
		if err != nil {
			t.Fatal(err)
		}
		ch := j.Subscribe(ctx, f)
		for i := 1; i < 4; i++ {
			j.Capture(capture(i, 1))
		}
		if a, b := <-ch, <-ch; a.ID != id(2) || b.ID != id(3) {
			t.Errorf("got %s %s", a.ID, b.ID)
		}
		// Nobody reads: the subscriber is overtaken and goes on with what is left.
		for i := 10; i < 30; i++ {
			j.Capture(capture(i, 1))
			synctest.Wait()
		}
		if a, b := <-ch, <-ch; a.ID != id(10) || b.ID != id(26) {
			t.Errorf("after falling behind: %s %s", a.ID, b.ID)
		}
		cancel()
		synctest.Wait()
		for range ch {
		}
		j.Close()
	})
}

func TestDiskRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "j")
	j := open(t, Options{Memory: 100, Dir: dir, Router: "ab", Version: "v1"})
	for i := range 50 {
		j.Capture(capture(i, 3))
	}
	want := j.Query(Filter{}, 50)
	j.Close()
	if s := j.Stats(); s.Written != 50 || s.Dropped != 0 || s.Error != "" {
		t.Errorf("stats %+v", s)
	}
	names, err := Files(dir)
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	if info, err := os.Stat(names[0]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	var h Header
	line, _, _ := bytes.Cut(b, []byte("\n"))
	if err := json.Unmarshal(line, &h); err != nil || h.Schema != Schema || h.Records != route.Schema || h.Router != "ab" || h.Started.IsZero() {
		t.Errorf("header %s: %v", line, err)
	}
	i := 0
	for r, err := range Open(dir) {
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want[len(want)-1-i], r); d != "" {
			t.Fatal(d)
		}
		i++
	}
	if i != 50 {
		t.Errorf("%d records were read back", i)
	}
	if r, err := Find(names[0], ByID(id(30))); err != nil || r == nil || r.ID != id(30) {
		t.Errorf("find: %v, %v", r, err)
	}
}

func TestSizeAndAgeLimits(t *testing.T) {
	dir := t.TempDir()
	old := filepath.Join(dir, "penstock-20200101T000000.000000Z.jsonl")
	other := filepath.Join(dir, "keep-me.jsonl")
	for _, f := range []string{old, other} {
		if err := os.WriteFile(f, []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		past := time.Now().Add(-48 * time.Hour)
		if err := os.Chtimes(f, past, past); err != nil {
			t.Fatal(err)
		}
	}
	d, err := newDisk(Options{Dir: dir, MaxAge: 24 * time.Hour, MaxBytes: 4 * minSegment})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	rec := capture(1, 8).Record()
	for range 1500 {
		now = now.Add(time.Second)
		if _, err := d.write(now, rec); err != nil {
			t.Fatal(err)
		}
		d.prune(now)
	}
	d.close()
	d.pruned = time.Time{}
	d.prune(now)
	names, err := Files(dir)
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, n := range names {
		info, err := os.Stat(n)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > d.maxBytes+minSegment/2 || len(names) < 3 {
		t.Errorf("%d files of %d bytes under a limit of %d", len(names), total, d.maxBytes)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("a file over the age is still there")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("a file of somebody else is gone")
	}
}

// badDisk fails or hangs on command.
type badDisk struct {
	mu    sync.Mutex
	full  bool
	hang  chan struct{}
	bytes int
	files int
}

func (b *badDisk) create(string) (file, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.files++
	if b.full {
		return nil, syscall.ENOSPC
	}
	return b, nil
}

func (b *badDisk) Write(p []byte) (int, error) {
	b.mu.Lock()
	full, hang := b.full, b.hang
	b.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if full {
		return len(p) / 2, syscall.ENOSPC
	}
	b.mu.Lock()
	b.bytes += len(p)
	b.mu.Unlock()
	return len(p), nil
}

func (b *badDisk) Close() error { return nil }

func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &badDisk{}
		j, err := New(Options{Memory: 100, Dir: t.TempDir(), create: b.create})
		if err != nil {
			t.Fatal(err)
		}
		add := func(n int) {
			for i := range n {
				j.Capture(capture(i, 2))
			}
			synctest.Wait()
		}
		add(5)
		b.mu.Lock()
		b.full = true
		b.mu.Unlock()
		add(7)
		s := j.Stats()
		if s.Written != 5 || s.Dropped != 7 || !strings.Contains(s.Error, "no space") {
			t.Errorf("full: %+v", s)
		}
		b.mu.Lock()
		b.full = false
		b.mu.Unlock()
		time.Sleep(retryAfter + time.Second)
		add(3)
		if s := j.Stats(); s.Written != 8 || s.Dropped != 7 || s.Error != "" {
			t.Errorf("afterwards: %+v", s)
		}
		j.Close()
	})
}

func TestSlowDiskBlocksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &badDisk{hang: make(chan struct{})}
		j, err := New(Options{Memory: 10, Dir: t.TempDir(), create: b.create})
		if err != nil {
			t.Fatal(err)
		}
		j.Capture(capture(0, 2))
		synctest.Wait() // the writer hangs now
		start := time.Now()
		for i := range 100 {
			j.Capture(capture(i, 2))
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("the hot path waited %v", d)
		}
		close(b.hang)
		b.mu.Lock()
		b.hang = nil
		b.mu.Unlock()
		synctest.Wait()
		if s := j.Stats(); s.Dropped != 90 || s.Written != 11 {
			t.Errorf("stats %+v", s)
		}
		j.Close()
	})
}

func TestUnusableDirectory(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Options{Dir: filepath.Join(f, "j")}); err == nil {
		t.Error("no error")
	}
}

func TestReadTellsWhere(t *testing.T) {
	rec, err := json.Marshal(capture(1, 1).Record())
	if err != nil {
		t.Fatal(err)
	}
	header := `{"schema":"penstock/journal/v1","records":"penstock/decision/v1"}`
	read := func(text string) (n int, err error) {
		for r, e := range Read("f", strings.NewReader(text)) {
			if e != nil {
				return n, e
			}
			if r.ID != id(1) {
				return n, errors.New("another record")
			}
			n++
		}
		return n, nil
	}
	for _, tt := range []struct {
		text, err string
		n         int
	}{
		{header + "\n" + string(rec) + "\n\n" + string(rec) + "\n", "", 2},
		{string(rec), "", 1},
		{header + "\n" + string(rec) + "\n" + string(rec[:50]), "", 1},
		{header + "\n" + string(rec[:50]) + "\n" + string(rec), "f:2: not a line of JSON", 0},
		{header + "\n" + `{"schema":"penstock/recommendation/v1"}` + "\n" + string(rec) + "\n", "", 1},
		{`{"schema":"penstock/journal/v9"}` + "\n", "f:1: schema penstock/journal/v9 is of another version", 0},
		{`{"a":1}` + "\n", "f:1: schema is \"\"", 0},
		{"", "", 0},
	} {
		n, err := read(tt.text)
		if n != tt.n || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%.60q: %d records, error %v; want %d, %q", tt.text, n, err, tt.n, tt.err)
		}
	}
}

func TestFilter(t *testing.T) {
	r := capture(7, 2).Record()
	for s, want := range map[string]bool{
		"": true, "model=m": true, "model=x": false, "model!=x": true, "replica=r0 ttft>=500": true, "ttft>0.4s": true,
		"ttft>501ms": false, "acme": true, "ACME": true, "nobody": false, "status=200": true, "kind=ok": true, "kind!=ok": false,
		"cached<65": true, "queue>0": false, "margin>0": false,
	} {
		f, err := ParseFilter(s)
		if err != nil {
			t.Errorf("%q: %v", s, err)
		} else if f.Match(r) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
	r.Chosen = "r0@1" // a rank of a replica is found by either name
	for s, want := range map[string]bool{"replica=r0": true, "replica=r0@1": true, "replica!=r0": false, "replica=r0@2": false, "replica=r": false} {
		if f, err := ParseFilter(s); err != nil || f.Match(r) != want {
			t.Errorf("%q at %s: %v, %v", s, r.Chosen, !want, err)
		}
	}
	for s, msg := range map[string]string{
		"colour=red": `unknown field "colour"`, "model>3": "is a text", "ttft>fast": "needs a number", "model!x": "no comparison",
	} {
		if _, err := ParseFilter(s); err == nil || !strings.Contains(err.Error(), msg) {
			t.Errorf("%q: error %v, want %q", s, err, msg)
		}
	}
}

func FuzzRead(f *testing.F) {
	rec, _ := json.Marshal(capture(1, 2).Record())
	f.Add([]byte(`{"schema":"penstock/journal/v1"}` + "\n" + string(rec) + "\n"))
	f.Add(rec[:len(rec)/2])
	f.Add([]byte("\n\n{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for r, err := range Read("f", bytes.NewReader(b)) {
			if (r == nil) == (err == nil) {
				t.Fatalf("record %v, error %v", r, err)
			}
		}
	})
}

func FuzzFilter(f *testing.F) {
	f.Add("model=m ttft>1s word")
	r := capture(1, 1).Record()
	f.Fuzz(func(t *testing.T, s string) {
		if flt, err := ParseFilter(s); err == nil {
			flt.Match(r)
		}
	})
}

func BenchmarkCapture(b *testing.B) {
	j, err := New(Options{Memory: 10_000})
	if err != nil {
		b.Fatal(err)
	}
	defer j.Close()
	free := capture(0, 8)
	b.ReportAllocs()
	for b.Loop() {
		if free = j.Capture(free); free == nil {
			free = capture(0, 8)
		}
	}
}
