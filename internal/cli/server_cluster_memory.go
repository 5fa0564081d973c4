// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"time"

	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/scale"
)

// What one process learned about a pool is kept beside the lease, so that a restart or
// another leader does not begin with a belief.

// starts are the start-up times in seconds that were learned of a pool before, oldest
// first; none where nothing is remembered.
func (c *clusterScaling) starts(pool string) []float64 {
	if c.Hand(pool) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	m, err := c.lead.Recall(ctx, pool)
	if err != nil || len(m.Starts) == 0 {
		return nil
	}
	c.s.log.Info("start-up times are remembered", "pool", pool, "seconds", m.Starts)
	return m.Starts
}

// remember keeps what the loops learned, as the leader, until ctx ends.
func (c *clusterScaling) remember(ctx context.Context) {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if _, leads := c.lead.Leads(); !leads {
			continue
		}
		for pool := range c.hands {
			r := c.last(pool)
			if r == nil || len(r.Starts) == 0 {
				continue
			}
			err := c.lead.Remember(ctx, pool, func(m *kube.Memory) { m.Starts = r.Starts })
			if err != nil {
				c.s.log.Debug("what was learned is not kept", "pool", pool, "error", err.Error())
			}
		}
	}
}

// last is the newest record of a pool's loop; nil where there is none.
func (c *clusterScaling) last(pool string) *flow.ScaleRecord {
	if sc := c.s.scalerOf(pool); sc != nil {
		return sc.Last()
	}
	return nil
}

// told is when a record was made, for readings that come from it; the zero time where
// the loop had no opinion.
func told(r *flow.ScaleRecord) time.Time {
	if r == nil || r.NoOpinion != "" || r.Time == scale.Moment(0) {
		return time.Time{}
	}
	return time.Unix(0, int64(r.Time))
}

// claimer is a hand that stopped because somebody else moved its object.
type claimer interface {
	Claim(ctx context.Context) error
}

// claim takes the object of a pool back, as an operator asked.
func (c *clusterScaling) claim(pool string) {
	h, ok := c.Hand(pool).(claimer)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := h.Claim(ctx); err != nil {
		c.s.log.Warn("the object is not taken back", "pool", pool, "error", err.Error())
	}
}
