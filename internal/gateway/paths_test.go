// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
)

// testEpoll is the path of streams in the fixtures: both have to do the same.
var testEpoll bool

// bothPaths runs every test over both paths of the relay: with a goroutine for each
// stream, and with streams in an epoll set. Fuzzing and benchmarks take the path
// that PENSTOCK_RELAY names.
func bothPaths(m *testing.M) int {
	flag.Parse()
	path := os.Getenv("PENSTOCK_RELAY")
	testEpoll = path == "epoll"
	alone := path != "" || runtime.GOOS != "linux"
	for _, name := range []string{"test.fuzz", "test.fuzzworker", "test.bench", "test.list"} {
		if v := flag.Lookup(name).Value.String(); v != "" && v != "false" {
			alone = true
		}
	}
	code := m.Run()
	if code == 0 && !alone {
		testEpoll = true
		fmt.Println("again, with streams in an epoll set")
		code = m.Run()
	}
	return code
}
