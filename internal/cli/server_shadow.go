// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
)

// keepPool gives a pool what outlives a decision: the tape of its events, its shadow
// policy and the keeper of its index. The dispatch was made with o and is fresh.
func (s *server) keepPool(lp *livePool, o *dispatch.Options, seed uint64) error {
	if err := s.openTape(lp, o, seed); err != nil {
		return err
	}
	if name := lp.cfg.Route.Shadow; name != "" {
		if err := lp.flow.SetShadow(name); err != nil {
			return usagef("", "pool %s: route.shadow: %v", lp.name, err)
		}
	}
	return s.keepIndex(lp)
}

// openTape starts the tape of a pool where journal.events asks for it.
func (s *server) openTape(lp *livePool, o *dispatch.Options, seed uint64) error {
	j := &s.o.Config.Journal
	if !j.Events {
		return nil
	}
	if j.Dir == "" {
		return usagef("name a directory in journal.dir or with --journal-dir", "journal.events needs a directory")
	}
	if err := os.MkdirAll(j.Dir, 0o700); err != nil {
		return failf("", "%v", err)
	}
	pruneTapes(j.Dir, j.MaxAge)
	now := s.clock()
	file := filepath.Join(j.Dir, fmt.Sprintf("events-%s-%s-%s%s", now.Wall().UTC().Format("20060102T150405.000"), s.router, lp.name, journal.TapeSuffix))
	t, err := journal.NewTape(file, int64(j.MaxBytes), journal.TapeHeader{
		Version: buildVersion().Version, Router: s.router, Pool: lp.name, Started: now, Policy: o.Policy.Name(), Seed: seed,
		Profile: o.Profile, Fixed: o.Fixed, Queue: o.Queue, MaxHold: o.MaxHold, HoldMost: o.HoldMost, HoldFor: o.HoldFor, Share: o.Share,
		Events: o.Events, Index: o.IndexBytes, Block: o.BlockBytes, Weights: o.Weights,
	})
	if err != nil {
		return failf("", "journal.events: %v", err)
	}
	lp.flow.SetTape(t)
	s.background = append(s.background, func(ctx context.Context) { s.followTape(ctx, lp, t) })
	return nil
}

// followTape says so when a tape ends before the server does, and closes it.
func (s *server) followTape(ctx context.Context, lp *livePool, t *journal.Tape) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	said := false
	for {
		select {
		case <-ctx.Done():
			if err := t.Close(); err != nil {
				s.log.Warn("the tape of events", "pool", lp.name, "error", err)
			}
			return
		case <-tick.C:
			if n, why := t.Stats(); why != "" && !said {
				said = true
				s.log.Warn("the tape of events ends here", "pool", lp.name, "bytes", n, "reason", why)
			}
		}
	}
}

// pruneTapes deletes the tapes of earlier processes that are too old.
func pruneTapes(dir string, maxAge time.Duration) {
	files, err := filepath.Glob(filepath.Join(dir, "events-*"+journal.TapeSuffix))
	if err != nil {
		return
	}
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && fleet.At(time.Now()).Sub(fleet.At(st.ModTime())) > maxAge {
			os.Remove(f)
		}
	}
}
