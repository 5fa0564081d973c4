// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

func TestBriefs(t *testing.T) {
	j, err := New(Options{Memory: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	start := j.Head()
	for i := range 12 {
		c := &route.Capture{ID: fmt.Sprint("q", i), Model: "m", Finished: true, Arrived: fleet.Time(time.Second)}
		c.Outcome = fleet.Outcome{FirstToken: fleet.Time(1500 * time.Millisecond), PromptTokens: 100, CachedTokens: 50, OutputTokens: -1}
		c.Decision.Candidates = []route.Candidate{{Endpoint: "a", Cached: 60}, {Endpoint: "b", Cached: 20}, {Endpoint: "c", Cached: 90, Drop: route.DropNotReady}}
		j.Capture(c)
	}
	var got []route.Brief
	next, missed := j.Briefs(start, 0, Filter{}, func(b route.Brief) { got = append(got, b) })
	if next != 12 || missed != 4 || len(got) != 8 || got[0].ID != "q4" {
		t.Fatalf("next %d, missed %d, %d briefs from %s", next, missed, len(got), got[0].ID)
	}
	if b := got[0]; b.TTFTMS != 500 || b.Cached != 50 || b.MeanCached != 40 || b.BestCached != 60 || b.Output != -1 || b.E2EMS != -1 {
		t.Errorf("brief %+v", b)
	}
	f, _ := ParseFilter("id=q9")
	n := 0
	if next, _ = j.Briefs(next-8, 1, f, func(b route.Brief) {
		n++
		// The same request condensed from its expanded record says the same.
		if b.TTFTMS != 500 || b.MeanCached != 40 || b.BestCached != 60 || b.Cached != 50 {
			t.Errorf("from the record: %+v", b)
		}
	}); n != 1 || next != 10 {
		t.Errorf("%d passed, next %d", n, next)
	}
}
