// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // an image without zones knows them all the same
)

// Floor is a minimum of replicas for a part of the day.
type Floor struct {
	From, To string // 07:30; To may be 24:00, and where it is not after From the floor spans midnight
	Days     string // mon-fri, or sat,sun; "": all
	Min      int    // replicas
}

// Accelerators are what all pools share.
type Accelerators struct {
	Total int // 0: no bound
}

// Span returns the bounds in minutes since midnight, and the days from Sunday on; none
// is all of them. The texts have been checked.
func (f *Floor) Span() (from, to int, days [7]bool) {
	from, _ = minutes(f.From)
	to, _ = minutes(f.To)
	days, _ = weekdays(f.Days)
	return from, to, days
}

// Location returns the time zone of the floors.
func (s *Scale) Location() *time.Location {
	l, err := time.LoadLocation(s.TimeZone)
	if err != nil {
		return time.UTC // it was good when the file was read
	}
	return l
}

var floorObject = &object{name: "a floor", fields: []field{
	text("from", "When it begins, hh:mm.", func(f *Floor) *string { return &f.From }, required(), checked(checkTimeOfDay), live(), example("07:30")),
	text("to", "When it ends, hh:mm, at most 24:00; not after from: on the next day.", func(f *Floor) *string { return &f.To }, required(), checked(checkTimeOfDay), live(),
		example("19:00")),
	text("days", "Days on which it begins, such as mon-fri or sat,sun; empty: all.", func(f *Floor) *string { return &f.Days }, checked(checkDays), live(), example("mon-fri")),
	integer("min", "Fewest replicas meanwhile.", func(f *Floor) *int { return &f.Min }, within(1, 10000), required(), live()),
}}

var acceleratorsObject = &object{name: "accelerators", fields: []field{
	integer("total", "Accelerators that the replicas of all pools share, as far as Penstock moves them; 0: no bound.",
		func(a *Accelerators) *int { return &a.Total }, within(0, 1000000), live()),
}}

// scaleBounds are the keys of floors and of the quota.
var scaleBounds = []field{
	mappings("floors", "Fewest replicas by time of day; the largest that holds counts.", floorObject, func(s *Scale) *[]Floor { return &s.Floors }, live()),
	text("timeZone", "Time zone of floors, such as Europe/Berlin; empty: UTC.", func(s *Scale) *string { return &s.TimeZone }, checked(checkZone), live()),
	integer("accelerators", "Most accelerators that the replicas may take together, each as many as the engine profile's tensorParallel; 0: no bound.",
		func(s *Scale) *int { return &s.Accelerators }, within(0, 100000), live()),
	integer("priority", "Among pools that share accelerators.total: the higher are served first.", func(s *Scale) *int { return &s.Priority }, within(-1000, 1000), live()),
}

func minutes(s string) (int, error) {
	h, m, ok := strings.Cut(s, ":")
	hours, err1 := strconv.Atoi(h)
	mins, err2 := strconv.Atoi(m)
	if !ok || err1 != nil || err2 != nil || len(h) < 1 || len(h) > 2 || len(m) != 2 || hours < 0 || mins < 0 || mins > 59 || hours*60+mins > 1440 {
		return 0, fmt.Errorf("%q is not a time of day; write 07:30", s)
	}
	return hours*60 + mins, nil
}

func checkTimeOfDay(s string) error { _, err := minutes(s); return err }

var dayNames = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

func weekdays(s string) (days [7]bool, err error) {
	if s == "" {
		return days, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		a, b, span := strings.Cut(strings.TrimSpace(part), "-")
		if !span {
			b = a
		}
		i, j := slices.Index(dayNames, a), slices.Index(dayNames, b)
		if i < 0 || j < 0 {
			return days, fmt.Errorf("%q is not a day or a span of days; write mon-fri, or sat,sun", part)
		}
		for ; ; i = (i + 1) % 7 {
			days[i] = true
			if i == j {
				break
			}
		}
	}
	return days, nil
}

func checkDays(s string) error { _, err := weekdays(s); return err }

func checkZone(s string) error {
	if s == "Local" {
		return errors.New("name the zone, such as Europe/Berlin: the machine's own differs from one to the next")
	}
	if _, err := time.LoadLocation(s); err != nil {
		return fmt.Errorf("%q is not a time zone; write Europe/Berlin or UTC", s)
	}
	return nil
}

func (d *decoder) validateFloors(p *Pool, path string) {
	for i := range p.Scale.Floors {
		f, at := &p.Scale.Floors[i], fmt.Sprintf("%s.scale.floors[%d]", path, i)
		if f.From == "24:00" {
			d.failPath(at+".from", "from 24:00 is 00:00 of the next day; write that")
		}
		if f.Min > p.Scale.Max {
			d.failPath(at+".min", "min %d is more than max %d", f.Min, p.Scale.Max)
		}
	}
}
