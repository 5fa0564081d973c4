// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Works of scale run only where they are named: each takes a minute and most of the
// 20,000 descriptors that a process may have.
func scaleWorks() []work {
	other := map[string]bool{} // only penstock speaks both versions on one port without TLS
	for _, c := range contenderOrder {
		other[c] = !strings.HasPrefix(c, "penstock")
	}
	return []work{
		{name: "streams-9000", unit: "chunk", run: many(9000, 2*time.Second, http1), length: 20 * time.Second, warm: time.Second, once: true, streams: 9000},
		{name: "streams-10000-h2", unit: "chunk", run: many(10000, 2*time.Second, http2), length: 20 * time.Second, warm: time.Second, once: true, streams: 10000, skip: other},
		{name: "frozen-5s", unit: "request", run: open(200, chatRequests()), length: 10 * time.Second, warm: time.Second, during: freeze},
		{name: "crowd-10000-h2", unit: "request", run: crowd(10000), once: true, skip: other},
	}
}

// reader opens one stream and reads it to its end.
type reader func(ctx context.Context, c *http.Client, addr string, body []byte, feed func([]byte)) error

// freeze stops one of the engines for 5 s, 2 s after the work began: its kernel goes on
// to take connections and requests.
func freeze(l *lab) {
	time.Sleep(2 * time.Second)
	l.frozen.Process.Signal(syscall.SIGSTOP)
	time.Sleep(5 * time.Second)
	l.frozen.Process.Signal(syscall.SIGCONT)
}

// many holds n streams open at a time, with a chunk every gap, for d after the last has
// begun. They come slowly, 1,000 a second, since so many connections at once would
// measure the queue of the listener.
func many(n int, gap time.Duration, read reader) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, d time.Duration) (sample, error) {
		n := n
		if d < 2*gap { // the warm-up
			n = min(n, 16)
		}
		ramp := time.Duration(n) * time.Second / 1000
		tokens := int((d + ramp) / gap)
		client := h2Client()
		defer client.CloseIdleConnections()
		return users(n, func(s *sample) error {
			time.Sleep(time.Duration(rand.Int64N(int64(ramp) + 1)))
			body := fmt.Appendf(nil, `{"model":"bench","stream":true,"max_tokens":%d,"seed":%d,"messages":[{"role":"user","content":"%s"}]}`,
				tokens, gap.Milliseconds(), prose(nil, sequence.Add(1), 60))
			found := stamps{s: s}
			if err := read(ctx, client, addr, body, found.feed); err != nil {
				return err
			}
			if s.n != tokens {
				return fmt.Errorf("a stream brought %d of %d chunks", s.n, tokens)
			}
			return nil
		})
	}
}

// http1 reads a stream over a connection of its own.
func http1(_ context.Context, _ *http.Client, addr string, body []byte, feed func([]byte)) error {
	c, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		return err
	}
	p := &peer{Conn: c, buf: make([]byte, 4<<10)}
	defer p.Close()
	m, err := openStream(p, body)
	if err != nil {
		return err
	}
	return p.body(m, feed)
}

// h2Client speaks HTTP/2 without TLS, over as many connections as the server's limit of
// streams asks for.
func h2Client() *http.Client {
	t := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	t.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: t}
}

func http2(ctx context.Context, c *http.Client, addr string, body []byte, feed func([]byte)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if name, value, ok := strings.Cut(strings.TrimSpace(authorization), ": "); ok {
		req.Header.Set(name, value)
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		return fmt.Errorf("a stream was answered with %s %s", res.Proto, res.Status)
	}
	b := make([]byte, 4096)
	for {
		n, err := res.Body.Read(b)
		feed(b[:n])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// crowd sends n requests at the same moment, as streams of HTTP/2. All must be answered.
func crowd(n int) func(context.Context, string, time.Duration) (sample, error) {
	return func(ctx context.Context, addr string, _ time.Duration) (sample, error) {
		client := h2Client()
		defer client.CloseIdleConnections()
		system := prose(nil, 1, 1024)
		start := make(chan struct{})
		time.AfterFunc(2*time.Second, func() { close(start) })
		return users(n, func(s *sample) error {
			body := chat(nil, system, sequence.Add(1)+1000, 900)
			<-start
			begin := time.Now()
			if err := http2(ctx, client, addr, body, func([]byte) {}); err != nil {
				return err
			}
			s.n++
			s.delays = append(s.delays, float64(time.Since(begin))/1e6)
			return nil
		})
	}
}
