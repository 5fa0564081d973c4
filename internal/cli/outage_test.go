// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// nameServer answers every question of type A with 127.0.0.1 while it is well.
type nameServer struct {
	conn  net.PacketConn
	mode  atomic.Int32 // well, mute or sick
	asked atomic.Int64
}

const (
	nameServerWell int32 = iota
	nameServerMute
	nameServerSick
)

func newNameServer(t *testing.T) *nameServer {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &nameServer{conn: c}
	done := make(chan struct{})
	go func() { defer close(done); n.serve() }()
	old := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
	t.Cleanup(func() { net.DefaultResolver = old; c.Close(); <-done })
	return n
}

func (n *nameServer) serve() {
	b := make([]byte, 1500)
	for {
		k, from, err := n.conn.ReadFrom(b)
		if err != nil {
			return
		}
		n.asked.Add(1)
		end := 12
		for end < k && b[end] != 0 {
			end += int(b[end]) + 1
		}
		end += 5 // the root, type and class
		if k < end || n.mode.Load() == nameServerMute {
			continue
		}
		out := append([]byte(nil), b[:end]...)
		out[2], out[3] = 0x81, 0x80 // an answer
		out[6], out[7], out[8], out[9], out[10], out[11] = 0, 0, 0, 0, 0, 0
		switch {
		case n.mode.Load() == nameServerSick:
			out[3] |= 2
		case b[end-3] == 1: // type A
			out[7] = 1
			out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
		}
		n.conn.WriteTo(out, from)
	}
}

// TestNameOutage takes the name server away, in silence and with errors: replicas keep
// their last addresses, for requests and for probes, whether the name is that of a
// replica or of all of them.
func TestNameOutage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, source := range []string{"static", "dns"} {
		ns := newNameServer(t)
		e := newEngine(t)
		u, _ := url.Parse(e.URL)
		at := "http://replica.penstock.test:" + u.Port()
		change := func(c *config.Config) {
			if source == "dns" {
				c.Pools[0].Replicas = config.Replicas{DNS: at}
			}
		}
		s, stop := runServer(t, change, at)
		for _, mode := range []int32{nameServerWell, nameServerMute, nameServerSick, nameServerWell} {
			ns.mode.Store(mode)
			asked := ns.asked.Load()
			for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				e.CloseClientConnections() // each request and each probe needs a new one
				res, err := ask(http.DefaultClient, s.GatewayURL(), false)
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 {
					t.Fatalf("%s, name server in mode %d: %s", source, mode, res.Status)
				}
			}
			if n := s.pools[0].observer.Snapshot().Count(4); n != 1 {
				t.Errorf("%s, name server in mode %d: %d replicas ready", source, mode, n)
			}
			if source == "static" && mode == nameServerMute && ns.asked.Load() == asked {
				t.Error("nobody looked the name up: this test shows nothing")
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	}
}
