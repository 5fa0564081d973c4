// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// An endpoint that is trusted again gets twice as much each second, then all.
func TestSlowStart(t *testing.T) {
	var b breaker
	now := fleet.Time(time.Hour)
	b.failed(now, fleet.OutcomeConnectError)
	if !b.ejected() || b.full(now, 100) {
		t.Error("slow start before the return")
	}
	now = now.Add(2 * time.Second)
	b.succeeded(now, true)
	b.succeeded(now, true)
	if b.ejected() {
		t.Fatal("two good trials do not bring it back")
	}
	for s, most := range []int32{2, 4, 8, 16, 32, 64} {
		at := now.Add(time.Duration(s) * time.Second)
		if b.full(at, most-1) || !b.full(at, most) {
			t.Errorf("after %d s: the limit is not %d", s, most)
		}
	}
	if b.full(now.Add(6*time.Second), 1000) {
		t.Error("slow start has no end")
	}
	b.succeeded(now, false)
	if b.full(now, 1000) {
		t.Error("it begins again without a failure")
	}
}
