// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"math"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// ScaleRecordSchema names the form of a ScaleRecord in JSON.
const ScaleRecordSchema = "penstock/recommendation/v1"

// ScaleRecord is one recommendation with what was made of it. What is unknown is absent
// or null.
type ScaleRecord struct {
	Schema string       `json:"schema"`
	Pool   string       `json:"pool"`
	Time   scale.Moment `json:"time"`
	Mode   string       `json:"mode"` // recommend, act
	Hand   string       `json:"hand"` // "": nobody moves replicas
	// Sentence says it all in one.
	Sentence string `json:"sentence"`

	Current int `json:"current"`
	// Counted is how many replicas there are, draining ones included.
	Counted  int            `json:"counted"`
	Ready    int            `json:"ready"`
	Draining int            `json:"draining"`
	Pending  []ScalePending `json:"pending"`

	Offered    float64 `json:"offered"`     // seconds of replica time a second, mean of a minute
	PerReplica float64 `json:"per_replica"` // what one of the present replicas carries of it
	Unit       string  `json:"unit"`
	Attainment float64 `json:"attainment"`

	Signals     []scale.Signal    `json:"signals"`
	Raw         int               `json:"raw"`
	Constraints []ScaleConstraint `json:"constraints"`
	leader      string            // the other Penstock that acts, where Owner is one

	// Desired is null where there is no opinion.
	Desired *int   `json:"desired"`
	Binding string `json:"binding"`

	Rule        *ScaleRule `json:"rule,omitempty"`
	NextCheaper *ScaleRule `json:"next_cheaper,omitempty"`

	DownBlocked *ScaleBlock   `json:"scale_down_blocked,omitempty"`
	Next        scale.Moment  `json:"next_evaluation"`
	Applied     *ScaleApplied `json:"applied,omitempty"` // null: nothing was asked of the hand
	Victims     []string      `json:"victims"`
	Paused      bool          `json:"paused"`
	Pinned      *int          `json:"pinned,omitempty"`
	Override    *Override     `json:"override,omitempty"` // the pause or the pin; absent where there is none

	NoOpinion  string            `json:"no_opinion,omitempty"` // why there is none
	Owner      string            `json:"owner,omitempty"`      // who else moves the object
	Blocked    string            `json:"blocked,omitempty"`    // why nothing can be added
	Conditions []scale.Condition `json:"conditions"`

	Starts      []float64 `json:"-"` // learned start-up times in seconds, oldest first
	StartP50    float64   `json:"start_p50_s"`
	StartP90    float64   `json:"start_p90_s"`
	KnownFor    float64   `json:"known_for_s"`
	CapacityFit float64   `json:"capacity_fit"`
	Reversals   int       `json:"reversals_1h"`
	// InputAt is when something was last offered, DifferedAt when another number than
	// the present one was last wanted: the proof that the loop is alive.
	InputAt    scale.Moment `json:"input_at"`
	DifferedAt scale.Moment `json:"differed_at"`
	Attained   *float64     `json:"attained,omitempty"` // share of requests inside the objectives since the start
}

// ScalePending is a replica on its way.
type ScalePending struct {
	ID      string       `json:"id"`
	Phase   string       `json:"phase"`
	Since   scale.Moment `json:"since"`
	ReadyAt scale.Moment `json:"ready_at"` // null where it is not believed to come
	Overdue bool         `json:"overdue"`
	Reason  string       `json:"reason,omitempty"`
}

// ScaleConstraint is a bound that changed the number.
type ScaleConstraint struct {
	Name   string       `json:"name"`
	Before int          `json:"before"`
	After  int          `json:"after"`
	Detail string       `json:"detail,omitempty"`
	Until  scale.Moment `json:"until,omitzero"`
}

// ScaleRule is a shadow fleet.
type ScaleRule struct {
	Name     string  `json:"name"`
	Replicas int     `json:"replicas"` // at present
	Cost     float64 `json:"cost"`     // mean replicas
	Misses   float64 `json:"misses"`   // share of the work, what is not known yet included
	WhyNot   string  `json:"why_not,omitempty"`
}

