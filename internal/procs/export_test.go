// SPDX-License-Identifier: Apache-2.0

package procs

import "time"

// ShortPause makes the wait after a failed start short.
func (o *Options) ShortPause(d time.Duration) { o.pause = func(int) time.Duration { return d } }
