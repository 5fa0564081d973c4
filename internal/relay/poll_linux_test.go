// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// onEvent is a handler of one descriptor.
type onEvent func()

func (f onEvent) event(uint32) { f() }

// A set that is shut while its goroutine is at work, and one whose goroutine takes the
// last descriptor out after it was shut, both end: neither waits for the other.
func TestPollerEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		work func(p *poller, remove func())
	}{
		{"its goroutine removes the last descriptor", func(p *poller, remove func()) { p.shut(); remove() }},
		{"its goroutine shuts it when it is empty", func(p *poller, remove func()) { remove(); p.shut() }},
		{"another one shuts it while its goroutine is at work", func(p *poller, remove func()) {
			remove()
			shut := make(chan struct{})
			go func() { p.shut(); close(shut) }()
			<-shut
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := newPoller()
			if err != nil {
				t.Fatal(err)
			}
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			defer w.Close()
			fd := int(r.Fd())
			done := make(chan struct{})
			known := make(chan uint32, 1)
			gen, err := p.add(fd, syscall.EPOLLIN|syscall.EPOLLONESHOT, onEvent(func() {
				gen := <-known
				c.work(p, func() { p.remove(fd, gen) })
				close(done)
			}))
			if err != nil {
				t.Fatal(err)
			}
			known <- gen
			if _, err := w.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("the set waits for itself")
			}
			if _, err := p.add(fd, syscall.EPOLLIN, onEvent(func() {})); err == nil {
				t.Error("a set that is shut and empty takes another descriptor")
			}
			set, err := p.f.SyscallConn()
			if err != nil {
				return // closed
			}
			for end := time.Now().Add(time.Minute); set.Control(func(uintptr) {}) == nil; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the set is open for a minute after it was shut")
				}
			}
		})
	}
}
