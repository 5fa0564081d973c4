// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/flow"
)

// lastScale waits for the first evaluation of the only pool.
func lastScale(t *testing.T, s *server) *flow.ScaleRecord {
	t.Helper()
	for range 6000 { // a minute
		if l := s.Scales(); len(l) > 0 {
			return l[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the pool is not evaluated")
	return nil
}

// A pause and a pin outlast the process where there is a directory for that, resume
// ends them for good, and a file that is broken is no reason not to serve.
func TestOverrideOutlastsProcess(t *testing.T) {
	e := newEngine(t)
	dir := filepath.Join(t.TempDir(), "state")
	file := filepath.Join(dir, "scale-chat.json")
	kept := func(c *config.Config) { c.StateDir = dir }
	act := func(what string, n int) *flow.ScaleRecord {
		s, stop := runServer(t, kept, e.URL)
		lastScale(t, s)
		if found, err := s.ScaleAct("chat", what, n); !found || err != nil {
			t.Fatal(found, err)
		}
		r := lastScale(t, s)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	again := func() *flow.ScaleRecord {
		s, stop := runServer(t, kept, e.URL)
		r := lastScale(t, s)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := act("pin", 3)
	if r := again(); r.Pinned == nil || *r.Pinned != 3 || r.Override == nil || !r.Override.Kept || r.Override.Since != first.Override.Since ||
		lasts(r) != "until resume, over a restart too" {
		t.Errorf("pinned: %+v", r.Override)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	act("pause", 0)
	if r := again(); !r.Paused || scaleModeText(r) != "paused" {
		t.Errorf("paused: %+v", r.Override)
	}
	act("resume", 0)
	if r := again(); r.Paused || r.Pinned != nil || r.Override != nil {
		t.Errorf("resumed: %+v", r.Override)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := again(); r.Override != nil {
		t.Errorf("from a broken file: %+v", r.Override)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(file, "x"), 0o700); err != nil { // nothing can be put there
		t.Fatal(err)
	}
	if r := act("pause", 0); !r.Paused || r.Override.Kept || !strings.Contains(lasts(r), "a restart does not know") {
		t.Errorf("not kept: %+v, %s", r.Override, lasts(r))
	}
}

// What the file says of floors and accelerators is what the scaler goes by.
func TestScalePolicyOfFile(t *testing.T) {
	p := config.DefaultPool("chat")
	p.Scale.Floors = []config.Floor{{From: "07:30", To: "19:00", Days: "mon-fri", Min: 3}}
	p.Scale.TimeZone, p.Scale.Accelerators = "Europe/Berlin", 16
	got := scalePolicy(&p, &engine.Profile{TensorParallel: 4})
	if len(got.Floors) != 1 || got.Floors[0].From != 450 || got.Floors[0].To != 1140 || !got.Floors[0].Days[1] || got.Floors[0].Days[0] || got.Floors[0].Min != 3 ||
		got.Zone.String() != "Europe/Berlin" || got.Accelerators != 16 || got.AcceleratorsPerReplica != 4 {
		t.Errorf("%+v", got)
	}
	if n, by := got.EffectiveMax(); n != 4 || by != "accelerators" {
		t.Errorf("%d by %s", n, by)
	}
}

// A reload leaves nothing that is live to a later one, and takes nothing that is not.
func TestReloadTakesWhatIsLive(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, nil, e.URL)
	next := *s.Config()
	next.Pools = slices.Clone(next.Pools)
	p := &next.Pools[0]
	p.Engine.LoadAdapters, p.Route.Policy, p.Route.Heartbeat, p.Scale.Max = "/adapters/{name}", "random", time.Second, 5
	p.Route.Queue, p.Route.QueueMost, p.Route.HoldFor, p.Route.SessionHeaders, p.Scale.Hand = "off", time.Second, time.Second, []string{"x-s"}, "hpa"
	for range 2 {
		if err := s.Reload(&next); err != nil {
			t.Fatal(err)
		}
		for _, c := range config.Diff(s.Config(), &next) {
			if c.Live {
				t.Errorf("%s was not applied", c.Path)
			}
		}
		if got := s.configState().Restart; len(got) != 5 {
			t.Errorf("these wait for a restart: %q", got)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// A reload changes how many accelerators pools share, and says that it is in force.
func TestSharedAcceleratorsReload(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, nil, e.URL)
	next := *s.Config()
	next.Accelerators.Total = 12
	if err := s.Reload(&next); err != nil {
		t.Fatal(err)
	}
	if got := s.Config(); got.Accelerators.Total != 12 || got.Digest() != next.Digest() {
		t.Errorf("%+v", got.Accelerators)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
