// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// mortal is a replica that is killed and comes back at the same address.
type mortal struct {
	addr   string
	script func(net.Conn, *http.Request, []byte) bool // nil: tells
	mu     sync.Mutex
	now    *replica
}

// tells answers a chat request, streamed or not, at a human pace.
func tells(c net.Conn, _ *http.Request, body []byte) bool {
	pause := func() { time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) }
	pause()
	if !strings.Contains(string(body), `"stream":true`) {
		_, err := io.WriteString(c, jsonAnswer(200, okBody))
		return err == nil && rand.IntN(20) > 0
	}
	if rand.IntN(30) == 0 {
		io.WriteString(c, jsonAnswer(503, busy))
		return true
	}
	io.WriteString(c, sseHead)
	for range rand.IntN(10) {
		pause()
		if _, err := io.WriteString(c, chunk(token)); err != nil {
			return false
		}
	}
	_, err := io.WriteString(c, chunk(finish+done)+"0\r\n\r\n")
	return err == nil
}

func (m *mortal) start(t *testing.T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	u := &replica{open: map[net.Conn]bool{}}
	script := m.script
	if script == nil {
		script = tells
	}
	var err error
	if m.addr == "" {
		m.addr = "127.0.0.1:0"
	}
	for range 100 { // the old socket may linger
		if u.l, err = net.Listen("tcp", m.addr); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		t.Error(err)
		return
	}
	m.addr = u.l.Addr().String()
	u.wg.Go(func() {
		for {
			c, err := u.l.Accept()
			if err != nil {
				return
			}
			u.mu.Lock()
			u.open[c] = true
			u.mu.Unlock()
			u.wg.Go(func() { u.serve(c, script) })
		}
	})
	m.now = u
}

func (m *mortal) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.now == nil {
		return
	}
	u := m.now
	m.now = nil
	u.l.Close()
	u.mu.Lock()
	for c := range u.open {
		if rand.IntN(2) == 0 {
			c.(*net.TCPConn).SetLinger(0)
		}
		c.Close()
	}
	u.mu.Unlock()
	u.wg.Wait()
}

// Two hundred clients leave at random moments while replicas die and come back.
// Nothing may be left of any request, and each is counted once.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	before := runtime.NumGoroutine()
	var replicas [6]*mortal
	var urls []string
	for i := range replicas {
		replicas[i] = &mortal{}
		replicas[i].start(t)
		urls = append(urls, "http://"+replicas[i].addr)
	}
	f := newFixture(t, setup{}, urls...)
	stop := make(chan struct{})
	var weather sync.WaitGroup
	weather.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(5+rand.IntN(20)) * time.Millisecond):
			}
			m := replicas[rand.IntN(len(replicas))]
			m.kill()
			time.Sleep(time.Duration(rand.IntN(10)) * time.Millisecond)
			m.start(t)
			f.observe(fleet.PhaseReady, urls...)
		}
	})
	var tally chaosTally
	var clients sync.WaitGroup
	for range 200 {
		clients.Go(func() {
			tr := &http.Transport{MaxIdleConnsPerHost: 1}
			defer tr.CloseIdleConnections()
			for range 8 {
				tally.one(f, &http.Client{Transport: tr})
			}
		})
	}
	clients.Wait()
	close(stop)
	weather.Wait()
	f.settled()
	t.Logf("%s", tally.String())
	if tally.whole.Load() == 0 || tally.left.Load() == 0 {
		t.Error("the test tested nothing")
	}
	if n := tally.odd.Load(); n > 0 {
		t.Errorf("%d answers of a kind that must not be: %v", n, tally.first.Load())
	}
	fs := f.flow.Stats()
	if fs.Totals.Arrived != fs.Totals.Ended+fs.Totals.Refused && fs.Totals.Arrived != fs.Totals.Ended {
		t.Errorf("not each request ended once: %+v", fs.Totals)
	}
	f.records.mu.Lock()
	if n := uint64(len(f.records.all)); n != fs.Totals.Arrived {
		t.Errorf("%d records of %d requests", n, fs.Totals.Arrived)
	}
	f.records.mu.Unlock()
	for _, m := range replicas {
		m.kill()
	}
	f.srv.Close()
	f.relay.Close()
	f.flow.Close()
	f.waitFor("the goroutines' end", func() bool { runtime.GC(); return runtime.NumGoroutine() <= before+2 })
}

// chaosTally counts what clients saw.
type chaosTally struct {
	whole, left, broken, refused, odd atomic.Int64
	first                             atomic.Value
}

func (c *chaosTally) String() string {
	return fmt.Sprintf("whole %d, left %d, broken streams %d, refused %d", c.whole.Load(), c.left.Load(), c.broken.Load(), c.refused.Load())
}

func (c *chaosTally) strange(format string, a ...any) {
	c.odd.Add(1)
	c.first.CompareAndSwap(nil, fmt.Sprintf(format, a...))
}

// one sends one request and stays to its end, or leaves.
func (c *chaosTally) one(f *fixture, client *http.Client) {
	body := chatBody
	if rand.IntN(2) == 0 {
		body = streamReq
	}
	if rand.IntN(4) == 0 {
		c.rude(f, body)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	leaves := rand.IntN(2) == 0
	if leaves {
		time.AfterFunc(time.Duration(rand.IntN(15000))*time.Microsecond, cancel)
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(body))
	res, err := client.Do(req)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(res.Body)
		res.Body.Close()
	}
	switch {
	case ctx.Err() != nil:
		c.left.Add(1)
	case err != nil:
		// Only an answer that had begun may break.
		if res == nil {
			c.strange("%v", err)
			return
		}
		c.broken.Add(1)
	case res.StatusCode == 200 && (strings.HasSuffix(string(text), done) || string(text) == okBody):
		if strings.Contains(string(text), "stream_truncated") {
			c.broken.Add(1)
			return
		}
		c.whole.Add(1)
	case res.StatusCode == 502 || res.StatusCode == 503:
		c.refused.Add(1)
	default:
		c.strange("%d %s", res.StatusCode, text)
	}
}

// rude leaves over a bare connection: at once, half, or with a reset.
func (c *chaosTally) rude(f *fixture, body string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		c.strange("%v", err)
		return
	}
	defer conn.Close()
	c.left.Add(1)
	n := len(body)
	if rand.IntN(4) == 0 {
		n = rand.IntN(n)
	}
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:n])
	time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
	switch rand.IntN(3) {
	case 0:
		conn.(*net.TCPConn).SetLinger(0)
	case 1:
		conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		bufio.NewReader(conn).WriteTo(io.Discard)
	}
}
