// SPDX-License-Identifier: Apache-2.0

//go:build unix

package observe

import (
	"net"
	"syscall"
)

// stirs reports whether bytes, the end or an error wait to be read on an idle
// connection. With any of these it is of no use: bytes that nobody asked for would be
// taken for the next answer, and each answer for the one to the question before.
func stirs(nc net.Conn) bool {
	c, ok := nc.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	waits := true
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		waits = err != syscall.EAGAIN && err != syscall.EINTR
	})
	return waits || err != nil
}
