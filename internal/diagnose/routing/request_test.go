// SPDX-License-Identifier: Apache-2.0

package routing_test

import (
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose/routing"
	"github.com/penstock-project/penstock/internal/route"
)

func TestRequest(t *testing.T) {
	base := func() *route.Record { return record(1, "r0", 800, 780, 200) }
	if got := routing.Request(base()); len(got.Findings) != 0 || len(got.Parts) != 2 {
		t.Errorf("a good request gives %+v", got)
	}
	for _, c := range []struct {
		code string
		harm func(*route.Record)
	}{
		{"request-held", func(r *route.Record) { r.Outcome.TTFTMS, r.Outcome.QueueMS = ptr(2000.0), 1800 }},
		{"request-retried", func(r *route.Record) {
			r.Outcome.Attempts = []route.AttemptMade{{Endpoint: "r1", Kind: "broken", AfterMS: 30}}
		}},
		{"request-missed-cache", func(r *route.Record) { r.Outcome.CachedTokens = ptr(0) }},
		{"request-mispriced", func(r *route.Record) { r.PredictedTTFTMS, r.Outcome.TTFTMS = ptr(100.0), ptr(900.0) }},
		{"request-failed", func(r *route.Record) { r.Outcome.Kind, r.Outcome.Status = "engine_error", 500 }},
	} {
		r := base()
		c.harm(r)
		got := routing.Request(r)
		if len(got.Findings) != 1 || got.Findings[0].Code != c.code {
			t.Errorf("%s: %+v", c.code, got.Findings)
		}
	}
	running := base()
	running.Outcome = nil
	if got := routing.Request(running); len(got.Findings) != 0 {
		t.Errorf("a running request gives %+v", got.Findings)
	}
}
