// SPDX-License-Identifier: Apache-2.0

//go:build clockjump

package cli

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// TestClockJump steps the wall clock of this process by an hour, forward and back, under
// a server with a stream, with short requests, and with one that waits for a replica. The
// steps come from time.StepWall, which scripts/layers/e2e-clock.sh adds to the standard
// library by an overlay: the clock of the machine is left alone.
func TestClockJump(t *testing.T) {
	t.Cleanup(func() { time.StepWall(0) })
	e := newEngine(t)
	s, stop := runServer(t, func(c *config.Config) { c.Pools[0].Route.HoldFor = 3 * time.Second }, e.URL)
	res, err := ask(http.DefaultClient, s.GatewayURL(), true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(res.Body, make([]byte, 20)); err != nil {
		t.Fatal(err)
	}
	wall, mono := time.Now().Round(0), time.Now()
	for _, step := range []time.Duration{time.Hour, -time.Hour, 0} {
		time.StepWall(step)
		for range 60 {
			short, err := ask(http.DefaultClient, s.GatewayURL(), false)
			if err != nil {
				t.Fatalf("stepped by %v: %v", step, err)
			}
			io.Copy(io.Discard, short.Body)
			if short.Body.Close(); short.StatusCode != 200 {
				t.Fatalf("stepped by %v: %s", step, short.Status)
			}
			time.Sleep(20 * time.Millisecond)
		}
		if d := time.Now().Round(0).Sub(wall) - time.Since(mono); (d - step).Abs() > time.Minute {
			t.Fatalf("the wall clock moved by %v, not by %v: this test shows nothing", d, step)
		}
		snap := s.pools[0].observer.Snapshot()
		if age := s.clock().Sub(snap.Endpoints[0].ScrapedAt); age < 0 || age > time.Minute || snap.Count(4) != 1 {
			t.Errorf("stepped by %v: the last scrape is %v old, %d replicas ready", step, age, snap.Count(4))
		}
	}
	close(e.gate)
	if rest, err := io.ReadAll(res.Body); err != nil || !strings.HasSuffix(string(rest), "[DONE]\n\n") {
		t.Errorf("the stream: %v %q", err, rest)
	}
	res.Body.Close()

	// A request that waits for a replica waits as long as was said, by no wall clock.
	e.Close()
	for s.pools[0].observer.Snapshot().Count(4) > 0 {
		time.Sleep(10 * time.Millisecond)
	}
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		time.StepWall(0)
		begin := time.Now()
		time.AfterFunc(time.Second, func() { time.StepWall(step) })
		res, err := ask(http.DefaultClient, s.GatewayURL(), false)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if took := time.Since(begin); res.StatusCode != 503 || took < 2*time.Second || took > time.Minute {
			t.Errorf("stepped by %v: %s after %v", step, res.Status, took)
		}
	}
	if n := s.inFlight(); n != 0 {
		t.Errorf("%d requests are left in flight", n)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
