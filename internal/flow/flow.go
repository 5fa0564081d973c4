// SPDX-License-Identifier: Apache-2.0

// Package flow runs one live pool: a dispatch with its lock, its timer, the
// callers that wait for their turn and the recorder of decisions.
package flow

import (
	"log/slog"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// Recorder takes the record of each request that ended. Record must not block.
// A Recorder that also implements CaptureRecorder is handed the compact form
// instead, which costs the request no allocation.
type Recorder interface {
	Record(r *route.Record)
}

// CaptureRecorder keeps captures and expands them when somebody reads. Ownership
// of c passes to the recorder; what it returns, nil or a capture that it no longer
// needs, is used again.
type CaptureRecorder interface {
	Capture(c *route.Capture) (reuse *route.Capture)
}

// Options of a Flow.
type Options struct {
	Pool     string
	Dispatch *dispatch.Dispatch
	Recorder Recorder // nil: decisions are not kept
	// Clock is the present; nil is the wall clock. It never goes back.
	Clock func() fleet.Time
	Log   *slog.Logger // nil: discard
}

// NoReplicaError says that no replica can take a request. The gateway answers 503
// with Retry-After (404 where Cause says that no replica serves the model).
type NoReplicaError struct {
	Cause      route.Drop
	Reason     string
	RetryAfter time.Duration
}

func (e *NoReplicaError) Error() string { return e.Reason }
