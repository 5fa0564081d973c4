// SPDX-License-Identifier: Apache-2.0

//go:build linux

package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
)

// loses lets the kernel throw away a share of the packets that reach a socket, before
// TCP sees them. A listener passes it on to the connections that it accepts.
func loses(t *testing.T, c syscall.Conn, share float64) {
	t.Helper()
	const absolute, above, back, random = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K, unix.BPF_RET | unix.BPF_K, 0xfffff000 + 56
	filter := []unix.SockFilter{
		{Code: absolute, K: random}, // SKF_AD_RANDOM: a new number for each packet
		{Code: above, Jt: 1, K: uint32(share * (1<<32 - 1))},
		{Code: back, K: 0},
		{Code: back, K: 1 << 18},
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	})
	if err != nil {
		t.Error(err)
	}
}

// A network that loses every tenth packet in both directions makes answers late, and
// nothing else: TCP sends again, the gateway does not.
func TestLostPackets(t *testing.T) {
	a, b := scripted(t, answers), scripted(t, answers)
	for _, r := range []*replica{a, b} {
		loses(t, r.l.(syscall.Conn), 0.1)
	}
	o := relay.Options{Connect: 20 * time.Second, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			loses(t, c.(syscall.Conn), 0.1)
		}
		return c, err
	}}
	f := newFixture(t, setup{relay: o}, a.url, b.url)
	if seen := f.several(160, 0); seen[200] != 160 {
		t.Errorf("%v", seen)
	}
	if n := f.metric("retries_total"); n != 0 || a.seen.Load()+b.seen.Load() != 160 {
		t.Errorf("%v retries, %d and %d requests arrived", n, a.seen.Load(), b.seen.Load())
	}
	f.settled()
}

// From one moment on every packet to and from one replica is lost, in silence: on
// connections that idle, on those with a stream, and for new ones.
func TestNetworkGoesSilent(t *testing.T) {
	var cut atomic.Bool
	begun := make(chan struct{}, 1)
	hold := make(chan struct{})
	a := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		if strings.Contains(string(body), "stay") {
			io.WriteString(c, sseHead+chunk(token))
			begun <- struct{}{}
			<-hold
			_, err := io.WriteString(c, chunk(finish+done)+"0\r\n\r\n") // never arrives
			return err == nil
		}
		return answers(c, r, body)
	})
	t.Cleanup(func() { close(hold) })
	b := scripted(t, answers)
	o := relay.Options{Connect: 300 * time.Millisecond, Stall: 700 * time.Millisecond, MaxIdle: 64}
	var dialed []syscall.Conn
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if "http://"+addr != a.url || !cut.Load() {
			ctx = context.WithoutCancel(ctx) // whoever is there is reached, also on a slow machine
		}
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil && "http://"+addr == a.url && !cut.Load() {
			dialed = append(dialed, c.(syscall.Conn)) // one request at a time until the cut
		}
		return c, err
	}
	f := newFixture(t, setup{relay: o, options: Options{Lifeless: 300 * time.Millisecond}}, a.url)
	f.chat(chatBody)
	d := f.dial()
	d.ask(strings.Replace(streamReq, "hello", "stay", 1), "")
	<-begun
	f.chat(chatBody) // over a connection of its own, which idles now
	cut.Store(true)
	loses(t, a.l.(syscall.Conn), 1)
	for _, c := range dialed {
		loses(t, c, 1)
	}
	a.mu.Lock()
	for c := range a.open {
		loses(t, c.(syscall.Conn), 1)
	}
	a.mu.Unlock()
	f.state(func(s *fleet.Snapshot) {
		s.Endpoints = append(s.Endpoints, s.Endpoints[0])
		s.Endpoints[1].ID, s.Endpoints[1].URL = "r1", b.url
		// The probes of the observer go unanswered, too.
		s.Endpoints[0].Slow, s.Endpoints[0].LifeAt = true, fleet.At(time.Now().Add(-time.Minute))
	})
	if seen := f.several(20, 0); seen[200] != 20 {
		t.Errorf("requests after the cut: %v", seen)
	}
	if f.metric("retries_total") == 0 {
		t.Error("no request met the silence")
	}
	if moved, sent := f.metric("retries_total", "no_sign_of_life"), f.metric("maybe_duplicates_total"); moved > sent {
		t.Errorf("%v moved after they were sent, %v counted as possible duplicates", moved, sent)
	}
	_, text, err := d.answer()
	if err != nil || !strings.Contains(text, "stalled") || !strings.HasSuffix(text, done) {
		t.Errorf("the stream: %v %q", err, text)
	}
	f.settled()
}
