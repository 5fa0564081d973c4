// SPDX-License-Identifier: Apache-2.0

//go:build unix

package relay

import "syscall"

// peeker asks the kernel whether a socket has something to read. It belongs to one
// connection, so that asking does not allocate.
type peeker struct {
	b     [1]byte
	ready bool
	f     func(fd uintptr)
}

func (p *peeker) init() {
	p.f = func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), p.b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		p.ready = err != syscall.EAGAIN && err != syscall.EINTR
	}
}

// readable reports whether bytes, the end or an error wait to be read. An idle
// connection with any of these is of no use.
func (p *peeker) readable(raw syscall.RawConn) bool {
	p.ready = true
	if raw.Control(p.f) != nil {
		return true
	}
	return p.ready
}
