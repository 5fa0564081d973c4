// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// nameWait bounds the look-up of a name whose addresses are known from before: a
	// name server that is silent may not use up the time to connect.
	nameWait = 500 * time.Millisecond
	// nameRest is how long a name server that failed is not asked again.
	nameRest = 5 * time.Second
)

// lookup is the part of net.Resolver that names uses.
type lookup interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// names opens connections to replicas. It looks a name up for each, as the system does,
// and while that fails goes to the addresses that the name had last: a name server that
// is away says nothing about the replicas. Safe for concurrent use.
type names struct {
	dialer net.Dialer
	lookup lookup
	log    *slog.Logger

	mu   sync.Mutex
	last map[string]*lastAddrs
}

// lastAddrs is what is known of a name.
type lastAddrs struct {
	addrs  []netip.Addr
	failed time.Time // of the last look-up that failed since one succeeded
}

func newNames(r lookup, log *slog.Logger) *names {
	return &names{dialer: net.Dialer{KeepAlive: 15 * time.Second}, lookup: r, log: log, last: map[string]*lastAddrs{}}
}

// DialContext connects to the first address of a name that answers.
func (n *names) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return n.dialer.DialContext(ctx, network, address)
	}
	addrs, err := n.addresses(ctx, host)
	if err != nil {
		return nil, err
	}
	var first error
	for i, a := range addrs {
		c, err := n.dialPart(ctx, network, net.JoinHostPort(a.Unmap().String(), port), len(addrs)-i)
		if err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// dialPart gives an address its share of the time that is left for all of them.
func (n *names) dialPart(ctx context.Context, network, address string, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
		defer cancel()
	}
	return n.dialer.DialContext(ctx, network, address)
}

// addresses looks a name up, or remembers.
func (n *names) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	var old []netip.Addr
	resting := false
	if l := n.last[host]; l != nil {
		old, resting = l.addrs, !l.failed.IsZero() && time.Since(l.failed) < nameRest
	}
	n.mu.Unlock()
	if resting {
		return old, nil
	}
	asked := ctx
	if old != nil {
		var cancel context.CancelFunc
		asked, cancel = context.WithTimeout(ctx, nameWait)
		defer cancel()
	}
	addrs, err := n.lookup.LookupNetIP(asked, "ip", host)
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.last[host]
	switch {
	case err == nil && len(addrs) > 0:
		if l == nil {
			l = &lastAddrs{}
			n.last[host] = l
		}
		l.addrs, l.failed = addrs, time.Time{}
		return addrs, nil
	case err == nil:
		err = &net.DNSError{Err: "no address", Name: host, IsNotFound: true}
	}
	if l == nil || ctx.Err() != nil {
		return nil, err
	}
	if l.failed.IsZero() {
		n.log.Warn("a name of a replica cannot be looked up, its last addresses stand", "name", host, "error", err)
	}
	l.failed = time.Now()
	return l.addrs, nil
}
