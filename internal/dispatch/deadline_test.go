// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// What cannot be answered by its deadline is refused when it comes, with the time
// that is missing; what can is taken, and nothing of the refused one is left.
func TestDeadlineIsRefusedEarly(t *testing.T) {
	d := New(Options{Profile: testProfile()})
	now := fleet.Time(time.Hour)
	snap := &fleet.Snapshot{Pool: "p", Version: 1, At: now, Endpoints: []fleet.EndpointState{
		{Endpoint: fleet.Endpoint{ID: "a", URL: "http://a", Phase: fleet.PhaseReady, Rank: -1}},
	}}
	d.Observe(now, snap, nil)
	request := func(deadline time.Duration) *fleet.Request {
		r := &fleet.Request{ID: "x", PromptTokens: 60000, BlockTokens: 128, Stream: true, Arrived: now}
		if deadline > 0 {
			r.Deadline = now.Add(deadline)
		}
		return r
	}
	_, v, _ := d.Arrive(now, request(0), nil)
	if v.Kind != Sent {
		t.Fatalf("%+v", v)
	}
	_, v, _ = d.Arrive(now, request(time.Millisecond), nil)
	if v.Kind != Refused || v.Late <= 0 || v.Reason == "" {
		t.Fatalf("%+v", v)
	}
	late := v.Late
	_, v, _ = d.Arrive(now, request(2*time.Millisecond+late), nil)
	if v.Kind != Sent {
		t.Fatalf("with %v more: %+v", late, v)
	}
	if n := d.Totals(now).InFlight; n != 2 {
		t.Errorf("%d in flight", n)
	}
}
