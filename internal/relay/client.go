// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a Client. The zero value of a field stands for its default.
type Options struct {
	// Idle is how long a connection may wait unused; below the shortest keep-alive
	// of the engines, which is 5 s (uvicorn, cpp-httplib). A Keep-Alive header that
	// names less lowers it for its replica. Default 3.5 s.
	Idle time.Duration
	// MaxIdle bounds the unused connections for each replica. Default 1024.
	MaxIdle int
	// Connect bounds name resolution, TCP and TLS handshake. Default 3 s.
	Connect time.Duration
	// Send bounds writing a request, plus one second for each MiB. Default 30 s.
	Send time.Duration
	// FirstByte bounds the wait for the head of an answer. A long answer that is
	// not streamed comes after minutes. Default 15 min.
	FirstByte time.Duration
	// Stall bounds the silence within an answer. Default 5 min.
	Stall time.Duration
	// ClientWrite bounds the time that one write of at most 16 KiB to a client may
	// take: a client slower than that is taken for gone. Default 60 s.
	ClientWrite time.Duration
	// MaxHead bounds the head of an answer in bytes. Default 64 KiB.
	MaxHead int
	// TLS is used for replicas with https URLs; nil: the system's roots.
	TLS *tls.Config
	// Epoll has streams copied by a goroutine on an epoll set, where the system has
	// one; see Answer.Take. Pollers is the number of such goroutines; 0: one
	// for four processors.
	Epoll   bool
	Pollers int
	// Dial opens connections; nil: TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.Idle, 3500*time.Millisecond)
	def(&o.Connect, 3*time.Second)
	def(&o.Send, 30*time.Second)
	def(&o.FirstByte, 15*time.Minute)
	def(&o.Stall, 5*time.Minute)
	def(&o.ClientWrite, time.Minute)
	if o.MaxIdle <= 0 {
		o.MaxIdle = 1024
	}
	if o.MaxHead <= 0 {
		o.MaxHead = 64 << 10
	}
	if o.Dial == nil {
		d := &net.Dialer{KeepAlive: 15 * time.Second}
		o.Dial = d.DialContext
	}
	return o
}

// Client holds the connections to replicas. It is safe for concurrent use.
type Client struct {
	o     Options
	stats counters
	polls *pollers // nil: a goroutine for each stream

	mu       sync.RWMutex
	replicas map[string]*replica
	sweeping bool
	closed   bool
	timer    *time.Timer
}

type counters struct {
	open, idle                 atomic.Int64
	dialed, dialFailed         atomic.Int64
	reused, foundClosed, stale atomic.Int64
}

// Stats counts connections to replicas since the start.
type Stats struct {
	Open        int64 // now, idle ones included
	Idle        int64 // now
	Dialed      int64
	DialFailed  int64
	Reused      int64 // requests that went over a used connection
	FoundClosed int64 // idle connections that were found closed before use
	Stale       int64 // requests sent again since a used connection turned out closed
}

// New returns a Client. Close ends it.
func New(o Options) *Client {
	c := &Client{o: o.withDefaults(), replicas: map[string]*replica{}}
	if o.Epoll {
		if o.Pollers <= 0 {
			o.Pollers = (runtime.GOMAXPROCS(0) + 3) / 4
		}
		c.polls = newPollers(o.Pollers)
	}
	return c
}

// Polls reports whether streams can be copied by an epoll set.
func (c *Client) Polls() bool { return c.polls != nil }

// Stats returns the counters.
func (c *Client) Stats() Stats {
	s := &c.stats
	return Stats{
		Open: s.open.Load(), Idle: s.idle.Load(), Dialed: s.dialed.Load(), DialFailed: s.dialFailed.Load(),
		Reused: s.reused.Load(), FoundClosed: s.foundClosed.Load(), Stale: s.stale.Load(),
	}
}

// Close closes all idle connections and refuses to keep new ones. Answers under
// way go on.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	for _, r := range c.replicas {
		r.sweep(time.Time{})
	}
	if c.polls != nil {
		c.polls.close()
	}
}

// replica is the pool of connections to one base URL.
type replica struct {
	c        *Client
	addr     string // host:port to dial
	host     string // value of the Host header
	basePath string // before every target, without a slash at its end
	tls      *tls.Config

	mu       sync.Mutex
	idle     [2]idleConns // in the runtime's poller, in a set of ours
	keep     time.Duration
	lastUsed time.Time
}

// idleConns are connections that wait, the latest used last.
type idleConns []*conn

