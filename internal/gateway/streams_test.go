// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/relay"
)

// The life of streams and of the connections below them.

// dialed is a client with one connection of its own.
type dialed struct {
	*net.TCPConn
	r *bufio.Reader
}

func (f *fixture) dial() *dialed {
	f.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return &dialed{c.(*net.TCPConn), bufio.NewReader(c)}
}

func (d *dialed) ask(body, headers string) {
	fmt.Fprintf(d, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n%s", headers, len(body), body)
}

func (d *dialed) answer() (*http.Response, string, error) {
	res, err := http.ReadResponse(d.r, nil)
	if err != nil {
		return nil, "", err
	}
	text, err := io.ReadAll(res.Body)
	return res, string(text), err
}

// One connection carries streams and answers in turn, also where the next request
// is there before the stream ends.
func TestConnectionAfterAStream(t *testing.T) {
	u := scripted(t, answers)
	f := newFixture(t, setup{}, u.url)
	d := f.dial()
	for i := range 12 {
		body, want := streamReq, token+token+finish+done
		if i%3 == 2 {
			body, want = chatBody, okBody
		}
		d.ask(body, "")
		if i%4 == 0 { // in a pipe: two more at once
			d.ask(streamReq, "")
			d.ask(chatBody, "")
		}
		for n := range 3 {
			if n > 0 && i%4 != 0 {
				break
			}
			if n == 1 {
				want = token + token + finish + done
			} else if n == 2 {
				want = okBody
			}
			res, text, err := d.answer()
			if err != nil || res.StatusCode != 200 || text != want {
				t.Fatalf("request %d.%d: %v %q", i, n, err, text)
			}
			if res.Header.Get("Date") == "" || res.Header.Get(headerRequestID) == "" {
				t.Errorf("header: %v", res.Header)
			}
		}
		time.Sleep(time.Millisecond)
	}
	d.ask(streamReq, "Connection: close\r\n")
	if res, text, err := d.answer(); err != nil || !res.Close || text != token+token+finish+done {
		t.Errorf("%v %+v %q", err, res, text)
	}
	if _, err := d.r.ReadByte(); err != io.EOF {
		t.Errorf("not closed: %v", err)
	}
	f.settled()
}

// Many short streams at a time: none may be cut, and all bytes are right.
func TestManyShortStreams(t *testing.T) {
	u := scripted(t, answers)
	f := newFixture(t, setup{}, u.url, scripted(t, answers).url)
	want := token + token + finish + done
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			d := f.dial()
			for i := range 40 {
				d.ask(streamReq, "")
				if _, text, err := d.answer(); err != nil || text != want {
					t.Errorf("stream %d: %v %q", i, err, text)
					return
				}
			}
		})
	}
	wg.Wait()
	f.settled()
}

// A client that reads nothing for a while, then one byte at a time, gets every byte;
// meanwhile the gateway holds no more than a few buffers, and the replica waits.
func TestSlowReaderIsServedInBoundedMemory(t *testing.T) {
	const total = 24 << 20
	var sent atomic.Int64
	block := bytes.Repeat([]byte("0123456789abcdef"), 1024)
	sum := make(chan [32]byte, 1)
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
		h := sha256.New()
		for n := 0; n < total; n += len(block) {
			if _, err := fmt.Fprintf(c, "%x\r\n%s\r\n", len(block), block); err != nil {
				return false
			}
			h.Write(block)
			sent.Add(int64(len(block)))
		}
		io.WriteString(c, "0\r\n\r\n")
		sum <- [32]byte(h.Sum(nil))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	d := f.dial()
	d.ask(streamReq, "")
	var before, now int64
	f.waitFor("the standstill", func() bool {
		before, now = now, sent.Load()
		time.Sleep(50 * time.Millisecond)
		return now > 0 && now == before
	})
	if now >= total {
		t.Fatal("the replica was not held back")
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	t.Logf("the replica stands at %d KiB; heap %d KiB", now>>10, m.HeapInuse>>10)
	for range 5 {
		b, err := d.r.ReadByte()
		if err != nil || b == 0 {
			t.Fatal(err)
		}
		d.r.UnreadByte()
		time.Sleep(5 * time.Millisecond)
	}
	_, text, err := d.answer()
	if err != nil || sha256.Sum256([]byte(text)) != <-sum {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	f.settled()
}

// How long a replica does not know that nobody waits. The figures are logged: a
// busy machine adds its own.
func TestLeavingIsSeenAtOnce(t *testing.T) {
	for _, window := range []string{"", sseHead, sseHead + chunk(token)} {
		seen := make(chan time.Time, 1)
		here := make(chan struct{}, 1)
		u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(c, window)
			here <- struct{}{}
			c.Read(make([]byte, 1))
			seen <- time.Now()
			return false
		})
		f := newFixture(t, setup{}, u.url)
		var delays []time.Duration
		for range 50 {
			d := f.dial()
			d.ask(streamReq, "")
			<-here
			if strings.Contains(window, "data") {
				d.r.ReadString('}')
			}
			left := time.Now()
			d.Close()
			delays = append(delays, (<-seen).Sub(left))
		}
		slices.Sort(delays)
		t.Logf("window %.20q: median %v, max %v", window, delays[25], delays[49])
		f.settled()
	}
}

