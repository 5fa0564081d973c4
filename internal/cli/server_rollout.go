// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/gateway"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/wholefile"
)

// rolloutFile keeps where the rollouts are, in the directory of the journal: a
// restart must not bring back a canary that was rolled back.
const rolloutFile = "rollouts.json"

// rolloutMemory is the content of that file.
type rolloutMemory struct {
	mu   sync.Mutex
	path string // "": nothing is kept

	Schema   string                    `json:"schema"`
	Rollouts map[string]rolloutAtState `json:"rollouts"`
}

type rolloutAtState struct {
	Canary string  `json:"canary"` // pool/model: another canary starts anew
	State  string  `json:"state"`
	Weight float64 `json:"weight"`
}

const rolloutFileSchema = "penstock/rollout-state/v1"

func loadRolloutMemory(dir string) (*rolloutMemory, error) {
	m := &rolloutMemory{Schema: rolloutFileSchema, Rollouts: map[string]rolloutAtState{}}
	if dir == "" {
		return m, nil
	}
	m.path = filepath.Join(dir, rolloutFile)
	b, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, m)
	}
	if err == nil && m.Schema != rolloutFileSchema {
		err = errors.New("its schema is not " + rolloutFileSchema)
	}
	if err != nil {
		return nil, failf("remove it to start all rollouts anew", "%s: %v", m.path, err)
	}
	return m, nil
}

func (m *rolloutMemory) save(st *gateway.RolloutState) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Rollouts[st.Spec.Name] = rolloutAtState{Canary: armID(st.Arms[rollout.Canary]), State: st.State.String(), Weight: st.Weight}
	if m.path == "" {
		return nil
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return wholefile.Write(m.path, append(b, '\n'), 0o640)
}

func armID(a gateway.ArmPlace) string { return a.Pool + "/" + a.Model }

// rolloutOptions turns the rollouts of a configuration into those of the gateway.
func (m *rolloutMemory) rolloutOptions(c *config.Config) []gateway.RolloutOptions {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []gateway.RolloutOptions
	for i := range c.Rollouts {
		r := &c.Rollouts[i]
		sticky, _ := rollout.ParseSticky(r.Sticky)
		o := gateway.RolloutOptions{
			Spec: rollout.Spec{
				Name: r.Name, Model: r.Model, Sticky: sticky, Steps: r.Shares(), Every: r.Every, Auto: r.Auto,
				Guard: rollout.Guard{TTFT: r.Guard.TTFT, ITL: r.Guard.ITL, Errors: float64(r.Guard.Errors), Samples: r.Guard.Samples, Confidence: float64(r.Guard.Confidence)},
			},
			Arms:   [2]gateway.ArmPlace{{Model: r.Baseline.Model, Pool: r.Baseline.Pool}, {Model: r.Canary.Model, Pool: r.Canary.Pool}},
			Shadow: gateway.ShadowOptions{Share: float64(r.Shadow.Share), TokensPerHour: int64(r.Shadow.TokensPerHour), Concurrent: r.Shadow.Concurrent},
		}
		if at, ok := m.Rollouts[r.Name]; ok && at.Canary == armID(o.Arms[rollout.Canary]) {
			o.State, o.Resume = rollout.ParseState(at.State)
			o.Weight = at.Weight
		}
		out = append(out, o)
	}
	return out
}

// openRollouts starts the rollouts of the configuration.
func (s *server) openRollouts() error {
	var err error
	if s.rolloutMemory, err = loadRolloutMemory(s.cfg.Journal.Dir); err != nil {
		return err
	}
	all := s.front.h.Rollouts()
	all.Changed = s.rolloutChanged
	if err := all.Set(s.rolloutMemory.rolloutOptions(s.cfg)); err != nil {
		return usagef("`penstock config schema` tells what a rollout needs", "%v", err)
	}
	s.background = append(s.background, func(ctx context.Context) { all.Run(ctx) })
	return nil
}

