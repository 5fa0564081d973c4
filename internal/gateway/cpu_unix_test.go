// SPDX-License-Identifier: Apache-2.0

//go:build unix

package gateway

import (
	"syscall"
	"time"
)

// processCPU returns the CPU time of this process, user and system.
func processCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
