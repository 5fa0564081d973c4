// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package cli

import (
	"context"
	"log/slog"
	"net"
)

func inheritedListener(string) net.Listener { return nil }
func keepListener(net.Listener)             {}
func tellReady()                            {}
func tookOver() bool                        { return false }

// followHandover waits for ctx: there is no signal for it here.
func followHandover(ctx context.Context, _ *slog.Logger, _ func() string, _ func()) { <-ctx.Done() }
