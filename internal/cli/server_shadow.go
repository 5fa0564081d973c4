// SPDX-License-Identifier: Apache-2.0

package cli

// keepPool gives a pool what outlives a decision: its shadow policy and the keeper of
// its index.
func (s *server) keepPool(lp *livePool, _ uint64) error {
	if name := lp.cfg.Route.Shadow; name != "" {
		if err := lp.flow.SetShadow(name); err != nil {
			return usagef("", "pool %s: route.shadow: %v", lp.cfg.Name, err)
		}
	}
	return s.keepIndex(lp)
}
