// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/config"
)

// TestReplayOfAServer: what a running server decided happens again in every byte, and
// another policy can be asked beside.
func TestReplayOfAServer(t *testing.T) {
	urls, _ := startReplicas(t, 3, nil)
	dir := t.TempDir()
	s, stop := runServer(t, func(c *config.Config) {
		c.Journal.Dir, c.Journal.Events = dir, true
		c.Pools[0].Route.Shadow = "round-robin"
	}, urls...)
	for n := range 3 {
		round(t, s.GatewayURL(), 6, n+1)
	}
	if st := s.admin.Status().Pools[0].Shadow; st == nil || st.Picks != 18 || st.Agrees == nil || st.ExtraMS == nil {
		t.Errorf("shadow %+v", st)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	tapes := tapesOf(dir)
	if len(tapes) != 1 {
		t.Fatalf("tapes %v", tapes)
	}
	r, shadow, err := replayTape(tapes[0], "random")
	if err != nil || !r.Exact || r.Decisions < 18 || shadow.Picks != 18 || shadow.Policy != "random" {
		t.Errorf("%+v %+v %v", r, shadow, err)
	}
	var out bytes.Buffer
	if err := runTapes(&Env{Stdout: &out}, tapes, "", "table"); err != nil || !strings.Contains(out.String(), "all the same in every byte") {
		t.Errorf("%v %s", err, out.String())
	}
}
