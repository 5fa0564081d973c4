// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"net"
	"sync"
	"time"
)

// Failures counts requests without a valid credential by address and turns away an
// address that has too many. The zero value is ready; nil counts nothing. It is
// safe for concurrent use.
type Failures struct {
	mu   sync.Mutex
	seen map[string]*failing
}

type failing struct {
	left float64 // failures that are still free
	at   time.Time
}

// Limits of Failures.
const (
	failuresFree      = 100             // at once
	failuresPerSecond = 1.0             // regained
	failuresAddresses = 10000           // kept; beyond that the oldest half is forgotten
	failuresFull      = failuresFree    // seconds until an address is as good as new
	failuresLeast     = 1 * time.Second // told to wait
)

// host is the address without its port; clients of one network of IPv6 (/64)
// count as one.
func host(remote string) string {
	h, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	if ip := net.ParseIP(h); ip != nil && ip.To4() == nil {
		return ip.Mask(net.CIDRMask(64, 128)).String()
	}
	return h
}

// Blocked returns how long an address must wait; 0 where it need not.
func (f *Failures) Blocked(remote string, now time.Time) time.Duration {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.seen) == 0 {
		return 0
	}
	e := f.seen[host(remote)]
	if e == nil {
		return 0
	}
	e.refill(now)
	if e.left >= 1 {
		return 0
	}
	return max(failuresLeast, time.Duration((1-e.left)/failuresPerSecond*1e9))
}

func (e *failing) refill(now time.Time) {
	if d := now.Sub(e.at); d > 0 {
		e.left = min(failuresFree, e.left+d.Seconds()*failuresPerSecond)
		e.at = now
	}
}

// Note counts a failure.
func (f *Failures) Note(remote string, now time.Time) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[string]*failing{}
	}
	k := host(remote)
	e := f.seen[k]
	if e == nil {
		if len(f.seen) >= failuresAddresses {
			f.forget(now)
		}
		e = &failing{left: failuresFree, at: now}
		f.seen[k] = e
	}
	e.refill(now)
	e.left--
}

// forget drops addresses that have recovered, and any where that is not enough.
func (f *Failures) forget(now time.Time) {
	for k, e := range f.seen {
		if now.Sub(e.at).Seconds() > failuresFull {
			delete(f.seen, k)
		}
	}
	for k := range f.seen {
		if len(f.seen) <= failuresAddresses/2 {
			return
		}
		delete(f.seen, k)
	}
}
