// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
)

// Faults of replicas, each over real sockets. What a client sees and what is
// recorded stands in docs/reference/failures.md.

// several sends n requests of each kind, at most 16 at a time, and counts statuses;
// a transport error counts as 0, an incomplete stream as -1.
func (f *fixture) several(n int, pause time.Duration) map[int]int {
	var mu sync.Mutex
	seen := map[int]int{}
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i := range n {
		gate <- struct{}{}
		time.Sleep(pause)
		wg.Go(func() {
			defer func() { <-gate }()
			body := chatBody
			if i%2 == 1 {
				body = streamReq
			}
			res, text, err := f.try("/v1/chat/completions", body)
			status := 0
			if err == nil {
				status = res.StatusCode
				if i%2 == 1 && status == 200 && (!strings.HasSuffix(text, done) || strings.Contains(text, `"error"`)) {
					status = -1
				}
			}
			mu.Lock()
			defer mu.Unlock()
			seen[status]++
		})
	}
	wg.Wait()
	return seen
}

// answers is a healthy engine: an answer, or a stream of two tokens.
func answers(c net.Conn, _ *http.Request, body []byte) bool {
	text := jsonAnswer(200, okBody)
	if strings.Contains(string(body), `"stream":true`) {
		text = stream(token, token, finish, done)
	}
	_, err := io.WriteString(c, text)
	return err == nil
}

func TestKilledReplicaLosesNoRequest(t *testing.T) {
	a, b, c := scripted(t, answers), scripted(t, answers), scripted(t, answers)
	f := newFixture(t, setup{}, a.url, b.url, c.url)
	f.several(30, 0)
	time.AfterFunc(20*time.Millisecond, a.kill)
	if seen := f.several(200, time.Millisecond); seen[200] != 200 {
		t.Errorf("%v", seen)
	}
	f.settled()
}

func TestRestartedInPlace(t *testing.T) {
	m := &mortal{script: answers}
	m.start(t)
	other := scripted(t, answers)
	f := newFixture(t, setup{}, "http://"+m.addr, other.url)
	for range 5 {
		f.several(8, 0)
		m.kill()
		m.start(t)
	}
	if seen := f.several(40, 0); seen[200] != 40 {
		t.Errorf("%v", seen)
	}
	f.settled()
	m.kill()
}

// A burst of 503 at one replica does not reach a client; a 500 of a healthy engine
// is an answer and does, until the replica is ejected for it.
func TestBurstsOfErrors(t *testing.T) {
	for status, most := range map[int]int{503: 0, 500: 20} {
		sick := atomic.Bool{}
		bad := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
			if sick.Load() {
				_, err := io.WriteString(c, jsonAnswer(status, `{"error":{"message":"boom"}}`))
				return err == nil
			}
			return answers(c, r, body)
		})
		f := newFixture(t, setup{}, bad.url, scripted(t, answers).url, scripted(t, answers).url)
		for range 3 {
			sick.Store(true)
			if seen := f.several(40, 0); seen[200]+seen[status] != 40 || seen[status] > most {
				t.Errorf("burst of %d: %v", status, seen)
			}
			sick.Store(false)
			f.several(10, 0)
		}
		f.settled()
	}
}

