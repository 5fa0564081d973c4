// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
)

const (
	// bufferMost bounds what waits to be told to one router. A router that does not
	// keep up is told everything anew once it does.
	bufferMost = 4 << 20
	// lookEvery is the time between two lookups of a name.
	lookEvery   = 5 * time.Second
	firstRetry  = 100 * time.Millisecond
	longestWait = 3 * time.Second
)

// link is the way to one other router. Its fields are guarded by Exchange.mu.
type link struct {
	stop context.CancelFunc

	router  string
	version int // of the other side
	up      bool
	fault   string
	buf     []byte
	pool    uint64 // that the end of buf is about
	over    bool   // the buffer was full: start anew
	resyncs uint64
	asked   []uint64 // pools whose index the other side wants
	wake    chan struct{}
}

// add puts notes on their way. Exchange.mu is held.
func (l *link) add(pool uint64, notes []dispatch.Note) {
	if !l.up || l.over {
		return
	}
	if l.pool != pool || len(l.buf) == 0 {
		l.buf, l.pool = appendPool(l.buf, pool), pool
	}
	for i := range notes {
		l.buf = appendNote(l.buf, &notes[i], l.version)
	}
	if len(l.buf) > bufferMost {
		l.buf, l.over = l.buf[:0], true
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// follow keeps a link to each peer until ctx ends.
func (x *Exchange) follow(ctx context.Context, wg *sync.WaitGroup) {
	for {
		want, fault := x.addresses(ctx)
		x.mu.Lock()
		x.fault = fault
		for a := range want {
			if x.links[a] == nil {
				lctx, stop := context.WithCancel(ctx)
				l := &link{stop: stop, wake: make(chan struct{}, 1), fault: "not reached yet"}
				x.links[a] = l
				wg.Go(func() { x.dial(lctx, a, l) })
			}
		}
		for a, l := range x.links {
			if fault == "" && !want[a] {
				l.stop()
				delete(x.links, a)
				delete(x.self, a)
			}
		}
		x.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(lookEvery):
		}
	}
}

// addresses are the peers' addresses at present.
func (x *Exchange) addresses(ctx context.Context) (map[string]bool, string) {
	out, fault := map[string]bool{}, ""
	for _, p := range x.o.Peers {
		name, ok := strings.CutPrefix(p, "dns:")
		if !ok {
			out[p] = true
			continue
		}
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			fault = err.Error()
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil {
			fault = err.Error()
			continue
		}
		for _, ip := range ips {
			out[net.JoinHostPort(ip, port)] = true
		}
	}
	return out, fault
}

// dial keeps the connection to one address until ctx ends or it turns out to be this
// router itself.
func (x *Exchange) dial(ctx context.Context, addr string, l *link) {
	wait := firstRetry
	for ctx.Err() == nil {
		start := time.Now()
		err := x.talk(ctx, addr, l)
		x.mu.Lock()
		l.up, l.fault = false, errText(err)
		itself := x.self[addr]
		x.mu.Unlock()
		if itself {
			return
		}
		if time.Since(start) > longestWait {
			wait = firstRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, longestWait)
	}
}

// talk tells one router until the connection breaks.
func (x *Exchange) talk(ctx context.Context, addr string, l *link) error {
	c, err := (&net.Dialer{Timeout: handshakeFor}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	if !x.track(c) {
		return net.ErrClosed
	}
	defer x.untrack(c)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	f, h, err := dialled(c, x.o.Secret, x.me())
	if err != nil {
		return err
	}
	x.mu.Lock()
	l.router, l.version = h.Router, h.Version
	if h.Router == x.o.Router {
		x.self[addr] = true
		x.mu.Unlock()
		return nil
	}
	l.asked = nil
	l.up, l.fault, l.over, l.buf = true, "", true, l.buf[:0]
	x.mu.Unlock()
	// Nothing comes back but the end of the connection.
	gone := make(chan error, 1)
	go func() { _, err := f.r.ReadByte(); gone <- err }()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	var out []byte
	for first := true; ; first = false {
		if out, err = x.flush(f, l, out, first); err != nil {
			return err
		}
		if err := x.give(f, l); err != nil {
			return err
		}
		select {
		case <-l.wake:
		case <-beat.C:
		case err := <-gone:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// flush writes what waits, or all there is to tell where something was lost.
func (x *Exchange) flush(f *framer, l *link, out []byte, first bool) ([]byte, error) {
	x.mu.Lock()
	over := l.over
	if over && !first {
		l.resyncs++
	}
	out, l.buf = l.buf, out[:0]
	l.pool = 0 // what is asked below is about another pool
	x.mu.Unlock()
	if !over {
		out = x.ask(l.router, out)
	}
	_ = f.c.SetWriteDeadline(time.Now().Add(goneAfter))
	if !over {
		return out, f.write(out)
	}
	for _, frame := range x.everything(l) {
		if err := f.write(frame); err != nil {
			return out, err
		}
	}
	return out, nil
}

// everything tells all pools from the beginning, in frames. Notes that come meanwhile
// wait in the buffer behind it.
func (x *Exchange) everything(l *link) (frames [][]byte) {
	const frameFull = 1 << 20
	for i, p := range x.pools {
		p.t.Tell(func(notes []dispatch.Note) {
			// The pool's lock is held: its next notes come after these. From the first
			// pool on the link takes notes; those of pools that are not told yet are
			// told again, which does no harm.
			x.mu.Lock()
			if i == 0 {
				l.over, l.buf, l.pool = false, l.buf[:0], 0
			}
			x.mu.Unlock()
			out := append(appendPool(nil, p.hash), itemReset)
			for k := range notes {
				if len(out) > frameFull {
					frames, out = append(frames, out), appendPool(nil, p.hash)
				}
				out = appendNote(out, &notes[k], l.version)
			}
			frames = append(frames, out)
		})
	}
	return frames
}
