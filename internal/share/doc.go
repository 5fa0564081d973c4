// SPDX-License-Identifier: Apache-2.0

// Package share keeps the quotas of tenants: in this process alone, or in a Redis or
// Valkey that several gateways lease slices from.
package share