// ScaleBlock is what keeps the fleet from going down.
type ScaleBlock struct {
	Until scale.Moment `json:"until"` // null where that depends on traffic
	Why   string       `json:"why"`
}

// ScaleApplied is what was asked of the hand.
type ScaleApplied struct {
	At    scale.Moment `json:"at"`
	OK    bool         `json:"ok"`
	Error string       `json:"error,omitempty"`
}

// recordOf turns a recommendation into a record. The loop adds what it alone knows.
func recordOf(r *scale.Recommendation) *ScaleRecord {
	x := &ScaleRecord{
		Schema: ScaleRecordSchema, Pool: r.Pool, Time: r.Time, Sentence: r.Sentence, Current: r.Current, Ready: r.Ready, Draining: r.Draining,
		Counted: r.Ready + r.Draining + len(r.Pending),
		Pending: []ScalePending{}, Offered: tidy(r.Offered), PerReplica: tidy(r.PerReplica), Unit: r.Unit, Attainment: r.Attainment,
		Signals: append([]scale.Signal{}, r.Signals...), Raw: r.Raw, Constraints: []ScaleConstraint{}, Binding: r.Binding, Next: r.Next,
		Victims: append([]string{}, r.Victims...), NoOpinion: r.Reason, Conditions: append([]scale.Condition{}, r.Conditions...),
		Starts: append([]float64(nil), r.Starts...), StartP50: tidy(r.StartP50S), StartP90: tidy(r.StartP90S), KnownFor: r.KnownForS, CapacityFit: r.CapacityFit, Reversals: r.Reversals,
	}
	for i := range x.Signals {
		s := &x.Signals[i]
		s.Target, s.Ratio, s.AgeMS = tidy(s.Target), tidy(s.Ratio), math.Round(s.AgeMS)
		if s.Value != nil {
			v := tidy(*s.Value)
			s.Value = &v
		}
	}
	if !r.NoOpinion {
		n := r.Final
		x.Desired, x.NoOpinion = &n, ""
	}
	for _, p := range r.Pending {
		y := ScalePending{ID: p.ID, Phase: p.Phase, Since: p.Since, ReadyAt: p.Expected, Overdue: p.Overdue, Reason: string(p.Cause)}
		x.Pending = append(x.Pending, y)
	}
	for _, c := range r.Constraints {
		x.Constraints = append(x.Constraints, ScaleConstraint{Name: c.Name, Before: c.Before, After: c.After, Detail: c.Why, Until: c.Until})
	}
	x.Rule, x.NextCheaper = ruleOf(r.Chosen, ""), ruleOf(r.Cheaper, r.WhyNot)
	if c := r.DownBlocked(); c != nil {
		x.DownBlocked = &ScaleBlock{Until: c.Until, Why: c.Name + ": " + c.Why}
	}
	return x
}

func ruleOf(r *scale.Rule, whyNot string) *ScaleRule {
	if r == nil {
		return nil
	}
	return &ScaleRule{Name: r.String(), Replicas: r.Replicas, Cost: tidy(r.Mean), Misses: tidy(r.Expected), WhyNot: whyNot}
}

// tidy rounds for readers: four digits behind the point.
func tidy(v float64) float64 { return math.Round(v*1e4) / 1e4 }

// constrain adds a bound of the loop itself and makes the sentence say so.
func (x *ScaleRecord) constrain(name string, after int, detail string) {
	if x.Desired == nil || *x.Desired == after {
		return
	}
	x.Constraints = append(x.Constraints, ScaleConstraint{Name: name, Before: *x.Desired, After: after, Detail: detail})
	x.Sentence = fmt.Sprintf("%s, but %s (%s): %d", x.Sentence, name, detail, after)
	x.Desired, x.Binding = &after, name
}

// earliest is when the first pending replica is expected; 0 where none is.
func (x *ScaleRecord) earliest() fleet.Time {
	t := fleet.Time(0)
	for _, p := range x.Pending {
		if at := fleet.Time(p.ReadyAt); at != 0 && (t == 0 || at < t) {
			t = at
		}
	}
	return t
}
