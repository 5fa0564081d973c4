// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

// A series that only shakes or has spikes is flat; one that creeps is not.
func TestSlopeOfASeries(t *testing.T) {
	run := func(value func(second float64) float64) trend {
		var all []held
		for i := range 180 {
			all = append(all, held{at: time.Duration(i) * time.Second, rss: value(float64(i))})
		}
		return soakSeries[0].judge(all)
	}
	for name, c := range map[string]struct {
		value func(float64) float64
		flat  bool
	}{
		"level":             {func(float64) float64 { return 200 }, true},
		"shakes":            {func(s float64) float64 { return 200 + 40*math.Sin(s) }, true},
		"fills at first":    {func(s float64) float64 { return 200 - 150*math.Exp(-s/10) }, true},
		"spikes at the end": {func(s float64) float64 { return 200 + 500*math.Floor(s/170) }, true},
		"falls":             {func(s float64) float64 { return 400 - s }, true},
		"creeps":            {func(s float64) float64 { return 200 + s/4 }, false},
		"creeps and shakes": {func(s float64) float64 { return 200 + s/4 + 20*math.Sin(s) }, false},
	} {
		if got := run(c.value); got.flat != c.flat {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := run(func(s float64) float64 { return 10 * s }); math.Abs(got.slope-10) > 1e-6 || got.from < 30*time.Second {
		t.Errorf("%+v", got)
	}
}

func TestFaultsOfASoak(t *testing.T) {
	well := func() *subject {
		u := &subject{name: "x"}
		for i := range 100 {
			u.samples = append(u.samples, held{at: time.Duration(i) * time.Second, rss: 90, goroutines: 9, descriptors: 9})
		}
		return u
	}
	if f := well().faults(); f != nil {
		t.Errorf("%q", f)
	}
	ledger, failed, short := well(), well(), well()
	ledger.after.ledger = 1
	failed.fail(errors.New("read 127.0.0.1:1->127.0.0.1:2: boom"))
	failed.fail(errors.New("read 127.0.0.1:3->127.0.0.1:4: boom"))
	short.samples = short.samples[:5]
	for want, u := range map[string]*subject{"ledger is not 0": ledger, "2 requests failed: 2 x read ADDR->ADDR: boom": failed, "too few": short} {
		if f := strings.Join(u.faults(), "; "); !strings.Contains(f, want) {
			t.Errorf("%q lacks %q", f, want)
		}
	}
	page := soakPage([]*subject{well(), failed}, "a <report>")
	if strings.Count(page, "<svg") != len(soakSeries) || strings.Contains(page, "<report>") || strings.Contains(page, "NaN") {
		t.Error(page)
	}
	for _, outside := range []string{"http:", "https:", "<script", "src="} {
		if strings.Contains(page, outside) {
			t.Errorf("the page holds %s", outside)
		}
	}
}
