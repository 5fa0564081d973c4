// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
)

// refused returns the URL of a port that nobody listens on: a privileged one, so
// that no test elsewhere happens to take it.
func refused(t *testing.T) string {
	t.Helper()
	return "http://127.0.0.1:1"
}

// resets takes a request and resets the connection.
func resets(t *testing.T, first string) *replica {
	return scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, first)
		c.(*net.TCPConn).SetLinger(0)
		return false
	})
}

const (
	busy     = `{"error":{"message":"The engine is currently busy","type":"Service Unavailable","param":null,"code":503}}`
	shutdown = `{"error":{"message":"cannot schedule new futures after shutdown","type":"Internal Server Error","param":null,"code":500}}`
	broken   = `{"error":{"message":"CUDA error","type":"Internal Server Error","param":null,"code":500}}`
)

func TestRetryRule(t *testing.T) {
	good := func() *replica { return says(t, jsonAnswer(200, okBody)) }
	for _, c := range []struct {
		name   string
		urls   func() []string // in the order of tries
		status int
		body   string // must be part of the answer
		failed string // attempts after which another endpoint was asked for
		dup    bool
		kind   string
	}{
		{"connect, connect, good", func() []string { return []string{refused(t), refused(t), good().url} }, 200, okBody, "connect_error connect_error", false, "ok"},
		{"all refuse to connect", func() []string { return []string{refused(t), refused(t)} }, 503, "replica_unreachable", "connect_error connect_error", false, "connect_error"},
		{"end in place of an answer", func() []string { return []string{says(t, "CLOSE").url, good().url} }, 200, okBody, "broken", true, "ok"},
		{"reset in place of an answer", func() []string { return []string{resets(t, "").url, good().url} }, 200, okBody, "broken", true, "ok"},
		{"end within the head", func() []string { return []string{says(t, "HTTP/1.1 200 OK\r\nConteCLOSE").url, good().url} }, 200, okBody, "broken", true, "ok"},
		{"end behind the head", func() []string { return []string{says(t, sseHead+"CLOSE").url, good().url} }, 200, okBody, "broken", true, "ok"},
		{"ends twice", func() []string {
			return []string{says(t, "CLOSE").url, says(t, "CLOSE").url, good().url}
		}, 502, "replica_connection_lost", "broken", true, "broken"},
		{"end, connect, good", func() []string { return []string{says(t, "CLOSE").url, refused(t), good().url} }, 200, okBody, "broken connect_error", true, "ok"},
		{"busy", func() []string { return []string{says(t, jsonAnswer(503, busy)).url, good().url} }, 200, okBody, "engine_error", false, "ok"},
		{"all busy", func() []string {
			return []string{says(t, jsonAnswer(503, busy)).url, says(t, jsonAnswer(503, strings.Replace(busy, "currently", "still", 1))).url, good().url}
		}, 503, "is still busy", "engine_error", false, "engine_error"},
		{"busy, then unreachable", func() []string { return []string{says(t, jsonAnswer(503, busy)).url, refused(t)} }, 503, busy, "engine_error connect_error", false, "engine_error"},
		{"busy, then an end", func() []string { return []string{says(t, jsonAnswer(503, busy)).url, says(t, "CLOSE").url, good().url} }, 503, busy, "engine_error", false, "engine_error"},
		{"only one, busy", func() []string { return []string{says(t, jsonAnswer(503, busy)).url} }, 503, busy, "engine_error", false, "engine_error"},
		{"shuts down", func() []string { return []string{says(t, jsonAnswer(500, shutdown)).url, good().url} }, 200, okBody, "engine_error", false, "ok"},
		{"500 of its own", func() []string { return []string{says(t, jsonAnswer(500, broken)).url, good().url} }, 500, broken, "", false, "engine_error"},
		{"400", func() []string { return []string{says(t, jsonAnswer(400, `{"object":"error"}`)).url, good().url} }, 400, `{"object":"error"}`, "", false, "client_error"},
		{"429", func() []string { return []string{says(t, jsonAnswer(429, `{}`)).url, good().url} }, 429, `{}`, "", false, "client_error"},
		{"garbage", func() []string { return []string{says(t, "garbage\r\n\r\nCLOSE").url, good().url} }, 502, "replica_bad_answer", "", false, "broken"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, setup{}, c.urls()...)
			res, body := f.chat(chatBody)
			if res.StatusCode != c.status || !strings.Contains(body, c.body) {
				t.Fatalf("%d %s", res.StatusCode, body)
			}
			if own := res.Header.Get("X-Penstock-Error-Source") == "gateway"; own != (strings.HasPrefix(c.body, "replica_")) {
				t.Errorf("header %v", res.Header)
			}
			o := f.outcome(1)
			if o.Kind != c.kind || o.MaybeDuplicate != c.dup || o.Status != c.status {
				t.Errorf("outcome %+v", o)
			}
			var failed []string
			for _, a := range o.Attempts {
				failed = append(failed, a.Kind)
			}
			if got := strings.Join(failed, " "); got != c.failed {
				t.Errorf("failed attempts %q, want %q", got, c.failed)
			}
			f.settled()
		})
	}
}

