// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
)

// cold is a gateway before a pool without a ready replica that holds requests.
func cold(t *testing.T, hold time.Duration, u *replica) *fixture {
	f := newFixture(t, setup{dispatch: dispatch.Options{HoldFor: hold}}, u.url)
	cat, err := NewCatalogue([]Pool{{Name: "p", Flow: f.flow, Models: []Model{{Name: "m"}}, Heartbeat: 20 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	f.h.SetCatalogue(cat)
	f.observe(fleet.PhaseLoading, u.url)
	return f
}

// wake sends a request that is held, makes the replica ready once that many comments have
// come, and returns the answer with them.
func (f *fixture) wake(d *dialed, beats int) (*http.Response, string) {
	f.t.Helper()
	d.ask(streamReq, "")
	res, err := http.ReadResponse(d.r, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	first := make([]byte, beats*len(beatComment))
	if _, err := io.ReadFull(res.Body, first); err != nil {
		f.t.Fatal(err)
	}
	f.observe(fleet.PhaseReady, f.flow.Snapshot().Endpoints[0].URL)
	rest, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Error(err)
	}
	return res, string(first) + string(rest)
}

// A stream whose request waits gets comments, then the answer byte for byte.
func TestHeartbeatsWhileHeld(t *testing.T) {
	f := cold(t, time.Minute, says(t, stream(token, token, finish, done)))
	d := f.dial()
	res, text := f.wake(d, 2)
	beats := strings.Count(text, string(beatComment))
	if res.StatusCode != 200 || beats < 2 || text != strings.Repeat(string(beatComment), beats)+token+token+finish+done {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	if ct := res.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/event-stream") || res.Header.Get(headerRequestID) == "" {
		t.Errorf("header %v", res.Header)
	}
	if o := f.outcome(1); o.Kind != "ok" || o.Status != 200 {
		t.Errorf("outcome %+v", o)
	}
	f.settled()
	// The connection is good for the next request, which finds a ready replica.
	d.ask(streamReq, "")
	if _, text, err := d.answer(); err != nil || text != token+token+finish+done {
		t.Errorf("a request to a warm pool: %q, %v", text, err)
	}
	f.settled()
}

// A client that asked for a whole answer gets nothing before it.
func TestNoHeartbeatWithoutStream(t *testing.T) {
	f := cold(t, time.Minute, says(t, jsonAnswer(200, okBody)))
	time.AfterFunc(150*time.Millisecond, func() { f.observe(fleet.PhaseReady, f.flow.Snapshot().Endpoints[0].URL) })
	if res, text := f.chat(chatBody); res.StatusCode != 200 || text != okBody {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	f.settled()
}

// What goes wrong after the first comment is the last event of the stream.
func TestErrorsAfterHeartbeats(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"engine": {jsonAnswer(400, `{"error": {"message": "too long", "code": 400}}`), `data: {"error":{"message":"too long","code":400}}` + "\n\n" + done},
		"text":   {"HTTP/1.1 500 X\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\noops", `Internal Server Error from the replica`},
		"never":  {"", `no replica is ready`},
	} {
		t.Run(name, func(t *testing.T) {
			hold := time.Minute
			if c.answer == "" {
				hold = time.Second
			}
			f := cold(t, hold, says(t, c.answer))
			var res *http.Response
			var text string
			if c.answer == "" {
				res, text = f.chat(streamReq)
			} else {
				res, text = f.wake(f.dial(), 1)
			}
			if res.StatusCode != 200 || !strings.HasPrefix(text, string(beatComment)) || !strings.Contains(text, c.want) || !strings.HasSuffix(text, done) {
				t.Errorf("%d %q", res.StatusCode, text)
			}
			f.settled()
		})
	}
}

// A client that leaves while it gets comments leaves the queue.
func TestLeavingWhileHeld(t *testing.T) {
	f := cold(t, time.Minute, says(t, stream(token, finish, done)))
	conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Write([]byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(streamReq)) + "\r\n\r\n" + streamReq))
	f.waitFor("a held request", func() bool { return f.flow.Stats().Totals.Held == 1 })
	time.Sleep(60 * time.Millisecond)
	conn.Close()
	f.settled()
}
