// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
)

// oldEngine speaks chat completions and /tokenize, and no Messages API.
type oldEngine struct {
	mu       sync.Mutex
	paths    []string
	last     string
	tokenize bool
}

func (e *oldEngine) script(c net.Conn, req *http.Request, body []byte) bool {
	e.mu.Lock()
	e.paths, e.last = append(e.paths, req.URL.Path), string(body)
	e.mu.Unlock()
	switch {
	case req.URL.Path == "/tokenize" && e.tokenize:
		io.WriteString(c, jsonAnswer(200, `{"count":42,"max_model_len":100,"tokens":[]}`))
	case req.URL.Path != "/v1/chat/completions":
		io.WriteString(c, jsonAnswer(404, `{"detail":"Not Found"}`))
	case strings.Contains(string(body), "refuse"):
		io.WriteString(c, jsonAnswer(400, `{"object":"error","message":"too long","code":400}`))
	case strings.Contains(string(body), "break"):
		io.WriteString(c, sseHead+chunk(token))
		return false
	case strings.Contains(string(body), `"stream":true`):
		io.WriteString(c, stream(token, token, finish, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}`+"\n\n", done))
	default:
		io.WriteString(c, jsonAnswer(200, okBody))
	}
	return true
}

func messagesBody(text, more string) string {
	return `{"model":"alias","max_tokens":9,"messages":[{"role":"user","content":"` + text + `"}]` + more + `}`
}

// Messages are translated only after the engine has said that it does not know them;
// streams, tools, errors and limits work as they do natively.
func TestMessagesTranslated(t *testing.T) {
	e := &oldEngine{tokenize: true}
	u := scripted(t, e.script)
	m := metered(hourly(admit.TotalTokens, 100000))
	f := newFixture(t, setup{options: Options{Auth: everybody{tenant: "acme", key: "k"}, Quotas: m}}, u.url)
	res, text := f.post("/v1/messages", messagesBody("hello", ""), "Anthropic-Version", "2023-06-01")
	if res.StatusCode != 200 || !strings.Contains(text, `"type":"message"`) || !strings.Contains(text, `"model":"alias"`) || !strings.Contains(text, `"stop_reason":"end_turn"`) {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	if got := strings.Join(e.paths, " "); got != "/v1/messages /v1/chat/completions" || !strings.Contains(e.last, `"model":"m"`) {
		t.Errorf("%s: %s", got, e.last)
	}
	res, text = f.post("/v1/messages", messagesBody("hello", `,"stream":true,"tools":[{"name":"w","input_schema":{"type":"object"}}]`))
	if res.StatusCode != 200 || !strings.HasPrefix(text, "event: message_start\n") || !strings.HasSuffix(text, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n") ||
		strings.Contains(text, "[DONE]") || !strings.Contains(text, `"output_tokens":2`) {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if n := len(e.paths); n != 3 || !strings.Contains(e.last, `"function":{"name":"w","parameters":{"type":"object"}}`) {
		t.Errorf("%v %s", e.paths, e.last)
	}
	res, text = f.post("/v1/messages", messagesBody("refuse", ""))
	if res.StatusCode != 400 || !strings.Contains(text, `"type":"error"`) || !strings.Contains(text, "too long") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	// A stream that breaks says so in this family's shape, and has no end of its own.
	_, text = f.post("/v1/messages", messagesBody("break", `,"stream":true`))
	if !strings.Contains(text, "event: error") || strings.Contains(text, "message_stop") {
		t.Errorf("%s", text)
	}
	res, text = f.post("/v1/messages", messagesBody("x", `,"tools":[{"type":"web_search_20250305","name":"web_search"}]`))
	if res.StatusCode != 400 || !strings.Contains(text, "web_search_20250305") {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if res, text = f.post("/v1/messages/count_tokens", messagesBody("x", "")); res.StatusCode != 200 || text != `{"input_tokens":42}` {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	e.tokenize = false
	if res, text = f.post("/v1/messages/count_tokens", messagesBody("x", "")); res.StatusCode != 200 || !strings.HasPrefix(text, `{"input_tokens":`) || res.Header.Get(headerEstimated) != "true" {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	f.settled()
	var used int64
	for _, b := range m.Stats().Balances {
		used += b.Charged
	}
	if used < 9+11 { // 7+2 of the answer and 9+2 of the stream at least
		t.Errorf("%d tokens were charged", used)
	}
}

// An unknown model is no reason to translate, and a pool that is told to stays native.
func TestMessagesStayNative(t *testing.T) {
	u := says(t, jsonAnswer(404, `{"type":"error","error":{"type":"not_found_error","message":"The model m does not exist."}}`))
	f := newFixture(t, setup{}, u.url)
	if res, text := f.post("/v1/messages", messagesBody("x", "")); res.StatusCode != 404 || !strings.Contains(text, "does not exist") || u.seen.Load() != 1 {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	e := &oldEngine{}
	n := scripted(t, e.script)
	f.observe(fleet.PhaseReady, n.url)
	f.grow(Pool{Models: []Model{{Name: "m", Aliases: []string{"alias"}}}, Messages: MessagesNative})
	if f.post("/v1/messages", messagesBody("x", "")); len(e.paths) != 1 {
		t.Errorf("%v", e.paths)
	}
}