// A replica that answers that it has no such adapter is not the last word: one other is
// asked. That something else is missing is.
func TestRetryWhereTheAdapterIs(t *testing.T) {
	const (
		lacks = `{"object":"error","message":"The model ` + "`lora`" + ` does not exist.","type":"NotFoundError","param":null,"code":404}`
		other = `{"detail":"Not Found"}`
	)
	adapterBody := strings.Replace(chatBody, `"m"`, `"lora"`, 1)
	good := func() string { return says(t, jsonAnswer(200, okBody)).url }
	for _, c := range []struct {
		name, body string
		urls       []string
		status     int
		part       string
		failed     int
	}{
		{"elsewhere", adapterBody, []string{says(t, jsonAnswer(404, lacks)).url, good()}, 200, okBody, 1},
		{"nowhere", adapterBody, []string{says(t, jsonAnswer(404, lacks)).url, says(t, jsonAnswer(404, lacks)).url, good()}, 404, "does not exist", 1},
		{"only one", adapterBody, []string{says(t, jsonAnswer(404, lacks)).url}, 404, "does not exist", 1},
		{"something else", adapterBody, []string{says(t, jsonAnswer(404, other)).url, good()}, 404, "Not Found", 0},
		{"the base model", chatBody, []string{says(t, jsonAnswer(404, strings.ReplaceAll(lacks, "lora", "m"))).url, good()}, 404, "does not exist", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, setup{}, c.urls...)
			res, body := f.chat(c.body)
			if res.StatusCode != c.status || !strings.Contains(body, c.part) {
				t.Fatalf("%d %s", res.StatusCode, body)
			}
			if o := f.outcome(1); o.Status != c.status || len(o.Attempts) != c.failed {
				t.Errorf("outcome %+v", o)
			}
			f.settled()
		})
	}
}

func TestRetryCountsOnce(t *testing.T) {
	var seen atomic.Int64
	count := func(answer string) string {
		text, closes := strings.CutSuffix(answer, "CLOSE")
		return scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			seen.Add(1)
			io.WriteString(c, text)
			return !closes
		}).url
	}
	f := newFixture(t, setup{}, count("CLOSE"), count("CLOSE"), count("CLOSE"))
	f.chat(chatBody)
	if seen.Load() != 2 || f.metric("retries_total", "broken") != 1 || f.metric("maybe_duplicates_total") != 1 {
		t.Errorf("sent %d times; metrics %v %v", seen.Load(), f.metric("retries_total"), f.metric("maybe_duplicates_total"))
	}
}

func TestNoRetryOnTimeout(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	hang := func(first string) *replica {
		return scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(c, first)
			<-release
			return false
		})
	}
	for _, first := range []string{"", sseHead} {
		slow, good := hang(first), says(t, jsonAnswer(200, okBody))
		f := newFixture(t, setup{relay: relay.Options{FirstByte: 50 * time.Millisecond}}, slow.url, good.url)
		res, body := f.chat(chatBody)
		if res.StatusCode != 504 || !strings.Contains(body, "replica_timeout") || good.seen.Load() != 0 {
			t.Errorf("%d %s, the other replica got %d", res.StatusCode, body, good.seen.Load())
		}
		if o := f.outcome(1); o.Kind != "timeout" {
			t.Errorf("%+v", o)
		}
		f.settled()
	}
}