// before takes out what idles since before limit; the zero limit stands for all.
func (l *idleConns) before(limit time.Time) []*conn {
	n := len(*l)
	if !limit.IsZero() {
		n = 0
		for n < len(*l) && (*l)[n].since.Before(limit) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	old := append([]*conn(nil), (*l)[:n]...)
	left := copy(*l, (*l)[n:])
	clear((*l)[left:])
	*l = (*l)[:left]
	return old
}

// lookup returns the pool for a base URL.
func (c *Client) lookup(base string) (*replica, error) {
	c.mu.RLock()
	r := c.replicas[base]
	c.mu.RUnlock()
	if r != nil {
		return r, nil
	}
	r, err := c.newReplica(base)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.replicas[base]; old != nil {
		return old, nil
	}
	c.replicas[base] = r
	return r, nil
}

func (c *Client) newReplica(base string) (*replica, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("the URL of the replica is not valid: %q", base)
	}
	r := &replica{c: c, host: u.Host, addr: u.Host, basePath: strings.TrimRight(u.EscapedPath(), "/"), keep: c.o.Idle}
	port := u.Port()
	switch u.Scheme {
	case "http":
		if port == "" {
			port = "80"
		}
	case "https":
		if port == "" {
			port = "443"
		}
		r.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if c.o.TLS != nil {
			r.tls = c.o.TLS.Clone()
		}
		if r.tls.ServerName == "" {
			r.tls.ServerName = u.Hostname()
		}
		r.tls.NextProtos = []string{"http/1.1"}
	default:
		return nil, fmt.Errorf("the URL of the replica must begin with http:// or https://: %q", base)
	}
	r.addr = net.JoinHostPort(u.Hostname(), port)
	return r, nil
}

// take returns the latest used idle connection that is still open; nil where there
// is none.
func (r *replica) take(now time.Time, polled bool) *conn {
	idle := &r.idle[kindOf(polled)]
	for {
		r.mu.Lock()
		r.lastUsed = now
		n := len(*idle)
		if n == 0 {
			r.mu.Unlock()
			return nil
		}
		x := (*idle)[n-1]
		(*idle)[n-1] = nil
		*idle = (*idle)[:n-1]
		keep := r.keep
		r.mu.Unlock()
		r.c.stats.idle.Add(-1)
		if now.Sub(x.since) < keep && !x.closedByPeer() {
			x.reused = true
			r.c.stats.reused.Add(1)
			return x
		}
		r.c.stats.foundClosed.Add(1)
		x.close()
	}
}

func kindOf(polled bool) int {
	if polled {
		return 1
	}
	return 0
}

// put keeps a connection for the next request.
func (r *replica) put(x *conn, now time.Time) {
	x.since = now
	r.mu.Lock()
	if len(r.idle[0])+len(r.idle[1]) >= r.c.o.MaxIdle || r.keep <= 0 {
		r.mu.Unlock()
		x.close()
		return
	}
	idle := &r.idle[kindOf(x.poll != nil)]
	*idle = append(*idle, x)
	r.mu.Unlock()
	r.c.stats.idle.Add(1)
	r.c.armSweep()
}

// lower takes a Keep-Alive header's number of seconds into account. A second is
// left for the way.
func (r *replica) lower(seconds int) {
	d := time.Duration(seconds-1) * time.Second
	r.mu.Lock()
	if d < r.keep {
		r.keep = max(d, 0)
	}
	r.mu.Unlock()
}

// sweep closes what has idled since before limit; the zero limit stands for all.
// It returns how many connections are left.
func (r *replica) sweep(limit time.Time) int {
	r.mu.Lock()
	old := append(r.idle[0].before(limit), r.idle[1].before(limit)...)
	left := len(r.idle[0]) + len(r.idle[1])
	r.mu.Unlock()
	r.c.stats.idle.Add(-int64(len(old)))
	for _, x := range old {
		x.close()
	}
	return left
}

// armSweep makes sure that idle connections are closed in time.
func (c *Client) armSweep() {
	c.mu.RLock()
	armed, closed := c.sweeping, c.closed
	c.mu.RUnlock()
	if closed {
		c.Close()
		return
	}
	if armed {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.sweeping && !c.closed {
		c.sweeping = true
		c.timer = time.AfterFunc(c.o.Idle/2, c.sweep)
	}
}

// forget is after how much disuse the pool of a replica is dropped.
const forget = 10 * time.Minute

func (c *Client) sweep() {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	left := 0
	for base, r := range c.replicas {
		n := r.sweep(now.Add(-c.o.Idle))
		left += n
		r.mu.Lock()
		unused := n == 0 && now.Sub(r.lastUsed) > forget
		r.mu.Unlock()
		if unused {
			delete(c.replicas, base)
		}
	}
	c.sweeping = left > 0 && !c.closed
	if c.sweeping {
		c.timer.Reset(c.o.Idle / 2)
	}
}