// flowing starts n streams that flow until finish is closed, over connections of
// their own, and returns how many ended whole.
func (f *fixture) flowing(n int, headers string) (begun chan struct{}, ended func() (whole, cut int)) {
	begun = make(chan struct{}, n)
	var wg sync.WaitGroup
	var whole, cut atomic.Int64
	for range n {
		d := f.dial()
		d.ask(streamReq, headers) // at once: a connection that says nothing is closed after a while
		wg.Go(func() {
			res, err := http.ReadResponse(d.r, nil)
			if err == nil {
				_, err = io.ReadFull(res.Body, make([]byte, len(token)))
			}
			begun <- struct{}{}
			var rest []byte
			if err == nil {
				rest, err = io.ReadAll(res.Body)
			}
			if err == nil && bytes.HasSuffix(rest, []byte(finish+done)) {
				whole.Add(1)
			} else {
				cut.Add(1)
				f.t.Logf("a stream ended with %v and %q", err, rest[max(0, len(rest)-200):])
			}
		})
	}
	for range n {
		<-begun
	}
	return begun, func() (int, int) { wg.Wait(); return int(whole.Load()), int(cut.Load()) }
}

// until streams tokens until the channel is closed, then ends in good order.
func until(end chan struct{}) func(net.Conn, *http.Request, []byte) bool {
	return func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, sseHead)
		for {
			if _, err := io.WriteString(c, chunk(token)); err != nil {
				return false
			}
			select {
			case <-end:
				_, err := io.WriteString(c, chunk(finish+done)+"0\r\n\r\n")
				return err == nil
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
}

func TestReloadWithStreams(t *testing.T) {
	end := make(chan struct{})
	f := newFixture(t, setup{}, scripted(t, until(end)).url)
	_, ended := f.flowing(500, "")
	for range 5 {
		cat, err := NewCatalogue([]Pool{{Name: "p", Flow: f.flow, Models: []Model{{Name: "other"}}}})
		if err != nil {
			t.Fatal(err)
		}
		f.h.SetCatalogue(cat)
		if err := f.flow.SetPolicy("least-requests"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	close(end)
	if whole, cut := ended(); whole != 500 || cut != 0 {
		t.Errorf("%d whole, %d cut", whole, cut)
	}
	f.settled()
}

// Shutdown waits for streams, and refuses new connections meanwhile; Close cuts.
func TestShutdownWithStreams(t *testing.T) {
	for _, cuts := range []bool{false, true} {
		end := make(chan struct{})
		f := newFixture(t, setup{}, scripted(t, until(end)).url)
		idle := f.dial()
		idle.ask(streamReq, "") // will wait for its next request
		_, ended := f.flowing(50, "")
		f.h.Drain()
		shut := make(chan error, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		go func() { shut <- f.srv.Shutdown(ctx) }()
		f.waitFor("the closed door", func() bool {
			c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
			if err == nil {
				c.Close()
			}
			return err != nil
		})
		select {
		case err := <-shut:
			t.Errorf("Shutdown did not wait: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		if cuts {
			f.srv.Close()
		} else {
			close(end)
		}
		whole, cut := ended()
		if want := map[bool]int{false: 50, true: 0}[cuts]; whole != want || whole+cut != 50 {
			t.Errorf("cuts %v: %d whole, %d cut", cuts, whole, cut)
		}
		if err := <-shut; err != nil && !cuts {
			t.Error(err)
		}
		cancel()
		if cuts {
			close(end)
		}
		f.settled()
	}
}

// A crowd at once: all are answered, and nothing is left of it.
func TestCrowd(t *testing.T) {
	const crowd = 1500
	f := newFixture(t, setup{}, scripted(t, answers).url, scripted(t, answers).url)
	clients := make([]*dialed, crowd)
	for i := range clients {
		clients[i] = f.dial()
	}
	var wg sync.WaitGroup
	var odd atomic.Int64
	for i, d := range clients {
		wg.Go(func() {
			body := chatBody
			if i%2 == 0 {
				body = streamReq
			}
			d.ask(body, "")
			if res, _, err := d.answer(); err != nil || res.StatusCode != 200 {
				odd.Add(1)
			}
		})
	}
	wg.Wait()
	if n := odd.Load(); n > 0 {
		t.Errorf("%d of %d were not answered", n, crowd)
	}
	f.settled()
}

// A body above the limit is refused without being held, and without reaching a
// replica.
func TestHugeBody(t *testing.T) {
	u := scripted(t, answers)
	f := newFixture(t, setup{}, u.url)
	d := f.dial()
	fmt.Fprintf(d, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 100<<20)
	go func() {
		block := bytes.Repeat([]byte(" "), 1<<20)
		for range 100 {
			if _, err := d.Write(block); err != nil {
				return
			}
		}
	}()
	res, text, err := d.answer()
	if err != nil || res.StatusCode != 413 || !strings.Contains(text, "33554432") {
		t.Errorf("%v %+v %s", err, res, text)
	}
	d.Close()
	f.settled()
	if u.seen.Load() != 0 {
		t.Error("it was sent on")
	}
}

// The fixture takes the path that this run is about.
func TestPathOfStreams(t *testing.T) {
	if testEpoll != relay.New(relay.Options{Epoll: testEpoll}).Polls() {
		t.Error("the path under test is not the one that is named")
	}
	end := make(chan struct{})
	f := newFixture(t, setup{}, scripted(t, until(end)).url)
	_, ended := f.flowing(3, "")
	want := 0
	if testEpoll {
		want = 3
	}
	if n := f.srv.back.Streams(); n != want {
		t.Errorf("%d streams in the set, want %d", n, want)
	}
	close(end)
	ended()
	f.settled()
}
