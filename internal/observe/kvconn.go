// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/transport"
)

// The ZeroMQ library makes room for whatever length a frame claims, up to 2^63 bytes,
// and gathers parts of a message without end: nine bytes of a publisher would end this
// program. So it reads through a connection that looks at the lengths first.
const (
	kvGreeting    = 64       // bytes of ZMTP before the first frame
	kvMostMessage = 16 << 20 // bytes of a message: that of a prompt of a million tokens has 5 MB
	kvMostParts   = 64       // of a message; engines send three
)

var errKVLength = errors.New("a message that is too long")

// kvScheme is the name of the bounded transport in endpoints.
const kvScheme = "kv+tcp"

var registerKV = sync.OnceValue(func() error { return zmq4.RegisterTransport(kvScheme, kvTransport{transport.New("tcp")}) })

// bounded returns the endpoint with which the library reads through bounded connections.
func bounded(endpoint string) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint, nil // ipc: of this machine, and only where it is configured
	}
	return kvScheme + "://" + rest, registerKV()
}

// kvTransport is TCP whose connections are bounded.
type kvTransport struct{ transport.Transport }

// Dial implements transport.Transport.
func (t kvTransport) Dial(ctx context.Context, d transport.Dialer, addr string) (net.Conn, error) {
	c, err := t.Transport.Dial(ctx, d, addr)
	if err != nil {
		return nil, err
	}
	return &kvConn{Conn: c, skip: kvGreeting}, nil
}

// Listen implements transport.Transport.
func (t kvTransport) Listen(ctx context.Context, addr string) (net.Listener, error) {
	l, err := t.Transport.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return kvListener{l}, nil
}

type kvListener struct{ net.Listener }

// Accept implements net.Listener.
func (l kvListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &kvConn{Conn: c, skip: kvGreeting}, nil
}

// kvConn follows the frames of ZMTP 3 in what is read: a byte of flags (1 more parts
// follow, 2 the length has eight bytes and not one), the length, the bytes.
type kvConn struct {
	net.Conn
	skip  uint64 // bytes to pass over: the greeting, or what is left of a frame
	head  [9]byte
	have  int // bytes of head
	sum   uint64
	parts int
	bad   bool
}

// Read implements net.Conn. Of a frame that is too long not even the length is shown.
func (c *kvConn) Read(p []byte) (int, error) {
	if c.bad {
		return 0, errKVLength
	}
	n, err := c.Conn.Read(p)
	if !c.follow(p[:n]) {
		c.bad = true
		c.Conn.Close()
		return 0, errKVLength
	}
	return n, err
}

func (c *kvConn) follow(p []byte) bool {
	for len(p) > 0 {
		if c.skip > 0 {
			n := min(c.skip, uint64(len(p)))
			c.skip -= n
			p = p[n:]
			continue
		}
		c.head[c.have] = p[0]
		c.have++
		p = p[1:]
		long := c.head[0]&2 != 0
		if c.have < 2 || long && c.have < len(c.head) {
			continue
		}
		size := uint64(c.head[1])
		if long {
			size = binary.BigEndian.Uint64(c.head[1:])
		}
		c.have = 0
		if size > kvMostMessage {
			return false
		}
		c.sum += size
		c.parts++
		if c.sum > kvMostMessage || c.parts > kvMostParts {
			return false
		}
		if c.head[0]&1 == 0 {
			c.sum, c.parts = 0, 0
		}
		c.skip = size
	}
	return true
}
