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
// from a replica, is switched off because it harmed, and when it is tried again; and when
// a tenant is over its share, and no more.
func (s *server) followGuards(ctx context.Context, lp *livePool) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	var last [dispatch.NumGuards]dispatch.GuardState
	var over *dispatch.OverShare
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			t := lp.flow.Stats().Totals
			for i := range t.Guards {
				s.sayGuard(lp.name, &last[i], &t.Guards[i])
			}
			s.sayOver(lp.name, over, t.Over)
			last, over = t.Guards, t.Over
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

// sayOver logs that a tenant came to be over its share, and that it is no more.
func (s *server) sayOver(pool string, was, is *dispatch.OverShare) {
	if was != nil && (is == nil || is.Tenant != was.Tenant) {
		s.log.Info("tenant no longer over its share", "pool", pool, "tenant", was.Tenant, "since", was.Since.Wall().UTC())
	}
	if is != nil && (was == nil || is.Tenant != was.Tenant) {
		s.log.Warn("tenant over its share: it keeps to some of the replicas and goes last there, and still gets its fair share", "pool", pool,
			"tenant", is.Tenant, "replicas", is.Places, "fair_share", is.Part, "held", is.Held)
	}
}
