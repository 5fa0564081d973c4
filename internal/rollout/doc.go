// SPDX-License-Identifier: Apache-2.0

// Package rollout moves traffic from one version of a model to another: who gets
// which version, whether the new one is as good as the old, and what follows.
//
// It is a pure state machine: requests are assigned (assign.go), what became of them
// is compared by tests that may be read at any time (sequential.go), and Tick takes
// the next step, holds, or goes back (rollout.go). Every step is kept with the
// numbers that it was taken on.
package rollout
