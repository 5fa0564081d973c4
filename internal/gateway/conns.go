// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/wire"
)

// ConnLimits bound the connections of clients, and requests at a time. 0 is no limit.
type ConnLimits struct {
	HeadBytes  int // of the head of a request; 0: 64 KiB
	Total      int // connections
	PerAddress int // connections of one client address
	PerKey     int // connections that speak for one key
	Streams    int // requests of one key at a time
}

// holder counts what one key holds.
type holder struct {
	key            string
	conns, streams int
}

// connections counts the connections of clients. A nil *connections counts nothing.
type connections struct {
	most    ConnLimits
	away    atomic.Pointer[relay.Back] // has the connections that a stream took from the server
	refused atomic.Int64

	mu     sync.Mutex
	open   map[net.Conn]*doorway
	byAddr map[string]int
	byKey  map[string]*holder
}

// doorway is one connection.
type doorway struct {
	addr string
	// owed is whether it is new, or has begun a request that has not reached its handler.
	owed   atomic.Bool
	holder *holder // of the key that it last spoke for; nil: none
}

// doorwayKey finds the doorway of a connection in the context of its requests.
type doorwayKey struct{}

func (c *connections) headBytes() int {
	if c == nil {
		return maxHeaderBytes
	}
	return cmp.Or(c.most.HeadBytes, maxHeaderBytes)
}

// context notes a new connection; see http.Server.ConnContext.
func (c *connections) context(ctx context.Context, nc net.Conn) context.Context {
	if c == nil {
		return ctx
	}
	host, _, err := net.SplitHostPort(nc.RemoteAddr().String())
	if err != nil {
		host = nc.RemoteAddr().String()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.open[nc]; d != nil {
		return context.WithValue(ctx, doorwayKey{}, d) // it comes from the loop
	}
	d := &doorway{addr: host}
	d.owed.Store(true)
	if c.open == nil {
		c.open, c.byAddr, c.byKey = map[net.Conn]*doorway{}, map[string]int{}, map[string]*holder{}
	}
	c.open[nc] = d
	c.byAddr[host]++
	return context.WithValue(ctx, doorwayKey{}, d)
}

// state follows a connection; see http.Server.ConnState. One too many is closed
// before a byte of it is read.
func (c *connections) state(nc net.Conn, s http.ConnState) {
	if c == nil {
		return
	}
	switch s {
	case http.StateNew:
		c.turnAway(nc)
	case http.StateActive:
		c.mu.Lock()
		defer c.mu.Unlock()
		if d := c.open[nc]; d != nil {
			d.owed.Store(true)
		}
	case http.StateIdle:
		c.mu.Lock()
		defer c.mu.Unlock()
		if d := c.open[nc]; d != nil {
			d.owed.Store(false)
		}
	case http.StateClosed, http.StateHijacked:
		c.mu.Lock()
		defer c.mu.Unlock()
		d := c.open[nc]
		if d == nil {
			return
		}
		delete(c.open, nc)
		if c.byAddr[d.addr]--; c.byAddr[d.addr] == 0 {
			delete(c.byAddr, d.addr)
		}
		if h := d.holder; h != nil {
			d.holder = nil
			h.conns--
			c.forget(h)
		}
	}
}

// hand notes that a connection goes on as another.
func (c *connections) hand(from, to net.Conn) {
	if from == to {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.open[from]; d != nil {
		delete(c.open, from)
		c.open[to] = d
	}
}

// arrived notes that the request of a connection reached its handler.
func arrived(ctx context.Context) {
	if d, _ := ctx.Value(doorwayKey{}).(*doorway); d != nil {
		d.owed.Store(false)
	}
}

// fresh returns how many connections have not sent a request yet, or have one whose
// handler has not begun.
func (c *connections) fresh() int {
	if c == nil {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, d := range c.open {
		if d.owed.Load() {
			n++
		}
	}
	return n
}

// turnAway closes a connection that is one too many, and reports whether it is.
func (c *connections) turnAway(nc net.Conn) bool {
	if !c.tooMany(nc) {
		return false
	}
	c.refused.Add(1)
	nc.Close()
	return true
}

func (c *connections) tooMany(nc net.Conn) bool {
	away := 0
	if b := c.away.Load(); b != nil {
		away = b.Streams()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.open[nc]
	return c.most.Total > 0 && len(c.open)+away > c.most.Total || d != nil && c.most.PerAddress > 0 && c.byAddr[d.addr] > c.most.PerAddress
}

// forget drops a key that holds nothing. c.mu is held.
func (c *connections) forget(h *holder) {
	if h.conns == 0 && h.streams == 0 {
		delete(c.byKey, h.key)
	}
}

func (c *connections) holder(key string) *holder {
	if c.byKey == nil {
		c.byKey = map[string]*holder{}
	}
	h := c.byKey[key]
	if h == nil {
		h = &holder{key: key}
		c.byKey[key] = h
	}
	return h
}

// bind makes the connection of a request one of key's, or says that it has too many.
func (c *connections) bind(ctx context.Context, key string) *wire.Error {
	d, _ := ctx.Value(doorwayKey{}).(*doorway)
	if d == nil || key == "" || c.most.PerKey <= 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.holder != nil {
		if d.holder.key == key {
			return nil
		}
		d.holder.conns--
		c.forget(d.holder)
		d.holder = nil
	}
	h := c.holder(key)
	if h.conns >= c.most.PerKey {
		c.forget(h)
		return &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: time.Second,
			Message: "the limit of " + strconv.Itoa(c.most.PerKey) + " connections of a key is reached"}
	}
	h.conns++
	d.holder = h
	return nil
}

// enter counts a request of key; leave ends it.
func (c *connections) enter(key string) (*holder, *wire.Error) {
	if key == "" || c.most.Streams <= 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holder(key)
	if h.streams >= c.most.Streams {
		return nil, &wire.Error{Status: http.StatusTooManyRequests, Code: wire.CodeRateLimited, RetryAfter: time.Second,
			Message: "the limit of " + strconv.Itoa(c.most.Streams) + " requests of a key at a time is reached"}
	}
	h.streams++
	return h, nil
}

func (c *connections) leave(h *holder) {
	if h == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	h.streams--
	c.forget(h)
}

// count returns how many connections are open.
func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// enterDoor holds a caller against the limits of connections and requests at a time.
func (c *call) enterDoor() *wire.Error {
	fault := c.h.conns.bind(c.ctx, c.who.Key)
	if fault != nil {
		c.h.metrics.overLimit("connections").Inc()
		c.limit = "connections"
		c.w.Header()["Connection"] = []string{"close"}
		return fault
	}
	if c.streamOf, fault = c.h.conns.enter(c.who.Key); fault != nil {
		c.h.metrics.overLimit("streams").Inc()
		c.limit = "streams"
	}
	return fault
}

// closeAmbiguous ends the connection after a request whose body came in chunks: the
// server drops a Content-Length beside them without a word, and a proxy in front that
// believed the length takes what follows for the next request of somebody else.
func (c *call) closeAmbiguous() {
	if c.r.ProtoMajor == 1 && c.r.ContentLength < 0 {
		c.r.Close = true
		c.w.Header()["Connection"] = []string{"close"}
	}
}
