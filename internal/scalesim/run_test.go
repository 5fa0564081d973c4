// SPDX-License-Identifier: Apache-2.0

package scalesim

import (
	"reflect"
	"testing"
)

// One drawn scenario: the same seed gives the same figures, and the clairvoyant
// bound is met at no more than the best static fleet costs.
func TestScenario(t *testing.T) {
	if testing.Short() {
		t.Skip("simulates hours of traffic")
	}
	sc := DrawClass(1001, "step", 120)
	a, b := Run(sc, Static(6)), Run(DrawClass(1001, "step", 120), Static(6))
	if !reflect.DeepEqual(a, b) {
		t.Errorf("two runs of one seed differ:\n%+v\n%+v", a, b)
	}
	best := Clairvoyant(sc)
	static, _ := BestStatic(sc)
	if best.Attainment < 0.985 || best.ReplicaHours > 1.05*static.ReplicaHours {
		t.Errorf("clairvoyant %.4f at %.1f h, static in hindsight %.4f at %.1f h",
			best.Attainment, best.ReplicaHours, static.Attainment, static.ReplicaHours)
	}
}
