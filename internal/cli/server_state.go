// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/wholefile"
)

const (
	// saveEvery is the time between two snapshots of an index while it is small enough:
	// saving holds the pool's lock, and one that took longer than savePause is left to
	// the end of the process.
	saveEvery = time.Minute
	savePause = 10 * time.Millisecond
	// warmFor is how long a new process waits for replicas that its snapshot knows.
	warmFor = time.Minute
)

// keeper saves the prefix index of one pool and loads it again.
type keeper struct {
	file  string // "": it is not on disk
	check uint64

	mu    sync.Mutex
	data  []byte // what the last process or another router knew, until all of it is loaded
	until time.Time
	known string // replicas that it was loaded for
	slow  bool   // too large to be saved while requests run
}

// keepIndex makes the keeper of a pool; nil where nothing is to be kept and no other
// router could be asked.
func (s *server) keepIndex(lp *livePool) error {
	k := &keeper{check: xxh3.HashSeed([]byte("index"), s.hashKey), until: time.Now().Add(warmFor)}
	if dir := s.o.Config.StateDir; dir != "" {
		if err := s.keepOnDisk(lp, k, dir); err != nil {
			return err
		}
	}
	if s.exchange != nil {
		s.exchange.Give(lp.name, k.check)
		if len(k.data) == 0 {
			s.exchange.Want(lp.name, func(data []byte) error { return s.takeIndex(lp, k, data) })
		}
	}
	if k.file != "" || s.exchange != nil {
		lp.keeper = k
	}
	return nil
}

// takeIndex loads what another router knows.
func (s *server) takeIndex(lp *livePool, k *keeper, data []byte) error {
	if err := lp.flow.CheckIndex(data, k.check); err != nil {
		return err
	}
	k.mu.Lock()
	k.data, k.known, k.until = data, "", time.Now().Add(warmFor)
	k.mu.Unlock()
	if snap := lp.flow.Snapshot(); snap != nil {
		s.warm(lp, snap)
	}
	return nil
}

// keepOnDisk reads what the last process saved, and saves from time to time.
func (s *server) keepOnDisk(lp *livePool, k *keeper, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return failf("name another directory with --state-dir, or none", "%v", err)
	}
	k.file = filepath.Join(dir, "index-"+lp.name+".bin")
	var err error
	if k.data, err = os.ReadFile(k.file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failf("", "%v", err)
	}
	if len(k.data) > 0 {
		if err := lp.flow.CheckIndex(k.data, k.check); err != nil {
			s.log.Warn("the saved prefix index is of no use", "pool", lp.name, "file", k.file, "error", err)
			k.data = nil
		}
	}
	s.background = append(s.background, func(ctx context.Context) {
		t := time.NewTicker(saveEvery)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				s.saveIndex(lp, k) // its requests have ended
				return
			case <-t.C:
				if k.mu.Lock(); !k.slow {
					k.mu.Unlock()
					s.saveIndex(lp, k)
				} else {
					k.mu.Unlock()
				}
			}
		}
	})
	return nil
}

// saveIndex writes the index of a pool beside the old file and then in its place.
func (s *server) saveIndex(lp *livePool, k *keeper) {
	start := time.Now()
	data := lp.flow.SaveIndex(nil, k.check)
	took := time.Since(start)
	k.mu.Lock()
	k.slow = took > savePause
	waiting := len(k.data) > 0
	k.mu.Unlock()
	if len(data) == 0 || waiting && len(data) < 256 {
		return // nothing is known yet: what the last process knew is worth more
	}
	if err := wholefile.Write(k.file, data, 0o600); err != nil {
		s.log.Warn("the prefix index was not saved", "pool", lp.name, "error", err)
		return
	}
	s.log.Debug("prefix index saved", "pool", lp.name, "bytes", len(data), "held_lock", took.String())
}

// warm loads what the last process or another router knew for the replicas of a snapshot whose process
// is known. It is called with each snapshot and does nothing once all is loaded.
func (s *server) warm(lp *livePool, snap *fleet.Snapshot) {
	k := lp.keeper
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.data) == 0 {
		return
	}
	var names []string
	for i := range snap.Endpoints {
		if e := &snap.Endpoints[i]; e.ScrapedAt != 0 && e.Phase == fleet.PhaseReady {
			names = append(names, fmt.Sprintf("%s@%.0f", e.ID, e.StartTime.Or(0)))
		}
	}
	known := strings.Join(names, " ")
	if known != k.known {
		k.known = known
		if err := lp.flow.Warm(k.data, k.check); err != nil {
			s.log.Warn("the prefix index of before is of no use", "pool", lp.name, "error", err)
			k.data = nil
			return
		}
		s.log.Info("prefix index loaded", "pool", lp.name, "bytes", len(k.data), "replicas", len(names))
	}
	if time.Now().After(k.until) || len(names) == len(snap.Endpoints) {
		k.data = nil
	}
}
