// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
)

func meterOf(m admit.Measure) *Meter {
	now := fleet.At(time.Unix(1e9, 0))
	return NewMeter(Options{
		Policy: &Policy{
			Tenants: map[string]*Tenant{"acme": {Name: "acme", Limits: []Limit{{Rule: admit.Rule{Measure: m, Limit: 1e9, Per: time.Hour}}}}},
			Prices:  map[string]admit.Price{"small": {Prompt: 1, Cached: 1, Output: 2}, "big": {Prompt: 10, Cached: 5, Output: 20}},
		},
		Clock: func() fleet.Time { return now },
	})
}

func (m *Meter) let(t *testing.T, model string, most int) *Lease {
	t.Helper()
	l, no := m.Reserve(context.Background(), Ask{Tenant: "acme", Model: model, Prompt: 7, MaxTokens: most})
	if no != nil {
		t.Fatal(no)
	}
	return l
}

// What nobody saw of an answer is charged at the pace of earlier answers of the model.
func TestProducedGoesByPace(t *testing.T) {
	m := meterOf(admit.OutputTokens)
	l := m.let(t, "small", 400)
	if got := l.Produced(time.Second); got != 40 {
		t.Errorf("at the usual pace %d tokens in a second", got)
	}
	l.Pace(100, time.Second)
	l.Settle(admit.Usage{Requests: 1, Output: 100}, true)
	l = m.let(t, "small", 400)
	for took, want := range map[time.Duration]int64{time.Second: 100, time.Minute: 400, 0: 0, -time.Second: 0} {
		if got := l.Produced(took); got != want {
			t.Errorf("%v: %d tokens, want %d", took, got, want)
		}
	}
	if got := m.let(t, "big", 400).Produced(time.Second); got != 40 {
		t.Errorf("another model: %d", got)
	}
	var none *Lease
	if none.Produced(time.Second) != 0 {
		t.Error("a request without limits")
	}
	none.Pace(1, time.Second)
	none.Moved("big")
}

// A request that moved to another model costs what that one costs, from then on.
func TestMovedIsRepriced(t *testing.T) {
	m := meterOf(admit.Money)
	l := m.let(t, "small", 100)
	l.Moved("big")
	l.Settle(admit.Usage{Requests: 1, Prompt: 7, Cached: 2, Output: 30}, true)
	if b := m.Stats().Balances[0]; b.Charged != 5*10+2*5+30*20 || b.Reserved != 0 {
		t.Errorf("%+v", b)
	}
}
