// SPDX-License-Identifier: Apache-2.0

//go:build linux && race

package relay

import "syscall"

// The race detector knows what a system call orders only where package syscall makes
// it.

// readNow reads from a descriptor that does not block.
func readNow(fd int, b []byte) (int, syscall.Errno) {
	n, err := syscall.Read(fd, b)
	return now(n, err)
}

// writeNow writes to a descriptor that does not block.
func writeNow(fd int, b []byte) (int, syscall.Errno) {
	n, err := syscall.Write(fd, b)
	return now(n, err)
}

func now(n int, err error) (int, syscall.Errno) {
	if err == nil {
		return n, 0
	}
	if e, ok := err.(syscall.Errno); ok && e != syscall.EINTR {
		return 0, e
	}
	return 0, syscall.EAGAIN
}
