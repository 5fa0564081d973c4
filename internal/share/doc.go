// SPDX-License-Identifier: Apache-2.0

// Package share keeps what several routers have in common. The quotas of tenants: in
// this process alone, or in a Redis or Valkey that several gateways lease slices from.
// And what each has in flight, which routers tell each other directly (Exchange).
package share
