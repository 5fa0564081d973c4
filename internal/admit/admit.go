// SPDX-License-Identifier: Apache-2.0

// Package admit says whether a request may enter, by the quotas that it has to
// share, and in which order requests that wait go: priority class first, then the
// virtual time of the tenant. It owns no queue.
package admit
