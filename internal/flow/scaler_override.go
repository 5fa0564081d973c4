// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/scale"
)

// Override is what an operator asked of a loop, against what it would do by itself. The
// zero value is nothing.
type Override struct {
	Paused bool `json:"paused"`
	Pinned *int `json:"pinned,omitempty"` // replicas
	// Since is when it was asked for.
	Since scale.Moment `json:"since"`
	// Kept is whether it outlasts this process.
	Kept bool `json:"kept"`
}

// Pause stops acting until Resume; recommendations go on.
func (s *Scaler) Pause() { s.hand(func(o *Override) { o.Paused = true }) }

// Pin holds the pool at n replicas until Resume, within the bounds of its policy.
func (s *Scaler) Pin(n int) error {
	s.mu.Lock()
	most, by := s.policy.EffectiveMax()
	s.mu.Unlock()
	if n < 0 || most >= 0 && n > most {
		return fmt.Errorf("%d replicas are outside of 0 to %d (%s)", n, most, by)
	}
	s.hand(func(o *Override) { o.Paused, o.Pinned = false, &n })
	return nil
}

// Resume ends a pause and a pin.
func (s *Scaler) Resume() { s.hand(func(o *Override) { *o = Override{} }) }

// hand changes what the operator asked for and has it kept. A pause in a process that
// cannot keep it holds all the same: the record says how long.
func (s *Scaler) hand(change func(*Override)) {
	s.keeping.Lock() // what is kept is what was asked for last
	defer s.keeping.Unlock()
	s.mu.Lock()
	o := s.override
	s.mu.Unlock()
	change(&o)
	if o.Paused || o.Pinned != nil {
		o.Since = scale.Moment(s.o.Clock())
	}
	lost := ""
	o.Kept = s.o.Keep != nil
	if s.o.Keep != nil {
		if err := s.o.Keep(o); err != nil {
			lost, o.Kept = err.Error(), false
			s.log.Error("what was asked of the scaler is not kept over a restart", "error", err)
		}
	}
	s.set(func() { s.override, s.lost, s.acts = o, lost, s.acts+1 })
}

// override says what the operator asked for.
func (x *ScaleRecord) override(o *Override, lost string) {
	x.Paused, x.Pinned = o.Paused, o.Pinned
	if o.Paused || o.Pinned != nil {
		x.Override = o
	}
	if lost != "" {
		x.Conditions = append(x.Conditions, scale.Condition{Code: "NotKept", Since: x.Time,
			Message: "a restart does not know what was asked of the scaler last: " + lost})
	}
}