// All replicas refuse for a while. They serve again as soon as they can, not after
// the cool-down of a breaker.
func TestAllRefuseAndComeBack(t *testing.T) {
	var sick atomic.Bool
	script := func(c net.Conn, r *http.Request, body []byte) bool {
		if sick.Load() {
			_, err := io.WriteString(c, jsonAnswer(503, busy))
			return err == nil
		}
		return answers(c, r, body)
	}
	var urls []string
	for range 4 {
		urls = append(urls, scripted(t, script).url)
	}
	f := newFixture(t, setup{}, urls...)
	sick.Store(true)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		if seen := f.several(8, 0); seen[503] != 8 {
			t.Fatalf("during the outage: %v", seen)
		}
		f.observe(fleet.PhaseReady, urls...)
		time.Sleep(50 * time.Millisecond)
	}
	sick.Store(false)
	back := time.Now()
	for f.several(4, 0)[200] != 4 {
		if time.Since(back) > 2*time.Second {
			t.Fatal("not serving 2 s after the replicas' return")
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Logf("serving %v after the return", time.Since(back).Round(time.Millisecond))
	f.settled()
}

func TestAllDownAndBack(t *testing.T) {
	ms := [2]*mortal{{script: answers}, {script: answers}}
	var urls []string
	for _, m := range ms {
		m.start(t)
		urls = append(urls, "http://"+m.addr)
	}
	f := newFixture(t, setup{}, urls...)
	for _, m := range ms {
		m.kill()
	}
	if seen := f.several(20, 0); seen[503] != 20 {
		t.Errorf("all down: %v", seen)
	}
	for _, m := range ms {
		m.start(t)
	}
	f.waitFor("service", func() bool { return f.several(2, 0)[200] == 2 })
	f.settled()
	for _, m := range ms {
		m.kill()
	}
}

// A frozen replica: its kernel takes connections and requests, nobody answers. A
// request moves on when the replica has shown no sign of life, and not before.
func TestFrozenReplica(t *testing.T) {
	thaw := make(chan struct{})
	defer close(thaw)
	ice := scripted(t, func(net.Conn, *http.Request, []byte) bool { <-thaw; return false })
	well := scripted(t, answers)
	for _, c := range []struct {
		name        string
		slow, moves bool
		life        time.Duration
	}{
		{"no sign of life", true, true, time.Minute},
		// The last sign is from after the test, however long that takes.
		{"probes time out, bytes flow", true, false, -time.Hour},
		{"probes answer", false, false, time.Minute},
	} {
		f := newFixture(t, setup{options: Options{Lifeless: 300 * time.Millisecond}}, ice.url)
		f.state(func(s *fleet.Snapshot) {
			s.Endpoints = append(s.Endpoints, s.Endpoints[0])
			s.Endpoints[1].ID, s.Endpoints[1].URL = "r1", well.url
		})
		tell := func() {
			f.state(func(s *fleet.Snapshot) {
				s.Endpoints[0].Slow, s.Endpoints[0].LifeAt = c.slow, fleet.At(time.Now().Add(-c.life))
			})
		}
		tell()
		patience := 1500 * time.Millisecond // a request that does not move is stuck
		if c.moves {
			patience = time.Minute
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
					tell()
				}
			}
		}()
		moved, stuck := 0, 0
		for range 4 {
			req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(streamReq))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				stuck++
				break
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		close(stop)
		cancel()
		moved = int(f.metric("retries_total", "no_sign_of_life"))
		if (moved > 0) != c.moves || (stuck > 0) == c.moves {
			t.Errorf("%s: moved %d, stuck %d", c.name, moved, stuck)
		}
		if c.moves && f.metric("maybe_duplicates_total") != float64(moved) {
			t.Errorf("%s: a move is not counted as a possible duplicate", c.name)
		}
		f.settled()
	}
}

