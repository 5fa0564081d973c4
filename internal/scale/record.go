// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Moment is a fleet.Time that JSON shows as RFC 3339 in UTC; 0 and fleet.Never are
// null.
type Moment fleet.Time

// MarshalJSON implements json.Marshaler.
func (m Moment) MarshalJSON() ([]byte, error) {
	if m == 0 || fleet.Time(m) == fleet.Never {
		return []byte("null"), nil
	}
	return json.Marshal(fleet.Time(m).Wall().UTC().Format(time.RFC3339Nano))
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Moment) UnmarshalJSON(b []byte) error {
	var s *string
	if err := json.Unmarshal(b, &s); err != nil || s == nil {
		*m = 0
		return err
	}
	t, err := time.Parse(time.RFC3339Nano, *s)
	*m = Moment(fleet.At(t))
	return err
}

// Pending is a replica on its way, with when it will be ready by what was learned.
type Pending struct {
	ID       string  `json:"id"`
	Phase    string  `json:"phase"`
	Since    Moment  `json:"since"`    // asked for, or first seen
	Expected Moment  `json:"expected"` // null where it is not believed to come
	Overdue  bool    `json:"overdue,omitempty"`
	Cause    Cause   `json:"cause,omitempty"` // why it is not coming
	AgeS     float64 `json:"age_s"`
}

// Constraint is one bound or correction in the order in which they are applied.
type Constraint struct {
	Name   string `json:"name"`
	Before int    `json:"before"`
	After  int    `json:"after"`
	Why    string `json:"why,omitempty"`
	Until  Moment `json:"until,omitzero"` // when it lets go; null where it depends
}

// Rule is one shadow with what is remembered of it.
type Rule struct {
	Basis    string  `json:"basis"` // level, season or forecast
	WindowS  int     `json:"window_s,omitempty"`
	HoldS    int     `json:"hold_s,omitempty"`
	PeriodS  int     `json:"period_s,omitempty"`
	SpanS    int     `json:"span_s,omitempty"`
	Margin   float64 `json:"margin"`
	Floor    int     `json:"floor,omitempty"`
	Replicas int     `json:"replicas"` // what it wants at present
	Mean     float64 `json:"mean_replicas"`
	Missed   float64 `json:"missed"`      // share of the remembered work, prior excluded
	Expected float64 `json:"missed_with"` // the same with what is not known yet
}

// String says what the rule does in a phrase.
func (r *Rule) String() string {
	s := ""
	switch r.Basis {
	case "forecast":
		s = fmt.Sprintf("line through the last %d min", r.SpanS/60)
	case "season":
		s = fmt.Sprintf("%d s mean, highest of the last 5 min or of the same time %s ago", r.WindowS, span(r.PeriodS))
	default:
		s = fmt.Sprintf("%d s mean, highest of the last %s", r.WindowS, span(r.HoldS))
	}
	if r.Margin != 0 {
		s += fmt.Sprintf(", %+.0f %%", 100*r.Margin)
	}
	if r.Floor > 0 {
		s += fmt.Sprintf(", never under %d", r.Floor)
	}
	return s
}

func span(seconds int) string {
	switch {
	case seconds%86400 == 0:
		return fmt.Sprintf("%d d", seconds/86400)
	case seconds%3600 == 0:
		return fmt.Sprintf("%d h", seconds/3600)
	case seconds%60 == 0:
		return fmt.Sprintf("%d min", seconds/60)
	}
	return fmt.Sprintf("%d s", seconds)
}

// Signal is one reading with what it would ask for by itself.
type Signal struct {
	Name    string   `json:"name"`
	Value   *float64 `json:"value"` // null: unknown
	Unit    string   `json:"unit"`
	Target  float64  `json:"target,omitempty"`
	Ratio   float64  `json:"ratio,omitempty"`
	Desired int      `json:"desired,omitempty"`
	AgeMS   float64  `json:"age_ms,omitempty"`
	Note    string   `json:"note,omitempty"`
}

// Condition is something that is the case and should be seen.
type Condition struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Since   Moment `json:"since"`
}

// Recommendation is what the scaler would have, and how it came to it.
type Recommendation struct {
	Pool string `json:"pool"`
	Time Moment `json:"time"`

	// NoOpinion says that nothing is known to decide by; Final is then what is
	// there, and nobody may act on it.
	NoOpinion bool   `json:"no_opinion"`
	Reason    string `json:"reason,omitempty"`

	Current  int       `json:"current"` // wanted at present, draining ones excluded
	Ready    int       `json:"ready"`
	Draining int       `json:"draining"`
	Pending  []Pending `json:"pending"`

	Offered    float64 `json:"offered"`     // units, mean of the last minute
	PerReplica float64 `json:"per_replica"` // units that one of the present replicas carries
	StartP50S  float64 `json:"start_p50_s"` // learned start-up time
	StartP90S  float64 `json:"start_p90_s"` //
	// Starts are the learned start-up times in seconds, oldest first.
	Starts      []float64 `json:"-"`
	CapacityFit float64   `json:"capacity_fit"`  // what outcomes say of the believed capacity; 1: as believed
	Attainment  float64   `json:"attainment"`    // aimed at
	Unit        string    `json:"unit"`          // of work
	KnownForS   float64   `json:"known_for_s"`   // how long this traffic has been seen
	Reversals   int       `json:"reversals_1h"`  // of the recommendation in the last hour
	HeldN       int       `json:"held"`          // requests that the router holds
	HeldS       float64   `json:"held_oldest_s"` // how long the oldest held request has waited

	Raw         int          `json:"raw"`
	Constraints []Constraint `json:"constraints"`
	Final       int          `json:"final"`
	Binding     string       `json:"binding"` // the last constraint that changed the number; "rule" where none did

	Chosen  *Rule `json:"rule,omitempty"`
	Cheaper *Rule `json:"next_cheaper,omitempty"` // the best of those that keep fewer at present
	// WhyNot is what rules Cheaper out.
	WhyNot string `json:"why_not,omitempty"`

	Signals    []Signal    `json:"signals"`
	Conditions []Condition `json:"conditions"`
	Victims    []string    `json:"victims,omitempty"` // in the order in which they would go

	Next     Moment `json:"next_evaluation"`
	Sentence string `json:"sentence"`
}

// Coming is how many pending replicas are believed to come.
func (r *Recommendation) Coming() int {
	n := 0
	for _, p := range r.Pending {
		if p.Expected != 0 {
			n++
		}
	}
	return n
}
