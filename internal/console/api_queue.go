// SPDX-License-Identifier: Apache-2.0

package console

import (
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// QueueState is the router's own queue in front of a pool: what it holds, how long it
// may, and what it is measured to be worth.
type QueueState struct {
	On    bool       `json:"on"`
	Bound QueueBound `json:"bound"`
	// Held, MeanMS and LongestMS are of requests that were held and then sent, since
	// the start. NearestBound is the longest wait as a part of its own bound.
	Held         uint64   `json:"held"`
	MeanMS       *float64 `json:"mean_hold_ms"`
	LongestMS    *float64 `json:"longest_hold_ms"`
	NearestBound *float64 `json:"nearest_bound"`
	Stolen       uint64   `json:"stolen"`  // taken by a replica with room from another's queue
	Overdue      uint64   `json:"overdue"` // sent because the bound was reached
	// OverShare is the tenant that asks for far more than the others while they wait, and
	// OverShareTotal how often one was found to, since the start.
	OverShare      *OverShare `json:"over_share"`
	OverShareTotal uint64     `json:"over_share_total"`
	// Guards measure each mechanism that may hold a request, and the affinity of adapters.
	Guards []GuardStatus `json:"guards"`
}

// QueueBound is how long a request may be held: Times what first come first served
// would have cost it and PlusS, and at most MostS longer than it, or MostTimes as
// long. MostS is null once several tenants came.
type QueueBound struct {
	Times     float64  `json:"times_first_come"`
	PlusS     float64  `json:"plus_s"`
	MostS     *float64 `json:"most_s"`
	MostTimes float64  `json:"most_times"`
}

// OverShare says which tenant is over its share of a pool: it keeps to Replicas of them,
// goes last there, and gets FairShare of work and memory all the same.
type OverShare struct {
	Tenant    string    `json:"tenant"`
	Since     time.Time `json:"since"`
	Replicas  int       `json:"replicas"`
	FairShare float64   `json:"fair_share"` // 0..1
	Held      int       `json:"held"`       // requests of it that wait in the router
}

// GuardStatus says what a mechanism is worth, and whether it is off because it harmed.
type GuardStatus struct {
	Name  string     `json:"name"`
	Off   bool       `json:"off"`
	Until *time.Time `json:"until,omitempty"` // it is tried again
	// Requests are those of about the last minute that it touched, TTFTMS their mean
	// time to first token, WithoutMS what they were predicted to have had without it.
	Requests  float64  `json:"requests"`
	TTFTMS    *float64 `json:"ttft_ms"`
	WithoutMS *float64 `json:"without_ms"`
	Switched  uint64   `json:"switched_off"` // times since the start
}

func queueState(t *dispatch.Totals) *QueueState {
	if t.MaxHold == 0 {
		return nil
	}
	q := &t.Queue
	out := &QueueState{
		On: t.QueueOn, Bound: QueueBound{Times: t.MaxHold, PlusS: dispatch.HoldPlus, MostTimes: dispatch.MostTimes},
		Held: q.Held, Stolen: t.Stolen, Overdue: t.Overdue, Guards: []GuardStatus{},
		OverShareTotal: t.OverShare,
	}
	if o := t.Over; o != nil {
		out.OverShare = &OverShare{o.Tenant, wall(o.Since), o.Places, round3(o.Part), o.Held}
	}
	if t.HoldMost > 0 {
		out.Bound.MostS = milli(t.HoldMost.Seconds())
	}
	if q.Held > 0 {
		out.MeanMS = milli(q.Sum.Seconds() * 1e3 / float64(q.Held))
		out.LongestMS, out.NearestBound = milli(q.Longest.Seconds()*1e3), milli(q.Nearest)
	}
	for i := range t.Guards {
		out.Guards = append(out.Guards, guardStatus(&t.Guards[i]))
	}
	return out
}

func guardStatus(g *dispatch.GuardState) GuardStatus {
	s := GuardStatus{Name: g.Name, Off: g.Off, Requests: round3(g.Requests), Switched: g.Switched}
	if g.Off {
		until := wall(g.Until)
		s.Until = &until
	}
	if g.Requests > 0 {
		s.TTFTMS, s.WithoutMS = milli(g.GotMS), milli(g.WouldMS)
	}
	return s
}

func milli(v float64) *float64 {
	v = round3(v)
	return &v
}

func wall(t fleet.Time) time.Time { return t.Wall().UTC() }