// Answers that are broken in ways of their own.
func TestStrangeAnswers(t *testing.T) {
	sse := sseHead + chunk(token)
	for _, c := range []struct {
		name, answer string
		status       int
		contains     string
	}{
		{"garbage", "\x00\x01\x02 what is this\r\n\r\nCLOSE", 502, "replica_bad_answer"},
		{"another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\nCLOSE", 502, "replica_bad_answer"},
		{"enormous header", "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 1<<20) + "\r\n\r\n", 502, "replica_bad_answer"},
		{"endless header", "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 1<<17), 502, "replica_bad_answer"},
		{"half-closed in a stream", sse + "HALF", 200, "stream_truncated"},
		{"dies in a stream", sse + "CLOSE", 200, "stream_truncated"},
		{"dies in a chunk", sseHead + "400\r\ndata: {CLOSE", 200, "stream_truncated"},
		{"garbage in the framing", sse + "zz\r\n", 200, "stream_truncated"},
	} {
		text, closes := strings.CutSuffix(c.answer, "CLOSE")
		text, half := strings.CutSuffix(text, "HALF")
		u := scripted(t, func(conn net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(conn, text)
			if half {
				conn.(*net.TCPConn).CloseWrite()
				io.Copy(io.Discard, conn)
			}
			return !closes && !half
		})
		f := newFixture(t, setup{}, u.url)
		res, body := f.chat(streamReq)
		if res.StatusCode != c.status || !strings.Contains(body, c.contains) {
			t.Errorf("%s: %d %.300s", c.name, res.StatusCode, body)
		}
		if n := u.seen.Load(); n != 1 {
			t.Errorf("%s: sent %d times", c.name, n)
		}
		f.settled()
	}
}

func TestTricklingReplica(t *testing.T) {
	whole := stream(token, finish, done)
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		for i := range len(whole) {
			if _, err := io.WriteString(c, whole[i:i+1]); err != nil {
				return false
			}
			if i%16 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		return true
	})
	f := newFixture(t, setup{}, u.url)
	for range 2 {
		if res, body := f.chat(streamReq); res.StatusCode != 200 || body != token+finish+done {
			t.Errorf("%d %q", res.StatusCode, body)
		}
	}
	f.settled()
}

// A stream that stalls without an end is ended with an error; one that is slower
// than a blink is not.
func TestStalledStream(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, sseHead+chunk(token))
		time.Sleep(60 * time.Millisecond)
		io.WriteString(c, chunk(token))
		<-hold
		return false
	})
	f := newFixture(t, setup{relay: relay.Options{Stall: time.Second}}, u.url)
	res, body := f.chat(streamReq)
	if res.StatusCode != 200 || strings.Count(body, `"content":"x"`) != 2 || !strings.Contains(body, "stalled") || !strings.HasSuffix(body, done) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if o := f.outcome(1); o.Kind != "timeout" {
		t.Errorf("%+v", o)
	}
	f.settled()
}

// A network that drops everything towards one replica: the dial runs out, and the
// request goes elsewhere.
func TestNetworkThatDrops(t *testing.T) {
	hole, well := "127.255.255.1:9", scripted(t, answers)
	o := relay.Options{Connect: 500 * time.Millisecond, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr == hole {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return (&net.Dialer{}).DialContext(context.WithoutCancel(ctx), network, addr) // also on a slow machine
	}}
	f := newFixture(t, setup{relay: o}, "http://"+hole, well.url)
	if seen := f.several(20, 0); seen[200] != 20 {
		t.Errorf("%v", seen)
	}
	f.settled()
}

// Requests are routed without any scrape, and by old ones.
func TestScrapeOutage(t *testing.T) {
	a, b := scripted(t, answers), scripted(t, answers)
	f := newFixture(t, setup{}, a.url, b.url)
	f.state(func(s *fleet.Snapshot) {
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			e.Running, e.ScrapedAt, e.ScrapeError = fleet.Known(3, fleet.At(time.Now().Add(-time.Hour))), fleet.At(time.Now().Add(-time.Hour)), "timeout"
		}
	})
	if seen := f.several(40, 0); seen[200] != 40 {
		t.Errorf("%v", seen)
	}
	if a.seen.Load() == 0 || b.seen.Load() == 0 {
		t.Error("one replica got everything")
	}
	f.settled()
}

// state changes a copy of the last snapshot and gives it to the pool.
func (f *fixture) state(change func(*fleet.Snapshot)) {
	f.version++
	old := f.flow.Snapshot()
	s := &fleet.Snapshot{Pool: old.Pool, Version: f.version, At: fleet.At(time.Now()), Endpoints: append([]fleet.EndpointState(nil), old.Endpoints...)}
	change(s)
	f.flow.Observe(s)
}
