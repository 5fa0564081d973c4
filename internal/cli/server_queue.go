// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// guardEvery is how often it is looked at whether a mechanism was switched off.
const guardEvery = time.Second

// followGuards says so in the log when a mechanism that may hold requests, or keep them
// from a replica, is switched off because it harmed, and when it is tried again.
func (s *server) followGuards(ctx context.Context, lp *livePool) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	var last [dispatch.NumGuards]dispatch.GuardState
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := lp.flow.Stats().Totals.Guards
			for i := range now {
				s.sayGuard(lp.name, &last[i], &now[i])
			}
			last = now
		}
	}
}

func (s *server) sayGuard(pool string, was, is *dispatch.GuardState) {
	switch {
	case is.Switched > was.Switched:
		s.log.Warn("switched off, for it harmed: requests waited longer than they were predicted to without it", "pool", pool,
			"mechanism", is.Name, "ttft_ms", int(is.GotMS), "without_ms", int(is.WouldMS), "requests", int(is.Requests), "until", is.Until.Wall().UTC())
	case was.Off && !is.Off:
		s.log.Info("tried again", "pool", pool, "mechanism", is.Name)
	}
}
