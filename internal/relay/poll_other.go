// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package relay

import (
	"bufio"
	"errors"
	"net"
)

// There is no epoll here: every stream has a goroutine, which costs more and does
// the same.

type pollers struct{}

func newPollers(int) *pollers { return nil }

func (*pollers) close() {}

func (*pollers) adopt(net.Conn) (*pollConn, bool) { return nil, false }

type pollConn struct{ net.Conn }

func (*pollConn) unfit() bool { return false }

// CanGoBack reports whether a connection that a server accepted can be taken from
// it for a stream, and returned: never here.
func CanGoBack(net.Conn) bool { return false }

func (*Answer) takePolled(net.Conn, *bufio.ReadWriter, Sink, bool) (rest func() (Ending, error), done func()) {
	return nil, nil
}

// WithRead returns c with bytes that were read from it before it: never here.
func WithRead(net.Conn, []byte) (net.Conn, bool) { return nil, false }

// Watch fails: there is no epoll set.
func (c *Client) Watch(net.Conn, func()) (stop func(), err error) { return nil, errors.ErrUnsupported }
