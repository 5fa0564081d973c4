// SPDX-License-Identifier: Apache-2.0

//go:build unix

package observe

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// TestMain also is the engine of BenchmarkScrape: a process of its own, so that
// its CPU time is not counted.
func TestMain(m *testing.M) {
	if os.Getenv("PENSTOCK_BENCH_ENGINE") != "" {
		serveExposition()
		return
	}
	os.Exit(m.Run())
}

func serveExposition() {
	text := []byte(exposition(1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("http://" + l.Addr().String())
	go func() { // ends with its parent
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}()
	_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(text)))
		_, _ = w.Write(text)
	}))
}

func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkScrape measures a whole scrape, connection and kernel included, in CPU
// time of this process.
func BenchmarkScrape(b *testing.B) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PENSTOCK_BENCH_ENGINE=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Wait() }()
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	url = strings.TrimSpace(url)
	ob := New(Options{Source: Static{}})
	clock := func() fleet.Time { return testNow }
	for _, c := range []struct {
		name  string
		plain *plain
	}{{"plain", newPlain(url, "", ob.dial)}, {"http.Transport", nil}} {
		p := prober{base: url, client: ob.client, plain: c.plain}
		b.Run(c.name, func(b *testing.B) {
			var s fleet.Signals
			scrape := func() {
				if _, err := p.scrape(b.Context(), EngineUnknown, scrapeTimeout, clock, &s); err != nil {
					b.Fatal(err)
				}
			}
			if p.plain != nil {
				p.plain.close() // it ends with the context of a run before
			}
			scrape()
			b.ReportAllocs()
			start := cpu()
			n := 0
			for b.Loop() {
				scrape()
				n++
			}
			b.ReportMetric(float64((cpu()-start).Microseconds())/float64(n), "cpu-us/op")
		})
	}
}
