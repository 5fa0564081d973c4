// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/eppcheck"
)

// TestConformance plays the whole black-box suite against the picker.
func TestConformance(t *testing.T) {
	f := newPool(t, 3)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	rep, err := eppcheck.Run(context.Background(), eppcheck.Options{
		Address: addr, Model: "m", Timeout: time.Minute,
		Endpoints: []string{"127.10.0.1:8000", "127.10.0.2:8000", "127.10.0.3:8000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range rep.Checks {
		if c.Result != eppcheck.Pass {
			t.Errorf("%s: %s: %s", c.Name, c.Result, c.Detail)
		}
	}
	t.Logf("%d passed, %d failed, %d skipped", rep.Passed, rep.Failed, rep.Skipped)
	if len(rep.Checks) < 25 {
		t.Errorf("only %d checks", len(rep.Checks))
	}
	deadline := time.Now().Add(time.Minute)
	for s.Stats.Open.Load() != 0 || f.Stats().Totals.InFlight != 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d streams open, %d requests in flight after the suite", s.Stats.Open.Load(), f.Stats().Totals.InFlight)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
