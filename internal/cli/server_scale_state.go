// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/wholefile"
)

// overrideSchema names the form of overrideFile.
const overrideSchema = "penstock/scale-override/v1"

// overrideFile is what an operator asked of the scaler of a pool, as the next process
// finds it.
type overrideFile struct {
	Schema string `json:"schema"`
	Pool   string `json:"pool"`
	flow.Override
}

// keepOverride makes a pause or a pin of a pool outlast the process, where there is a
// directory for that. A file that cannot be read is no reason not to serve: the pool
// is scaled as the configuration says.
func (s *server) keepOverride(o *flow.ScalerOptions) {
	dir := s.o.Config.StateDir
	if dir == "" {
		return
	}
	pool, file := o.Pool, filepath.Join(dir, "scale-"+o.Pool+".json")
	o.Keep = func(v flow.Override) error { return saveOverride(file, pool, v) }
	v, err := loadOverride(file, pool)
	if err != nil {
		s.log.Error("what was asked of the scaler before is not known; it scales as the configuration says", "pool", pool, "file", file, "error", err)
		return
	}
	if o.Override = v; v.Paused || v.Pinned != nil {
		s.log.Info("the scaler goes on as it was asked before", "pool", pool, "paused", v.Paused, "pinned", v.Pinned != nil)
	}
}

func loadOverride(file, pool string) (flow.Override, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return flow.Override{}, nil
	}
	var f overrideFile
	if err == nil {
		err = json.Unmarshal(b, &f)
	}
	switch {
	case err != nil:
		return flow.Override{}, err
	case f.Schema != overrideSchema || f.Pool != pool:
		return flow.Override{}, fmt.Errorf("it is not of the form %s, of the pool %s", overrideSchema, pool)
	case f.Pinned != nil && *f.Pinned < 0:
		return flow.Override{}, fmt.Errorf("%d is not a number of replicas", *f.Pinned)
	}
	f.Kept = true
	return f.Override, nil
}

// saveOverride replaces the file, or removes it where nothing is asked for.
func saveOverride(file, pool string, v flow.Override) error {
	if !v.Paused && v.Pinned == nil {
		if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(overrideFile{Schema: overrideSchema, Pool: pool, Override: v})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return wholefile.Write(file, append(b, '\n'), 0o600)
}

// lasts says how long a pause or a pin holds.
func lasts(r *flow.ScaleRecord) string {
	for _, c := range r.Conditions {
		if c.Code == "NotKept" {
			return "until resume or until Penstock ends: " + c.Message
		}
	}
	switch {
	case r.Override == nil: // the record is older than what was asked
		return "until resume"
	case r.Override.Kept:
		return "until resume, over a restart too"
	}
	return "until resume or until Penstock ends: without stateDir nothing is kept"
}
