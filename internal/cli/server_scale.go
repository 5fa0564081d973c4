// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/coldstart"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/observe"
	"github.com/penstock-project/penstock/internal/procs"
	"github.com/penstock-project/penstock/internal/scale"
)

// scaleJournal is the file of evaluations in the journal's directory, and scaleBytes
// its bound; twice that is kept.
const (
	scaleJournal = "scale.jsonl"
	scaleBytes   = 64 << 20
)

// openScale gives every pool its scaler loop, with the hand that moves its replicas.
func (s *server) openScale() error {
	if dir := s.o.Config.Journal.Dir; dir != "" {
		var err error
		if s.scaleLog, err = journal.OpenLines(dir, scaleJournal, scaleBytes); err != nil {
			return failf("name another directory with --journal-dir, or none", "journal of the scaler: %v", err)
		}
	}
	s.accelerators = flow.NewAccelerators(s.o.Config.Accelerators.Total)
	for i, lp := range s.pools {
		sc, err := s.newScaler(i, lp)
		if err != nil {
			return err
		}
		lp.scaler = sc
		s.background = append(s.background, sc.Run)
		if lp.procs != nil {
			s.background = append(s.background, lp.procs.Run)
		}
	}
	s.reg.MustRegister(&scaleCollector{s: s, descs: scaleDescs()})
	return nil
}

func (s *server) newScaler(i int, lp *livePool) (*flow.Scaler, error) {
	profile, err := poolProfile(&lp.cfg)
	if err != nil {
		return nil, err
	}
	o := flow.ScalerOptions{
		Pool: lp.name, Flow: lp.flow, Profile: profile, Models: append(modelNames(&lp.cfg), adapterNames(&lp.cfg)...),
		SLO:    engine.SLO{TTFT: lp.cfg.SLO.TTFT.Seconds(), ITL: lp.cfg.SLO.ITL.Seconds()},
		Policy: scalePolicy(&lp.cfg, &profile), Mode: s.scaleMode(s.o.Config, i, lp), Hold: holdOf(&lp.cfg), Clock: s.clock, Log: s.log,
		Tick: s.scaleTick, Accelerators: s.accelerators,
	}
	if t := s.o.ScaleTuning; t != nil {
		o.Policy.Tuning, o.Period = t, s.o.ScalePeriod
	}
	if lp.procs != nil {
		o.Hand = lp.procs
	} else if h := s.cluster.Hand(lp.name); h != nil {
		o.Hand = h
		o.Policy.Starts = s.cluster.starts(lp.name)
	}
	s.keepOverride(&o)
	return flow.NewScaler(o), nil
}

// scaleMode is what a pool's loop may do: processes are Penstock's own, so that it
// acts on them at once unless the file says otherwise; others it only recommends for
// until it is told to act.
func (s *server) scaleMode(c *config.Config, i int, lp *livePool) string {
	if lp.procs != nil && !c.IsSet(fmt.Sprintf("pools[%d].scale.mode", i)) {
		return flow.ModeAct
	}
	return lp.cfg.Scale.Mode
}

// scalePolicy turns the keys of a pool into the scaler's policy.
func scalePolicy(p *config.Pool, profile *engine.Profile) scale.Policy {
	c := &p.Scale
	o := scale.Policy{
		Min: c.Min, Max: c.Max, Attainment: float64(c.Attainment), StartUp: c.StartUp.Seconds(), StepUp: c.StepUp, StepDown: c.StepDown,
		StartsPerMinute: float64(c.StartsPerMinute), Reversals: c.Reversals, IdleAfter: c.IdleAfter.Seconds(), ClientTimeout: c.ClientTimeout.Seconds(),
	}
	o.Accelerators, o.AcceleratorsPerReplica, o.Priority = c.Accelerators, max(1, profile.TensorParallel), c.Priority
	for i := range c.Floors {
		from, to, days := c.Floors[i].Span()
		o.Floors = append(o.Floors, scale.Floor{From: from, To: to, Days: days, Min: c.Floors[i].Min})
	}
	if len(o.Floors) > 0 {
		o.Zone = c.Location()
	}
	if o.Reversals == 0 {
		o.Reversals = -1
	}
	if o.StartUp == 0 {
		o.StartUp = profile.StartupSeconds()
	}
	if len(p.Replicas.Process.Command) > 0 {
		o.Max = min(o.Max, p.Replicas.Process.Max)
	}
	return o
}

func holdOf(p *config.Pool) dispatch.Hold {
	return dispatch.Hold{For: p.Route.HoldFor, Most: p.Route.HoldMax}
}

// scaleTick keeps an evaluation.
func (s *server) scaleTick(t *flow.ScaleTick) {
	if s.scaleLog == nil {
		return
	}
	if _, err := s.scaleLog.Write(t); err != nil && !s.scaleBroken.Swap(true) {
		s.log.Error("evaluations of the scaler are not written", "error", err)
	}
}

// reloadScale applies the live keys of the scaler; s.mu is held.
func (s *server) reloadScale(next *config.Config, lp *livePool) {
	i := slices.IndexFunc(next.Pools, func(p config.Pool) bool { return p.Name == lp.name })
	if i < 0 {
		return // that it is gone from the file waits for a restart
	}
	profile, err := poolProfile(&lp.cfg)
	if err != nil {
		return // it was good when the pool was made
	}
	p := scalePolicy(&lp.cfg, &profile)
	p.Tuning = s.o.ScaleTuning
	lp.scaler.SetPolicy(p, s.scaleMode(next, i, lp), holdOf(&lp.cfg))
}

// liveScale takes the keys of the next configuration that may change while it runs.
func liveScale(old, next config.Scale) config.Scale {
	next.Hand, next.Target, next.Wake, next.DrainFor, next.SleepFor = old.Hand, old.Target, old.Wake, old.DrainFor, old.SleepFor
	return next
}