// rolloutChanged makes a record of a step, with its evidence.
func (s *server) rolloutChanged(st *gateway.RolloutState) {
	step := &st.Steps[len(st.Steps)-1]
	who := step.By
	if who == "" {
		who = "guard"
	}
	detail := fmt.Sprintf("%s -> %s, %s: %s", config.Ratio(step.From), config.Ratio(step.To), step.State, step.Why)
	for i := range step.Evidence {
		e := &step.Evidence[i]
		detail += fmt.Sprintf("; %s %s, %d of the canary, %d of the baseline", e.Name, e.Verdict, e.N[rollout.Canary], e.N[rollout.Baseline])
	}
	s.audit.Note(journal.AuditEntry{Who: who, Action: "rollout.step", Target: st.Spec.Name, Detail: detail, OK: true})
	if err := s.rolloutMemory.save(st); err != nil {
		s.log.Error("where a rollout is cannot be kept; a restart would begin it anew", "rollout", st.Spec.Name, "error", err)
	}
}

// rollouter shows the rollouts to the admin API.
type rollouter struct{ all *gateway.Rollouts }

// Act implements console.Rollouter.
func (r rollouter) Act(name, what, by string) (bool, error) { return r.all.Act(name, what, by) }

// Rollouts implements console.Rollouter.
func (r rollouter) Rollouts() []console.Rollout {
	var out []console.Rollout
	for _, st := range r.all.States() {
		out = append(out, consoleRollout(st))
	}
	return out
}

func consoleRollout(st *gateway.RolloutState) console.Rollout {
	r := console.Rollout{
		Name: st.Spec.Name, Model: st.Spec.Model, State: st.State.String(), Weight: st.Weight, Sticky: st.Spec.Sticky.String(),
		Since: st.Since.Wall().UTC(), Auto: st.Spec.Auto, Steps: []console.RolloutStep{},
		Baseline: consoleArm(st, rollout.Baseline), Canary: consoleArm(st, rollout.Canary),
	}
	if st.Blocked && st.State == rollout.Running {
		r.State = "blocked"
	}
	if st.State <= rollout.Held {
		for _, w := range st.Spec.Steps {
			if w > st.Weight {
				r.Next = &w
				break
			}
		}
	}
	for i := range st.Steps {
		s := &st.Steps[i]
		cs := console.RolloutStep{Time: s.At.Wall().UTC(), State: s.State.String(), From: s.From, To: s.To, Why: s.Why, By: s.By, Evidence: []console.RolloutComparison{}}
		if s.Blocked && s.State == rollout.Running {
			cs.State = "blocked"
		}
		for k := range s.Evidence {
			cs.Evidence = append(cs.Evidence, comparison(&s.Evidence[k]))
		}
		r.Steps = append(r.Steps, cs)
	}
	for i := range st.Evidence {
		e := comparison(&st.Evidence[i])
		switch e.Name {
		case "ttft":
			r.Evidence.TTFT = &e
		case "itl":
			r.Evidence.ITL = &e
		case "errors":
			r.Evidence.Errors = &e
		}
	}
	if sh := st.Spec; sh.Name != "" && (st.Shadow.Sent > 0 || st.Shadow.Left > 0) {
		r.Shadow = &console.RolloutShadow{Running: st.Shadow.Running, Sent: st.Shadow.Sent, Skipped: st.Shadow.Skipped, Tokens: st.Shadow.Tokens, Left: st.Shadow.Left,
			Share: st.ShadowOptions.Share, TokensPerHour: st.ShadowOptions.TokensPerHour}
	}
	return r
}

func consoleArm(st *gateway.RolloutState, arm rollout.Arm) console.RolloutArm {
	t := st.Totals[arm]
	return console.RolloutArm{Model: st.Arms[arm].Model, Pool: st.Arms[arm].Pool, Requests: t.Requests, Failed: t.Failed, Prompt: t.Prompt, Output: t.Output}
}

func comparison(e *rollout.Evidence) console.RolloutComparison {
	c := console.RolloutComparison{
		Name: e.Name, Unit: "s", Baseline: rollout.Number(e.Baseline), Canary: rollout.Number(e.Canary),
		N: e.N[rollout.Canary], NBase: e.N[rollout.Baseline], Low: rollout.Number(e.Low), High: rollout.Number(e.High), Margin: e.Margin, Verdict: e.Verdict.String(),
	}
	if e.Name == "errors" {
		c.Unit = "share"
	} else if e.Low == 0 {
		c.Low = nil // nothing can be said yet
	}
	return c
}
