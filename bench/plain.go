// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// serveReverseProxy is httputil.ReverseProxy as most Go gateways use it: round
// robin over the engines, flushed at once. The body is read before it is sent on,
// since forwarding the server's body directly cuts a few answers in ten thousand.
func serveReverseProxy(listen string, to []string) error {
	var next atomic.Uint64
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: to[next.Add(1)%uint64(len(to))]})
		},
	}
	return http.ListenAndServe(listen, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 0 {
			body := make([]byte, r.ContentLength)
			if _, err := io.ReadFull(r.Body, body); err != nil {
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		proxy.ServeHTTP(w, r)
	}))
}

// floor is the least that a Go proxy can do: it copies bytes between sockets and
// knows where a message ends. It has no timeouts, limits or error answers; it is
// here to show what remains for a real proxy to spend.
type floor struct {
	to   []string
	next atomic.Uint64
	mu   sync.Mutex
	idle map[string][]*peer
}

func serveRawFloor(listen string, to []string) error {
	f := &floor{to: to, idle: map[string][]*peer{}}
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go f.serve(newPeer(c))
	}
}

func (f *floor) take(addr string) (*peer, error) {
	f.mu.Lock()
	if l := f.idle[addr]; len(l) > 0 {
		p := l[len(l)-1]
		f.idle[addr] = l[:len(l)-1]
		f.mu.Unlock()
		return p, nil
	}
	f.mu.Unlock()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return newPeer(c), nil
}

func (f *floor) serve(client *peer) {
	defer client.Close()
	for {
		m, err := client.head()
		if err != nil {
			return
		}
		size := len(m.raw) + max(m.length, 0)
		whole, err := client.have(size)
		if err != nil {
			return
		}
		addr := f.to[f.next.Add(1)%uint64(len(f.to))]
		up, err := f.take(addr)
		if err != nil {
			return
		}
		if _, err = up.Write(whole); err == nil {
			client.skip(size)
			err = answer(client, up)
		}
		if err != nil {
			up.Close()
			return
		}
		f.mu.Lock()
		f.idle[addr] = append(f.idle[addr], up)
		f.mu.Unlock()
	}
}

// answer copies one answer from up to client as the bytes come.
func answer(client, up *peer) error {
	m, err := up.head()
	if err != nil {
		return err
	}
	left := len(m.raw) + max(m.length, 0)
	var c chunks
	head := len(m.raw)
	for {
		b := up.buf[up.r:up.w]
		done := false
		if m.chunked {
			var n int
			n, done = c.feed(b[head:], nil)
			b = b[:head+n]
			head = 0
		} else {
			b = b[:min(len(b), left)]
			left -= len(b)
			done = left == 0
		}
		if len(b) > 0 {
			if _, err := client.Write(b); err != nil {
				return err
			}
			up.skip(len(b))
		}
		if done {
			return nil
		}
		if err := up.fill(1); err != nil {
			return err
		}
	}
}
