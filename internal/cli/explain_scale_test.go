// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/flow"
)

// A bound may lower what the rule wants to what a cheaper rule wants, and a young
// rule's cost is unknown: neither may read as a contradiction or as zero.
func TestScaleStepsSayWhatIsKnown(t *testing.T) {
	n := func(v int) *int { return &v }
	rule := func(replicas int, cost float64) *flow.ScaleRule {
		return &flow.ScaleRule{Name: "10 s mean", Replicas: replicas, Cost: cost, WhyNot: "it misses more"}
	}
	for _, c := range []struct {
		name       string
		r          flow.ScaleRecord
		want, miss string
	}{
		{"young", flow.ScaleRecord{Raw: 5, Desired: n(5), Rule: rule(5, 0)}, "on average is not known yet", "keeps 0"},
		{"old", flow.ScaleRecord{Raw: 5, Desired: n(5), Rule: rule(5, 4.5)}, "keeps 4.5 replicas on average", "not known"},
		{"bound", flow.ScaleRecord{Raw: 12, Desired: n(8), Rule: rule(12, 9), NextCheaper: rule(8, 7)}, "a cheaper rule would come to the same: it wants 8 (10 s mean)", "why not"},
		{"free", flow.ScaleRecord{Raw: 8, Desired: n(8), Rule: rule(8, 7), NextCheaper: rule(6, 5)}, "why not 6: 10 s mean; it misses more", "the same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var b strings.Builder
			(&Env{}).printScaleSteps(&b, &c.r)
			if got := b.String(); !strings.Contains(got, c.want) || strings.Contains(got, c.miss) {
				t.Errorf("want %q and no %q in\n%s", c.want, c.miss, got)
			}
		})
	}
}