// processSource makes the processes of a pool and where they are found.
func (s *server) processSource(p *config.Pool, lp *livePool) (observe.Source, error) {
	if lp.procs != nil {
		return lp.procs.Source(), nil // the command of a running pool waits for a restart
	}
	dir := ""
	if d := s.o.Config.StateDir; d != "" {
		dir = filepath.Join(d, "processes", p.Name)
	}
	pool, err := procs.New(procs.Options{
		Pool: p.Name, Command: p.Replicas.Process.Command, Model: p.Models[0].Name, Max: p.Replicas.Process.Max, Dir: dir, Keep: p.Replicas.Process.Keep,
		DrainLimit: p.Scale.DrainFor, StopGrace: p.Replicas.Process.StopGrace, Sleep: p.Scale.SleepFor,
		Seen: lp.seen, Analyse: analyseStart, Clock: s.clock, Log: s.log,
	})
	if err != nil {
		return nil, failf("", "pool %s: %v", p.Name, err)
	}
	lp.procs = pool
	return pool.Source(), nil
}

// seen tells the process pool what is known of a replica: its phase, and its requests
// by our count and by its own, whichever is more.
func (p *livePool) seen(id string) (procs.Seen, bool) {
	snap := p.observer.Snapshot()
	if snap == nil {
		return procs.Seen{}, false
	}
	i, ok := slices.BinarySearchFunc(snap.Endpoints, id, func(e fleet.EndpointState, id string) int {
		switch {
		case e.ID < id:
			return -1
		case e.ID > id:
			return 1
		}
		return 0
	})
	if !ok {
		return procs.Seen{}, false
	}
	e := &snap.Endpoints[i]
	out := procs.Seen{Phase: e.Phase, Since: e.Since, At: snap.At}
	if n := e.Running.Or(0) + e.Waiting.Or(0); snap.At.Sub(e.ScrapedAt) < 5*time.Second {
		out.InFlight = int(n)
	}
	st := p.flow.Stats()
	for k := range st.Endpoints {
		if l := &st.Endpoints[k]; l.Endpoint == id {
			out.InFlight = max(out.InFlight, l.InFlight+l.PeerInFlight)
		}
	}
	return out, true
}

// analyseStart reads where a start is from its log, and why it failed.
func analyseStart(log []byte) procs.Start {
	rep := coldstart.Analyse(coldstart.Input{Logs: []coldstart.Log{{Name: "log", Text: string(log)}}})
	out := procs.Start{Phase: fleet.PhaseLoading}
	for i := range rep.Stages {
		st := &rep.Stages[i]
		switch st.Name {
		case "compile", "graph_capture", "capture", "warmup", "warm-up":
			out.Phase = fleet.PhaseWarming
		}
		if st.In == "" && st.Name != "unexplained" {
			out.Stage = st.Name
		}
	}
	for i := range rep.Findings {
		if f := &rep.Findings[i]; f.Severity == diagnose.Error {
			out.Fault = f.Message + "; " + f.Remedy
			break
		}
	}
	return out
}

// scalerOf finds the loop of a pool.
func (s *server) scalerOf(pool string) *flow.Scaler {
	if p := s.pool(pool); p != nil {
		return p.scaler
	}
	return nil
}

// scalers lists the loops in the order of the configuration.
func (s *server) scalers() []*flow.Scaler {
	var out []*flow.Scaler
	for _, p := range s.pools {
		if p.scaler != nil {
			out = append(out, p.scaler)
		}
	}
	return out
}

// Scales implements console.Scaling.
func (s *server) Scales() []*flow.ScaleRecord {
	var out []*flow.ScaleRecord
	for _, sc := range s.scalers() {
		if r := sc.Last(); r != nil {
			out = append(out, r)
		}
	}
	return out
}

// ScaleHistory implements console.Scaling.
func (s *server) ScaleHistory(pool string, limit int) ([]*flow.ScaleRecord, bool) {
	sc := s.scalerOf(pool)
	if sc == nil {
		return nil, false
	}
	return sc.History(limit), true
}

// ScaleAsk implements console.Scaling.
func (s *server) ScaleAsk(pool string, t flow.ScaleTargets) (flow.ScaleAsk, bool) {
	sc := s.scalerOf(pool)
	if sc == nil {
		return flow.ScaleAsk{}, false
	}
	return sc.Ask(t.Apply), true
}

// ScaleAct implements console.Scaling.
func (s *server) ScaleAct(pool, what string, n int) (bool, error) {
	sc := s.scalerOf(pool)
	if sc == nil {
		return false, nil
	}
	switch what {
	case "pause":
		sc.Pause()
	case "pin":
		if err := sc.Pin(n); err != nil {
			return true, err
		}
	case "resume":
		s.cluster.claim(pool)
		sc.Resume()
	}
	s.log.Info("scaling", "pool", pool, "act", what, "replicas", n)
	for deadline := time.Now().Add(5 * time.Second); !sc.Heeded() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond) // the answer shows what came of it
	}
	return true, nil
}

// desired implements console.Options.Desired.
func (s *server) desired(pool string) (int, bool) {
	sc := s.scalerOf(pool)
	if sc == nil {
		return 0, false
	}
	r := sc.Last()
	if r == nil || r.Desired == nil {
		return 0, false
	}
	return *r.Desired, true
}

// wakes reports whether a pool without a replica brings one about when a request
// comes: it is as good as ready. Another Penstock that leads does so where it hears
// what this one holds.
func (s *server) wakes(p *livePool) bool {
	if p.scaler == nil {
		return false
	}
	leader, ok := p.scaler.Wakes()
	return ok && (leader == "" || s.hears(leader))
}
