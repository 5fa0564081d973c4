// SPDX-License-Identifier: Apache-2.0

package cli

import "context"

// weatherEvent is one thing that happened to a replica.
type weatherEvent struct {
	AtS     float64 `json:"at_s"`
	Replica string  `json:"replica"`
	Event   string  `json:"event"`
}

func (d *demoFleet) runWeather(context.Context, *demoFlags, bool) error { return nil }
