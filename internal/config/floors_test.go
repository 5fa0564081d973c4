// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strings"
	"testing"
)

func TestFloors(t *testing.T) {
	s := &load(t, "full.yaml").Pools[0].Scale
	if from, to, days := s.Floors[0].Span(); from != 450 || to != 1140 || days != [7]bool{false, true, true, true, true, true, false} || s.Floors[0].Min != 3 {
		t.Errorf("%d %d %v, %+v", from, to, days, s.Floors[0])
	}
	if from, to, days := s.Floors[1].Span(); from != 1320 || to != 360 || days != [7]bool{} {
		t.Errorf("%d %d %v", from, to, days)
	}
	if n := load(t, "full.yaml").Accelerators.Total; n != 24 || s.Priority != -1 {
		t.Errorf("%d shared accelerators, priority %d", n, s.Priority)
	}
	if s.Location().String() != "Europe/Berlin" || s.Accelerators != 16 {
		t.Errorf("%s, %d accelerators", s.Location(), s.Accelerators)
	}
	for days, want := range map[string][7]bool{
		"sat,sun": {true, false, false, false, false, false, true}, "fri-mon": {true, true, false, false, false, true, true}, "wed": {false, false, false, true, false, false, false},
	} {
		if got, err := weekdays(days); err != nil || got != want {
			t.Errorf("%s: %v %v", days, got, err)
		}
	}
	for scale, want := range map[string]string{
		`floors: [{from: "7", to: "19:00", min: 1}]`:                  `"7" is not a time of day`,
		`floors: [{from: "07:30", to: "24:01", min: 1}]`:              `"24:01" is not a time of day`,
		`floors: [{from: "24:00", to: "03:00", min: 1}]`:              `from 24:00 is 00:00 of the next day`,
		`floors: [{from: "07:30", to: "19:00", min: 9}]`:              `min 9 is more than max 8`,
		`floors: [{from: "07:30", to: "19:00"}]`:                      `a floor needs a min`,
		`floors: [{from: "07:30", to: "19:00", days: Mo-Fr, min: 1}]`: `is not a day or a span of days`,
		`timeZone: Mars/Olympus`:                                      `"Mars/Olympus" is not a time zone`,
		`timeZone: Local`:                                             `name the zone`,
		`priority: 2000`:                                              `out of range`,
		`accelerators: -1`:                                            `out of range`,
	} {
		src := "pools:\n  - name: p\n    models: [{name: m}]\n    replicas: {static: [http://127.0.0.1:1]}\n    scale: {max: 8, " + scale + "}\n"
		if _, err := Parse("x", []byte(src), testOptions); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", scale, err)
		}
	}
}

// Floors and the quota come into force with a reload.
func TestFloorsAreLive(t *testing.T) {
	a, b := load(t, "full.yaml"), load(t, "full.yaml")
	s := &b.Pools[0].Scale
	s.Floors[0].Min, s.TimeZone, s.Accelerators = 4, "UTC", 8
	s.Priority, b.Accelerators.Total = 3, 32
	s.Floors = append(s.Floors, Floor{From: "12:00", To: "13:00", Min: 5})
	d := Diff(a, b)
	if len(d) != 6 {
		t.Errorf("%v", d)
	}
	for _, c := range d {
		if !c.Live {
			t.Errorf("%s needs a restart", c.Path)
		}
	}
}
