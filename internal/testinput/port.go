// SPDX-License-Identifier: Apache-2.0

package testinput

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// ports is how many ports Port goes round in. They lie right below those that the
// system gives to whoever asks for any port, and to connections.
const ports = 10000

// portStep leaves room behind each port: ranks of a replica have one each, in a row.
const portStep = 8

var nextPort atomic.Uint32

func init() { nextPort.Store(rand.Uint32N(ports / portStep)) }

// Port returns a port of this machine on which nothing listens. For a server that is
// told its port, and for an address at which nobody shall be: a port that was found with
// net.Listen(":0") and closed again may be another's, who asks for any port, before it
// is used, and this one is given to nobody by chance. No two calls of a process return
// the same one, before a thousand of them, nor one of the seven behind it.
func Port(t testing.TB) int {
	t.Helper()
	p, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// FreePort is Port for who has no test at hand.
func FreePort() (int, error) {
	first := lowest() - ports
	for range ports / portStep {
		p := first + int(nextPort.Add(1)%(ports/portStep))*portStep
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", p))
		if err != nil {
			continue
		}
		return p, l.Close()
	}
	return 0, fmt.Errorf("all ports from %d to %d are in use", first, first+ports-1)
}

// lowest is the first port of the range that the system draws from.
func lowest() int {
	low := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var n int
		if _, err := fmt.Sscan(string(b), &n); err == nil && n > 1024+ports {
			low = n
		}
	}
	return low
}
