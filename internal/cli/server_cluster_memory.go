// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/kube"
	"github.com/penstock-project/penstock/internal/scale"
)

// What one process learned about a pool is kept beside the lease, so that a restart or
// another leader does not begin with a belief.

// startUp is the start-up time in seconds that was learned for a pool before; believed
// where nothing is remembered.
func (c *clusterScaling) startUp(pool string, believed float64) float64 {
	if c.Hand(pool) == nil {
		return believed
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	m, err := c.lead.Recall(ctx, pool)
	if err != nil || m.StartUp <= 0 {
		return believed
	}
	c.s.log.Info("the start-up time is remembered", "pool", pool, "seconds", m.StartUp)
	return m.StartUp
}

// remember keeps what the loops learned, as the leader, until ctx ends.
func (c *clusterScaling) remember(ctx context.Context) {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	first := map[string]float64{} // what each loop believed before it saw a start
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
			if r == nil {
				continue
			}
			if _, ok := first[pool]; !ok {
				first[pool] = r.StartP50
			}
			if r.StartP50 != first[pool] {
				if err := c.learned(ctx, pool, r.StartP50); err != nil {
					c.s.log.Debug("what was learned is not kept", "pool", pool, "error", err.Error())
				}
			}
		}
	}
}

// learned writes a start-up time that differs by more than a tenth from what is kept.
func (c *clusterScaling) learned(ctx context.Context, pool string, seconds float64) error {
	m, err := c.lead.Recall(ctx, pool)
	if err != nil || math.Abs(seconds-m.StartUp) <= 0.1*m.StartUp {
		return err
	}
	return c.lead.Remember(ctx, pool, func(m *kube.Memory) { m.StartUp = seconds })
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
