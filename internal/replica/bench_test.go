// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

func cpuSeconds() float64 {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

// BenchmarkStreams runs eight replicas with 25 streams each and reports the CPU time
// of a frame, reader included, and how far the answers fall behind the modelled time.
func BenchmarkStreams(b *testing.B) {
	const replicas, streams, tokens = 8, 25, 200
	body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"%s"}],"max_tokens":%d,"ignore_eos":true,"stream":true}`, strings.Repeat("word ", 400), tokens)
	request := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	var addrs []string
	for range replicas {
		s, err := New(Options{Models: []string{"tiny"}, Listen: "127.0.0.1:0"})
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		if err := s.Start(b.Context()); err != nil {
			b.Fatal(err)
		}
		addrs = append(addrs, s.Addr())
	}
	var frames, elapsed float64
	cpu := cpuSeconds()
	for b.Loop() {
		var wg sync.WaitGroup
		var n atomic.Int64
		began := time.Now()
		for i := range replicas * streams {
			wg.Go(func() {
				conn, err := net.Dial("tcp", addrs[i%replicas])
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				if _, err := io.WriteString(conn, request); err != nil {
					b.Error(err)
					return
				}
				buf := make([]byte, 16<<10)
				for {
					k, err := conn.Read(buf)
					n.Add(int64(bytes.Count(buf[:k], []byte("data: "))))
					if err != nil {
						return
					}
				}
			})
		}
		wg.Wait()
		frames += float64(n.Load())
		elapsed += time.Since(began).Seconds()
	}
	b.ReportMetric((cpuSeconds()-cpu)/frames*1e6, "cpu-us/frame")
	b.ReportMetric(frames/elapsed, "frames/s")
	b.ReportMetric((cpuSeconds()-cpu)/elapsed, "cores")
}

// BenchmarkLongPrompt measures what a prompt of 400 KB costs before the engine sees it.
func BenchmarkLongPrompt(b *testing.B) {
	s, err := New(Options{Models: []string{"tiny"}})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"%s"}],"max_tokens":10}`, strings.Repeat("All work and no play. ", 400_000/22))
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r, err := http.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		var q chatRequest
		c := &call{}
		if err := readBody(r, &q); err != nil {
			b.Fatal(err)
		}
		var bad *apiError
		if c.tokens, bad = renderChat(*q.Messages, q.Tools, true); bad != nil {
			b.Fatal(bad)
		}
		if bad = s.finish(c, &q.params); bad != nil {
			b.Fatal(bad)
		}
		s.job(c)
	}
}
