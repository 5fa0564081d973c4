// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	_ "time/tzdata"

	"github.com/penstock-project/penstock/internal/scale"
)

// A scheduled floor holds by the wall clock of its zone, comes and goes with the
// policy, stays below the quota of accelerators, and plays again from the journal.
func TestScheduledFloorAndQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		zone, err := time.LoadLocation("Europe/Berlin")
		if err != nil {
			t.Fatal(err)
		}
		p := scale.Policy{Min: 1, Max: 8, StartUp: 10, Zone: zone, Floors: []scale.Floor{{From: 60, To: 120, Min: 3}}} // it is 1:00 there
		l := newLoop(p, ModeAct, 10*time.Second)
		l.run(t)
		time.Sleep(50 * time.Minute)
		if x := l.Last(); l.st.ids() != 3 || !slices.ContainsFunc(x.Constraints, func(c ScaleConstraint) bool {
			return c.Name == "schedule" && strings.Contains(c.Detail, "01:00 to 02:00 Europe/Berlin")
		}) {
			t.Errorf("in the hour of the floor: %d replicas, %+v", l.st.ids(), x.Constraints)
		}
		time.Sleep(70 * time.Minute)
		if l.st.ids() != 1 {
			t.Errorf("an hour after the floor: %d replicas: %s", l.st.ids(), l.Last().Sentence)
		}
		p.Floors = []scale.Floor{{From: 0, To: 0, Min: 6}} // all day, from now on
		p.Accelerators, p.AcceleratorsPerReplica = 9, 2
		l.SetPolicy(p, ModeAct, l.o.Hold)
		time.Sleep(time.Minute)
		x := l.Last()
		if i := slices.IndexFunc(x.Constraints, func(c ScaleConstraint) bool { return c.Name == "accelerators" }); l.st.ids() != 4 || i < 0 ||
			x.Constraints[i].Before != 6 || x.Constraints[i].After != 4 || x.Constraints[i].Detail != "9 accelerators at 2 a replica" {
			t.Errorf("under a quota: %d replicas, %+v", l.st.ids(), x.Constraints)
		}
		if err := l.Pin(5); err == nil || !strings.Contains(err.Error(), "accelerators") {
			t.Errorf("a pin above the quota: %v", err)
		}
		l.mu.Lock()
		ticks := bytes.Clone(l.ticks.Bytes())
		l.mu.Unlock()
		if r, err := ReplayScale(bytes.NewReader(ticks)); err != nil || len(r) != 1 || r[0].Different != 0 || r[0].Ticks == 0 {
			t.Errorf("replayed: %+v %v", r, err)
		}
		bad := bytes.ReplaceAll(ticks, []byte("Europe/Berlin\""), []byte("Mars/Olympus\""))
		if _, err := ReplayScale(bytes.NewReader(bad)); err == nil {
			t.Error("a zone that does not exist was played")
		}
	})
}
