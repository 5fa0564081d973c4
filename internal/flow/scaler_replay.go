// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/scale"
)

// ScaleTickSchema names the form of a ScaleTick.
const ScaleTickSchema = "penstock/scale-tick/v1"

// ScaleTick is one evaluation with all that went into it, so that it can be played
// again: the ticks of a pool from a first one with a policy and a capacity on give the
// same recommendations, byte for byte.
type ScaleTick struct {
	Schema   string         `json:"schema"`
	Pool     string         `json:"pool"`
	Time     fleet.Time     `json:"at_ns"`
	Policy   *scale.Policy  `json:"policy,omitempty"`   // where it is the first or changed
	Zone     string         `json:"zone,omitempty"`     // of the policy's floors; "": UTC
	Capacity []float64      `json:"capacity,omitempty"` // likewise
	Offers   []Offer        `json:"offers,omitempty"`
	Wanted   int            `json:"wanted"`
	Replicas []ReplicaPhase `json:"replicas"`
	Events   []string       `json:"events,omitempty"`
	Gateway  scale.Gateway  `json:"gateway"`
	Load     []scale.Load   `json:"load,omitempty"`
	// NoOpinion is why nothing was known to decide by.
	NoOpinion string `json:"no_opinion,omitempty"`

	Recommendation *scale.Recommendation `json:"recommendation"`
	Desired        *int                  `json:"desired"`
	Applied        *ScaleApplied         `json:"applied,omitempty"`
}

// ReplicaPhase is a replica as the scaler sees it.
type ReplicaPhase struct {
	ID     string      `json:"id"`
	Phase  fleet.Phase `json:"phase"`
	Since  fleet.Time  `json:"since_ns,omitempty"`
	Reason string      `json:"reason,omitempty"`
}

// play feeds the tick to a scaler, which it makes where there is none, and returns
// the recommendation.
func (t *ScaleTick) play(s **scale.Scaler) *scale.Recommendation {
	if *s == nil {
		p := scale.Policy{}
		if t.Policy != nil {
			p = *t.Policy
		}
		p.Capacity = t.Capacity
		*s = scale.New(p)
	} else {
		if t.Policy != nil {
			(*s).SetPolicy(*t.Policy)
		}
		if t.Capacity != nil {
			(*s).SetCapacity(t.Capacity)
		}
	}
	for _, o := range t.Offers {
		(*s).Offer(o.At, o.Work)
	}
	snap := &fleet.Snapshot{Pool: t.Pool, At: t.Time}
	for _, r := range t.Replicas {
		snap.Endpoints = append(snap.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{ID: r.ID, Phase: r.Phase, Since: r.Since, Reason: r.Reason, Rank: -1}})
	}
	(*s).Observe(t.Time, scale.Observation{Snapshot: snap, Wanted: t.Wanted, Events: t.Events, Gateway: t.Gateway, Load: t.Load, NoOpinion: t.NoOpinion})
	r := (*s).Recommend(t.Time)
	return clone(&r)
}

// clone copies the slices that the next evaluation reuses.
func clone(r *scale.Recommendation) *scale.Recommendation {
	c := *r
	c.Pending = append([]scale.Pending{}, r.Pending...)
	c.Constraints = append([]scale.Constraint{}, r.Constraints...)
	c.Signals = append([]scale.Signal{}, r.Signals...)
	c.Conditions = append([]scale.Condition{}, r.Conditions...)
	c.Victims = append([]string{}, r.Victims...)
	return &c
}

// ScaleReplay is the result of playing ticks again.
type ScaleReplay struct {
	Pool      string            `json:"pool"`
	Ticks     int               `json:"ticks"`
	Skipped   int               `json:"skipped"` // before the first that can be played
	Different int               `json:"different"`
	First     *ScaleReplayError `json:"first_difference,omitempty"`
}

// ScaleReplayError is a recommendation that came out otherwise.
type ScaleReplayError struct {
	At    scale.Moment `json:"at"`
	Then  int          `json:"then"`
	Now   int          `json:"now"`
	ThenS string       `json:"then_sentence"`
	NowS  string       `json:"now_sentence"`
}

// playable reports whether a scaler can play the tick: from a first one with a policy
// and a capacity on. Where another process of Penstock wrote this one than those before,
// the scaler is forgotten.
func (t *ScaleTick) playable(s **scale.Scaler) bool {
	if t.Policy == nil || t.Capacity == nil {
		return *s != nil
	}
	if t.Recommendation.KnownForS < 60 {
		*s = nil
	}
	return true
}

// ReplayScale plays the ticks of a journal again, pool by pool in the order in which
// they appear, and compares the recommendations.
func ReplayScale(r io.Reader) ([]ScaleReplay, error) {
	type pool struct {
		s   *scale.Scaler
		out ScaleReplay
	}
	byName := map[string]*pool{}
	var order []*pool
	err := eachTick(r, func(t *ScaleTick) {
		p := byName[t.Pool]
		if p == nil {
			p = &pool{out: ScaleReplay{Pool: t.Pool}}
			byName[t.Pool] = p
			order = append(order, p)
		}
		if !t.playable(&p.s) {
			p.out.Skipped++
			return
		}
		p.out.Ticks++
		p.out.compare(t, t.play(&p.s))
	})
	if err != nil {
		return nil, err
	}
	var out []ScaleReplay
	for _, p := range order {
		out = append(out, p.out)
	}
	return out, nil
}

// eachTick calls f for each tick of a journal. A last line that is cut is left out: it was
// being written.
func eachTick(r io.Reader, f func(*ScaleTick)) error {
	in := bufio.NewReaderSize(r, 1<<20)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var t ScaleTick
			if jerr := json.Unmarshal(line, &t); jerr != nil {
				if err == io.EOF {
					return nil
				}
				return fmt.Errorf("line %d: %w", n, jerr)
			}
			if t.Schema != ScaleTickSchema || t.Recommendation == nil {
				return fmt.Errorf("line %d: not a record of %s", n, ScaleTickSchema)
			}
			if t.Policy != nil && t.Zone != "" {
				zone, zerr := time.LoadLocation(t.Zone)
				if zerr != nil {
					return fmt.Errorf("line %d: %w", n, zerr)
				}
				t.Policy.Zone = zone
			}
			f(&t)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *ScaleReplay) compare(t *ScaleTick, now *scale.Recommendation) {
	a, err1 := json.Marshal(t.Recommendation)
	b, err2 := json.Marshal(now)
	if err1 == nil && err2 == nil && bytes.Equal(a, b) {
		return
	}
	r.Different++
	if r.First == nil {
		r.First = &ScaleReplayError{At: scale.Moment(t.Time), Then: t.Recommendation.Final, Now: now.Final, ThenS: t.Recommendation.Sentence, NowS: now.Sentence}
	}
}