func TestNoRetryAfterTheFirstByte(t *testing.T) {
	bad := says(t, sseHead+chunk(token)+"CLOSE")
	good := says(t, stream(token, finish, done))
	f := newFixture(t, setup{}, bad.url, good.url)
	_, body := f.chat(streamReq)
	if !strings.HasPrefix(body, token) || !strings.Contains(body, "stream_truncated") || good.seen.Load() != 0 {
		t.Errorf("%s", body)
	}
	if o := f.outcome(1); o.Kind != "truncated" {
		t.Errorf("%+v", o)
	}
	f.settled()
}

// The 500 of a replica that the fleet knows to drain goes elsewhere whatever it says.
func TestDrainingReplica(t *testing.T) {
	in := make(chan struct{})
	out := make(chan struct{})
	bad := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		close(in)
		<-out
		io.WriteString(c, jsonAnswer(500, broken))
		return true
	})
	good := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, bad.url, good.url)
	result := make(chan int, 1)
	go func() {
		res, _, err := f.try("/v1/chat/completions", chatBody)
		if err != nil {
			result <- 0
			return
		}
		result <- res.StatusCode
	}()
	<-in
	f.version++
	f.flow.Observe(&fleet.Snapshot{Pool: "p", Version: f.version, At: fleet.At(time.Now()), Endpoints: []fleet.EndpointState{
		{Endpoint: fleet.Endpoint{ID: "r0", URL: bad.url, Phase: fleet.PhaseDraining, Models: []string{"m"}, Rank: -1}},
		{Endpoint: fleet.Endpoint{ID: "r1", URL: good.url, Phase: fleet.PhaseReady, Models: []string{"m"}, Rank: -1}},
	}})
	close(out)
	if s := <-result; s != 200 {
		t.Errorf("status %d", s)
	}
	f.settled()
}

func TestNoReplicaReady(t *testing.T) {
	f := newFixture(t, setup{})
	f.observe(fleet.PhaseLoading, refused(t))
	res, body := f.chat(chatBody)
	if res.StatusCode != 503 || res.Header.Get("Retry-After") == "" || !strings.Contains(body, `"code":"no_replica"`) {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, body)
	}
	res, body = f.post("/v1/messages", `{"model":"m","messages":[],"max_tokens":1}`)
	if res.StatusCode != 503 || !strings.Contains(body, `"type":"overloaded_error"`) || !strings.Contains(body, `"request_id":"gw-1-`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	f.settled()
}

// A keep-alive race costs a fresh connection, not a failed request.
func TestKeepAliveRaceIsSaved(t *testing.T) {
	var n atomic.Int64
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		if n.Add(1)%3 == 0 {
			return false // read and closed, no byte of an answer
		}
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	for i := range 20 {
		if res, body := f.chat(chatBody); res.StatusCode != 200 {
			t.Fatal(i, res.StatusCode, body)
		}
	}
	if f.metric("retries_total", "stale_connection") == 0 || f.metric("maybe_duplicates_total") != f.metric("retries_total", "stale_connection") {
		t.Error("the saves were not counted")
	}
	f.settled()
}

// Engines close idle connections after a few seconds; clients pause about as long.
// Played twenty times faster, with gaps around the moment of closing, no client sees
// a failure: neither where connections are dropped in time, nor where they are not.
func TestPausesAroundTheKeepAlive(t *testing.T) {
	const closing = 50 * time.Millisecond
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, okBody)
	}))
	engine.Config.IdleTimeout = closing
	engine.Start()
	defer engine.Close()
	for _, idle := range []time.Duration{closing * 7 / 10, time.Minute} {
		f := newFixture(t, setup{relay: relay.Options{Idle: idle}}, engine.URL)
		var clients sync.WaitGroup
		for _, gap := range []time.Duration{closing / 5, closing - time.Millisecond, closing, closing + 500*time.Microsecond, closing + closing/10, closing + closing*3/10} {
			for range 4 {
				clients.Go(func() {
					for range 8 {
						if res, body, err := f.try("/v1/chat/completions", chatBody); err != nil || res.StatusCode != 200 {
							t.Error(err, body)
							return
						}
						time.Sleep(gap)
					}
				})
			}
		}
		clients.Wait()
		f.settled()
		t.Logf("idle %v: %+v", idle, f.relay.Stats())
	}
}
