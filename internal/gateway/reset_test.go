// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// flood opens and resets streams over one HTTP/2 connection until n of them were sent
// or the server ends the connection. It returns how many were sent.
func resetFlood(t *testing.T, addr string, n int) (sent int, ended bool) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(60 * time.Second))
	io.WriteString(c, http2.ClientPreface)
	fr := http2.NewFramer(c, c)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	away := make(chan bool, 1)
	go func() {
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				away <- true
				return
			}
			if g, ok := f.(*http2.GoAwayFrame); ok && g.ErrCode != http2.ErrCodeNo {
				away <- true
				return
			}
		}
	}()
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for i := range n {
		head.Reset()
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/v1/chat/completions"}, {"content-type", "application/json"}} {
			enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		id := uint32(2*i + 1)
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true})
		if err == nil {
			err = fr.WriteData(id, true, []byte(streamReq))
		}
		if err == nil {
			err = fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		if err != nil {
			return i, true
		}
	}
	select {
	case <-away:
		return n, true
	case <-time.After(100 * time.Millisecond):
		return n, false
	}
}

// CVE-2023-44487: a client that opens streams and resets them at once. However many it
// sends, no more run than streams may be open, each gives back what it held, the
// replicas see that they were left, and other clients are served meanwhile.
func TestAdvisoryRapidReset(t *testing.T) {
	var mu sync.Mutex
	open, peak := 0, 0
	u := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		if !strings.Contains(string(body), `"stream":true`) {
			io.WriteString(c, jsonAnswer(200, okBody))
			return true
		}
		mu.Lock()
		open++
		peak = max(peak, open)
		mu.Unlock()
		c.Read(make([]byte, 1)) // until it is left
		mu.Lock()
		open--
		mu.Unlock()
		return false
	})
	f := newFixture(t, setup{}, u.url)
	addr := strings.TrimPrefix(f.url, "http://")
	stop, most := make(chan struct{}), make(chan int64, 1)
	go func() {
		n := int64(0)
		for {
			n = max(n, f.h.Stats().InFlight)
			select {
			case <-stop:
				most <- n
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			sent, ended := resetFlood(t, addr, 6000)
			t.Logf("%d streams were opened and reset; the server ended the connection: %v", sent, ended)
		})
	}
	for range 5 {
		if res, text := f.chat(chatBody); res.StatusCode != 200 {
			t.Errorf("another client got %d %s", res.StatusCode, text)
		}
	}
	wg.Wait()
	f.settled()
	close(stop)
	if n := <-most; n > 2*maxStreams+8 {
		t.Errorf("%d requests ran at a time over two connections of %d streams", n, maxStreams)
	}
	f.waitFor("the replicas' connections", func() bool { mu.Lock(); defer mu.Unlock(); return open == 0 })
	if res, _ := f.chat(chatBody); res.StatusCode != 200 {
		t.Errorf("after the flood: %d", res.StatusCode)
	}
	t.Logf("%d requests of the flood reached the replica, at most %d at a time", u.seen.Load(), peak)
}
