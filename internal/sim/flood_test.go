// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"
)

// What a tenant that floods costs the others, in one cell of each family. Without
// limits on where it may go the geometric mean of these was 5.0 and the worst 225.
func TestFlood(t *testing.T) {
	sum, worst := 0.0, 0.0
	for i := range families {
		f := RunFlood(CellSeed(21, 15*i), 0, Contenders()[0])
		t.Logf("%s: worst victim %.2f", f.Name, f.Worst)
		sum += math.Log(f.Worst)
		worst = max(worst, f.Worst)
	}
	if g := math.Exp(sum / float64(len(families))); g > 1.5 || worst > 3 {
		t.Errorf("worst victim of a flood: %.2f in the mean of cells, %.2f in the worst", g, worst)
	}
}
