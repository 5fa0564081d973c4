// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
)

// peer is one side of an HTTP/1.1 connection with a read buffer. It knows just
// enough HTTP for messages that this program and the contenders write.
type peer struct {
	net.Conn
	buf  []byte
	r, w int // unread bytes are buf[r:w]
}

func newPeer(c net.Conn) *peer { return &peer{Conn: c, buf: make([]byte, 64<<10)} }

// fill reads more bytes behind those that are unread, with room for need in all.
func (p *peer) fill(need int) error {
	if p.r == p.w {
		p.r, p.w = 0, 0
	}
	if p.r+need > len(p.buf) || p.w == len(p.buf) {
		n := copy(p.buf, p.buf[p.r:p.w])
		p.r, p.w = 0, n
		if need > len(p.buf) || p.w == len(p.buf) {
			p.buf = append(p.buf, make([]byte, max(need, 2*len(p.buf))-len(p.buf))...)
		}
	}
	n, err := p.Read(p.buf[p.w:])
	p.w += n
	if n > 0 {
		return nil
	}
	return err
}

// message is the head of a request or an answer.
type message struct {
	raw     []byte // with the empty line; valid until the next fill
	length  int    // of the body; -1 for none told
	chunked bool
	close   bool
}

// head reads up to the empty line and leaves the head unread in raw's place: the
// caller drops it with skip(len(raw)).
func (p *peer) head() (message, error) {
	m := message{length: -1}
	seen := 0
	for {
		if i := bytes.Index(p.buf[p.r+seen:p.w], []byte("\r\n\r\n")); i >= 0 {
			m.raw = p.buf[p.r : p.r+seen+i+4]
			break
		}
		seen = max(0, p.w-p.r-3)
		if p.w-p.r > 1<<20 {
			return m, errors.New("head too long")
		}
		if err := p.fill(p.w - p.r + 1); err != nil {
			return m, err
		}
	}
	lines := m.raw[bytes.IndexByte(m.raw, '\n')+1:]
	for len(lines) > 2 {
		i := bytes.IndexByte(lines, '\n')
		k, v, _ := bytes.Cut(lines[:i], []byte{':'})
		v = bytes.TrimSpace(v)
		switch {
		case named(k, "content-length"):
			n, err := strconv.Atoi(string(v))
			if err != nil {
				return m, err
			}
			m.length = n
		case named(k, "transfer-encoding"):
			m.chunked = named(v, "chunked")
		case named(k, "connection"):
			m.close = named(v, "close")
		}
		lines = lines[i+1:]
	}
	return m, nil
}

func named(b []byte, s string) bool { return len(b) == len(s) && strings.EqualFold(string(b), s) }

func (p *peer) skip(n int) { p.r += n }

// have makes n unread bytes available and returns them without skipping.
func (p *peer) have(n int) ([]byte, error) {
	for p.w-p.r < n {
		if err := p.fill(n); err != nil {
			return nil, err
		}
	}
	return p.buf[p.r : p.r+n], nil
}

// chunks follows chunked framing across reads.
type chunks struct {
	state byte // 's' size, 'd' data, 'e' line end after data, 't' trailer, 'x' done
	size  int
	line  int // bytes of the trailer line so far
}

// feed takes the next bytes and returns how many belong to the body; data is
// called with the payload, nil asks for none.
func (c *chunks) feed(b []byte, data func([]byte)) (n int, done bool) {
	for n < len(b) {
		switch c.state {
		case 0, 's':
			d := b[n]
			n++
			switch {
			case d == '\n':
				c.state = 'd'
				if c.size == 0 {
					c.state, c.line = 't', 0
				}
			case d >= '0' && d <= '9':
				c.size = c.size<<4 | int(d-'0')
			case d >= 'a' && d <= 'f':
				c.size = c.size<<4 | int(d-'a'+10)
			case d >= 'A' && d <= 'F':
				c.size = c.size<<4 | int(d-'A'+10)
			}
		case 'd':
			k := min(c.size, len(b)-n)
			if data != nil {
				data(b[n : n+k])
			}
			n += k
			if c.size -= k; c.size == 0 {
				c.state = 'e'
			}
		case 'e':
			if b[n] == '\n' {
				c.state = 's'
			}
			n++
		case 't':
			d := b[n]
			n++
			if d == '\n' {
				if c.line == 0 {
					c.state = 'x'
					return n, true
				}
				c.line = 0
			} else if d != '\r' {
				c.line++
			}
		default:
			return n, true
		}
	}
	return n, c.state == 'x'
}

// body reads the body of m, which was skipped, and hands its payload to data.
func (p *peer) body(m message, data func([]byte)) error {
	if m.chunked {
		var c chunks
		for {
			n, done := c.feed(p.buf[p.r:p.w], data)
			p.skip(n)
			if done {
				return nil
			}
			if err := p.fill(1); err != nil {
				return unexpected(err)
			}
		}
	}
	for left := max(m.length, 0); left > 0; {
		if p.r == p.w {
			if err := p.fill(1); err != nil {
				return unexpected(err)
			}
		}
		k := min(left, p.w-p.r)
		if data != nil {
			data(p.buf[p.r : p.r+k])
		}
		p.skip(k)
		left -= k
	}
	return nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
