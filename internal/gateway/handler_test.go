// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/wire"
)

func TestRefusals(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, c := range []struct {
		method, path, body string
		headers            []string
		status             int
		want               string
	}{
		{"POST", "/v1/chat/completions", "", nil, 400, "the body is empty"},
		{"POST", "/v1/chat/completions", "{", nil, 400, "invalid_json"},
		{"POST", "/v1/chat/completions", `{"model":"m","messages":[],"model":"x"}`, nil, 400, `"param":"model"`},
		{"POST", "/v1/chat/completions", `{"model":"m","messages":[],"Stream":true}`, nil, 400, `"param":"stream"`},
		{"POST", "/v1/chat/completions", `{"model":"nope","messages":[]}`, nil, 404, "model_not_found"},
		{"POST", "/v1/chat/completions", `{"model":"M","messages":[]}`, nil, 404, "model_not_found"},
		{"POST", "/v1/chat/completions", `{"model":"../../etc/passwd","messages":[]}`, nil, 404, "model_not_found"},
		{"POST", "/v1/chat/completions", chatBody, []string{"Content-Encoding", "gzip"}, 415, "unsupported_content_encoding"},
		{"POST", "/v1/messages", `{"model":"nope","messages":[]}`, nil, 404, `"type":"not_found_error"`},
		{"POST", "/v1/messages", `{"model":"m"}`, nil, 400, `{"type":"error","error":{"type":"invalid_request_error"`},
		{"GET", "/v1/chat/completions", "", nil, 405, "method_not_allowed"},
		{"POST", "/v1/models", "{}", nil, 405, "method_not_allowed"},
		{"POST", "/v1/load_lora_adapter", "{}", nil, 404, "not_found"},
		{"POST", "/pause", "{}", nil, 404, "not_found"},
		{"POST", "/invocations", chatBody, nil, 404, "not_found"},
		{"POST", "/v1/chat/completions/", chatBody, nil, 404, "not_found"},
		{"POST", "/v1//chat/completions", chatBody, nil, 404, "not_found"},
		{"GET", "/metrics", "", nil, 404, "not_found"},
		{"GET", "/v1/messages/batches", "", nil, 404, `"type":"error"`},
		{"GET", "/v1/models/nope", "", nil, 404, "model_not_found"},
	} {
		req, err := http.NewRequest(c.method, f.url+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(c.headers); i += 2 {
			req.Header.Set(c.headers[i], c.headers[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || !strings.Contains(string(body), c.want) || !json.Valid(body) ||
			RouterOf(res.Header.Get("X-Request-Id")) != "gw-1" || res.Header.Get("X-Penstock-Error-Source") != "gateway" {
			t.Errorf("%s %s %.40s: %d %v %s", c.method, c.path, c.body, res.StatusCode, res.Header, body)
		}
		if c.status == 405 && res.Header.Get("Allow") == "" {
			t.Errorf("%s: no Allow", c.path)
		}
	}
	if n := u.seen.Load(); n != 0 {
		t.Errorf("%d requests were sent on", n)
	}
	// A client cannot make series.
	if n := f.metric("requests_total", "nope") + f.metric("requests_total", "../../etc/passwd"); n != 0 {
		t.Error("a client's model name became a label")
	}
	f.settled()
}

func TestTheRoutedPathIsSent(t *testing.T) {
	var got string
	u := scripted(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		got = r.RequestURI
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	f.post("/v1/chat%2fcompletions?x=%2f..", chatBody)
	if got != "/v1/chat/completions?x=%2f.." {
		t.Errorf("the engine was asked for %s", got)
	}
}

func TestModels(t *testing.T) {
	f := newFixture(t, setup{}, "http://127.0.0.1:1")
	get := func(path string) (int, string) {
		res, err := http.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(b)
	}
	_, body := get("/v1/models")
	var list struct {
		Object string
		Data   []struct {
			ID, Object, Root string
			Parent           *string
		}
	}
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Object != "list" || len(list.Data) != 4 {
		t.Fatalf("%v %s", err, body)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID+">"+m.Root)
	}
	if got := strings.Join(ids, " "); got != "a-much-longer-public-name>m alias>m lora>lora m>m" || list.Data[2].Parent == nil || *list.Data[2].Parent != "m" {
		t.Errorf("%s", body)
	}
	if code, body := get("/v1/models/alias"); code != 200 || !strings.Contains(body, `"root":"m"`) {
		t.Errorf("%d %s", code, body)
	}
}

func TestModelsFromTheReplicas(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{models: []Model{}})
	if res, _ := f.chat(`{"model":"anything","messages":[]}`); res.StatusCode != 503 {
		t.Errorf("before the first snapshot: %d", res.StatusCode)
	}
	s := &fleet.Snapshot{Pool: "p", Version: 9, At: fleet.At(time.Now())}
	e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: "r0", URL: u.url, Phase: fleet.PhaseReady, Models: []string{"org/base", "sql"}, Rank: -1}}
	e.Adapters = []fleet.Adapter{{Name: "sql", State: fleet.AdapterResident}}
	s.Endpoints = append(s.Endpoints, e)
	f.flow.Observe(s)
	for name, status := range map[string]int{"org/base": 200, "sql": 200, "other": 404} {
		if res, body := f.chat(`{"model":"` + name + `","messages":[]}`); res.StatusCode != status {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
	if res, _ := f.chat(`{"messages":[]}`); res.StatusCode != 200 {
		t.Errorf("the only model was not taken: %d", res.StatusCode)
	}
	res, err := http.Get(f.url + "/v1/models/org/base")
	if err != nil || res.StatusCode != 200 {
		t.Errorf("%v %v", res, err)
	}
	if to, ok := f.h.catalogue.Load().Resolve("sql"); !ok || to.Model != "org/base" || to.Adapter != "sql" {
		t.Errorf("%+v %v", to, ok)
	}
}

func TestCatalogueRefusesTwoPlaces(t *testing.T) {
	for _, pools := range [][]Pool{
		{{Name: "a", Models: []Model{{Name: "x"}}}, {Name: "b", Models: []Model{{Name: "y", Aliases: []string{"x"}}}}},
		{{Name: "a", Models: []Model{{Name: ""}}}},
		{{Name: "a", Models: []Model{{Name: "x", Adapters: []string{"x"}}}}},
	} {
		if _, err := NewCatalogue(pools); err == nil {
			t.Errorf("%+v passed", pools)
		}
	}
}

func TestProbes(t *testing.T) {
	f := newFixture(t, setup{})
	code := func(path string) int {
		res, err := http.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code("/healthz") != 200 || code("/readyz") != 503 || code("/health") != 503 {
		t.Error("without a replica")
	}
	f.observe(fleet.PhaseReady, "http://127.0.0.1:1")
	if code("/readyz") != 200 || code("/health") != 200 {
		t.Error("with a replica")
	}
	f.h.Drain()
	if code("/healthz") != 200 || code("/readyz") != 503 || code("/health") != 503 {
		t.Error("while draining")
	}
}

// denies refuses everybody but one key.
type denies struct{}

func (denies) Authenticate(r *http.Request) (entry.Identity, *wire.Error) {
	if r.Header.Get("Authorization") != "Bearer good" {
		return entry.Identity{}, &wire.Error{Status: 401, Code: wire.CodeUnauthorized, Message: "the key is not known"}
	}
	return entry.Identity{Tenant: "acme", Ours: true}, nil
}

func TestAuthenticator(t *testing.T) {
	var got http.Header
	u := scripted(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		got = r.Header
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{options: Options{Auth: denies{}}}, u.url)
	for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/models", "/nothing"} {
		if res, body := f.post(path, chatBody); res.StatusCode != 401 || strings.Contains(path, "messages") != strings.Contains(body, `"type":"error"`) {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	res, _ := f.chat(chatBody, "Authorization", "Bearer good", "X-Api-Key", "k")
	if res.StatusCode != 200 || got["Authorization"] != nil || got["X-Api-Key"] != nil {
		t.Errorf("%d, sent on %v", res.StatusCode, got)
	}
	if res.Header.Get("X-Penstock-Replica") != "" {
		t.Error("the replica's name goes to callers without debug scope")
	}
	f.settled()
	if r := f.records.last(); r.Request.Tenant != "acme" {
		t.Errorf("%+v", r.Request)
	}
	if strings.Contains(f.log.String(), "good") {
		t.Error("the log holds a secret")
	}
}

func TestPanic(t *testing.T) {
	f := newFixture(t, setup{options: Options{Auth: panics{}}}, "http://127.0.0.1:1")
	res, body := f.post("/v1/messages", strings.Replace(chatBody, "hello", "secret words", 1))
	if res.StatusCode != 500 || !strings.Contains(body, `"type":"api_error"`) || !strings.Contains(body, "internal_error") {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if log := f.log.String(); strings.Contains(log, "secret words") || !strings.Contains(log, "panic") {
		t.Errorf("log: %s", log)
	}
	if f.metric("panics_total") != 1 {
		t.Error("not counted")
	}
	f.settled()
}

type panics struct{}

func (panics) Authenticate(*http.Request) (entry.Identity, *wire.Error) {
	panic(errors.New("secret words"))
}

func TestLogsHoldNoContent(t *testing.T) {
	f := newFixture(t, setup{}, says(t, jsonAnswer(200, strings.Replace(okBody, "hi", "CANARY-ANSWER", 1))).url)
	f.chat(`{"model":"m","messages":[{"role":"user","content":"CANARY-PROMPT"}]}`, "Authorization", "Bearer CANARY-KEY")
	f.chat(`{"model":"m","messages":[{"role":"user","content":"CANARY-PROMPT"`, "Authorization", "Bearer CANARY-KEY")
	f.outcome(1)
	f.settled()
	if log := f.log.String(); strings.Contains(log, "CANARY") || !strings.Contains(log, "outcome=ok") {
		t.Errorf("log: %s", log)
	}
}

func TestSlowHead(t *testing.T) {
	f := newFixture(t, setup{serve: func(s *http.Server) {
		if s.ReadHeaderTimeout != headerTime || s.IdleTimeout <= 90*time.Second || s.WriteTimeout != 0 || s.ReadTimeout != 0 {
			t.Errorf("%+v", s)
		}
		s.ReadHeaderTimeout = time.Second
	}})
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if b, err := io.ReadAll(c); err != nil {
		t.Errorf("the connection stays: %q %v", b, err)
	}
	res, body := f.chat(chatBody, "X-Long", strings.Repeat("x", 80<<10))
	if res.StatusCode != 431 {
		t.Errorf("a long header: %d %s", res.StatusCode, body)
	}
}

func TestSlowUpload(t *testing.T) {
	// The writer gives the deadline that the body sets; it has passed at the second read.
	q := &bodies{most: 1 << 20, mostHeld: 1 << 20}
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	r := httptest.NewRequest("POST", "/", nil)
	r.Body, r.ContentLength = io.NopCloser(io.MultiReader(strings.NewReader("{"), timeout{})), 5000
	_, _, err := q.read(w, r, time.Now())
	var e *wire.Error
	if !errors.As(err, &e) || e.Status != 408 || len(w.set) == 0 || time.Until(w.set[0]) > time.Minute {
		t.Errorf("%v %v", err, w.set)
	}
	if q.held.Load() != 0 {
		t.Errorf("%d bytes held", q.held.Load())
	}
}

type timeout struct{}

func (timeout) Read([]byte) (int, error) { return 0, fmt.Errorf("read: %w", errDeadline) }

var errDeadline = &net.OpError{Op: "read", Err: deadlineError{}}

type deadlineError struct{}

func (deadlineError) Error() string   { return "i/o timeout" }
func (deadlineError) Timeout() bool   { return true }
func (deadlineError) Temporary() bool { return true }

type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

func TestBodyMemoryIsBounded(t *testing.T) {
	in, out := make(chan struct{}, 8), make(chan struct{})
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		in <- struct{}{}
		<-out
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{options: Options{MaxBody: 1 << 20, MaxBodies: 2 << 20}}, u.url)
	body := `{"model":"m","messages":[],"x":"` + strings.Repeat("a", 1<<20-100) + `"}`
	codes := make(chan int, 8)
	send := func() {
		res, _, err := f.try("/v1/chat/completions", body)
		if err != nil {
			codes <- 0
			return
		}
		codes <- res.StatusCode
	}
	go send()
	go send()
	<-in
	<-in
	go send()
	if c := <-codes; c != 503 {
		t.Errorf("the third got %d", c)
	}
	close(out)
	if a, b := <-codes, <-codes; a != 200 || b != 200 {
		t.Errorf("the first two got %d %d", a, b)
	}
	f.settled()
}

// A client that takes nothing does not hold a replica for ever; a stream that flows
// slowly is not cut.
func TestSlowClient(t *testing.T) {
	flood := strings.Repeat("x", 1<<20)
	gone := make(chan struct{})
	u := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		if bytes.Contains(body, []byte("flood")) {
			io.WriteString(c, sseHead)
			for {
				if _, err := io.WriteString(c, chunk(flood)); err != nil {
					close(gone)
					return false
				}
			}
		}
		io.WriteString(c, sseHead)
		for range 8 {
			io.WriteString(c, chunk(token))
			time.Sleep(60 * time.Millisecond)
		}
		io.WriteString(c, chunk(finish+done)+"0\r\n\r\n")
		return true
	})
	f := newFixture(t, setup{relay: relay.Options{ClientWrite: 200 * time.Millisecond}}, u.url)
	c := leave(t, f, `{"model":"m","messages":[],"stream":true,"x":"flood"}`)
	defer c.Close()
	<-gone // nobody read
	if _, body := f.chat(streamReq); body != strings.Repeat(token, 8)+finish+done {
		t.Errorf("a live stream was cut: %q", body)
	}
	f.settled()
	f.records.mu.Lock()
	defer f.records.mu.Unlock()
	if o := f.records.all[0].Outcome; o.Kind != "client_gone" {
		t.Errorf("%+v", o)
	}
}

func TestExplain(t *testing.T) {
	f := newFixture(t, setup{}, "http://127.0.0.1:1", "http://127.0.0.1:2")
	r, err := f.h.Explain(t.Context(), fleet.SurfaceChat, []byte(chatBody))
	if err != nil || r.Chosen == "" || r.Request.Model != "m" {
		t.Errorf("%v %+v", err, r)
	}
	_, err = f.h.Explain(t.Context(), fleet.SurfaceChat, []byte(`{"model":"nope","messages":[]}`))
	var coded interface{ StatusCode() int }
	if !errors.As(err, &coded) || coded.StatusCode() != 404 {
		t.Errorf("%v", err)
	}
	if f.flow.Stats().Totals.Arrived != 0 {
		t.Error("explaining counts as a request")
	}
}

func TestIDs(t *testing.T) {
	for id, ok := range map[string]bool{"a": true, "A.b_c-9": true, strings.Repeat("x", 128): true, "": false, strings.Repeat("x", 129): false, "a b": false, "a\n": false, "é": false, `"`: false} {
		if validID(id) != ok {
			t.Errorf("%q: %v", id, !ok)
		}
	}
	for name, want := range map[string]string{"eu-west-1": "eu-west-1", "": "ps", "a b\n\"c": "abc"} {
		a, b := newIDs(name), newIDs(name)
		x, y := a.next(), a.next()
		if RouterOf(x) != want || x == y || x == b.next() || !validID(x) {
			t.Errorf("%q: %s %s", name, x, y)
		}
	}
	if RouterOf("nothing") != "" || RouterOf("a-b") != "" {
		t.Error("a foreign id names a router")
	}
}

func TestPromptSizes(t *testing.T) {
	f := newFixture(t, setup{}, "http://127.0.0.1:1")
	words := strings.Repeat("word ", 800) // 4000 bytes, about 1000 tokens at the usual 4 bytes
	numbers := strings.Repeat("12345,", 999) + "1"
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("A", 100000) + `"}}`
	for _, c := range []struct {
		name, body string
		surface    fleet.Surface
		low, high  int
	}{
		{"text", `{"model":"m","messages":[{"role":"user","content":"` + words + `"}]}`, fleet.SurfaceChat, 990, 1020},
		{"token numbers", `{"model":"m","prompt":[` + numbers + `]}`, fleet.SurfaceCompletions, 1000, 1000},
		{"image", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"` + words + `"},` + image + `]}]}`, fleet.SurfaceChat, 1000 + entry.MediaTokens, 1020 + entry.MediaTokens},
		{"nothing", `{"model":"m","prompt":""}`, fleet.SurfaceCompletions, 1, 1},
	} {
		r, err := f.h.Explain(t.Context(), c.surface, []byte(c.body))
		if err != nil || r.Request.PromptTokens < c.low || r.Request.PromptTokens > c.high {
			t.Errorf("%s: %v, %d tokens, want %d to %d", c.name, err, r.Request.PromptTokens, c.low, c.high)
		}
	}
}

func TestLogLinesAreBounded(t *testing.T) {
	var l lineBudget
	now := time.Unix(1000, 0)
	written := 0
	for range 3 * linesPerSecond {
		if _, ok := l.take(now, slog.LevelWarn); ok {
			written++
		}
	}
	dropped, ok := l.take(now.Add(time.Second), slog.LevelWarn)
	if written != linesPerSecond || !ok || dropped != 2*linesPerSecond {
		t.Errorf("%d written, then %v after %d dropped", written, ok, dropped)
	}
	if _, ok := l.take(now, slog.LevelDebug); !ok {
		t.Error("debug lines are for whoever asked for them")
	}
}
