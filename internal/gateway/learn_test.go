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
)

// TestClientTeachesNothing: a client whose own words stand in an engine's refusal must
// not change how the whole pool is asked: its usage would be guessed from then on, and
// everybody's messages translated.
func TestClientTeachesNothing(t *testing.T) {
	var mu sync.Mutex
	var paths, bodies []string
	u := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		mu.Lock()
		paths, bodies = append(paths, r.URL.Path), append(bodies, string(body))
		mu.Unlock()
		switch odd := strings.Contains(string(body), "odd"); {
		case odd && r.URL.Path == "/v1/messages":
			io.WriteString(c, jsonAnswer(501, `{"error":"odd content is not implemented"}`))
		case odd:
			io.WriteString(c, jsonAnswer(400, `{"message":"bad input: 'odd stream_options'"}`))
		case strings.Contains(string(body), `"stream":true`):
			io.WriteString(c, stream(token, finish, done))
		default:
			io.WriteString(c, jsonAnswer(200, okBody))
		}
		return true
	})
	f := limited(t, metered(hourly(admit.TotalTokens, 100000)), u.url)
	last := func() (string, string) {
		mu.Lock()
		defer mu.Unlock()
		return paths[len(paths)-1], bodies[len(bodies)-1]
	}
	if res, _ := f.chat(strings.TrimSuffix(streamReq, "}") + `,"metadata":{"x":"odd stream_options"}}`); res.StatusCode != 400 {
		t.Errorf("%d", res.StatusCode)
	}
	f.chat(streamReq)
	if _, body := last(); !strings.Contains(body, `"include_usage":true`) {
		t.Errorf("others are asked without usage: %s", body)
	}
	f.post("/v1/messages", messagesBody("odd", ""))
	f.post("/v1/messages", messagesBody("hello", ""))
	if path, _ := last(); path != "/v1/messages" {
		t.Errorf("the messages of others go to %s", path)
	}
}

// TestTranslatedAnswerIsCharged: a translated answer without usage counts by its length,
// as one that is not translated does.
func TestTranslatedAnswerIsCharged(t *testing.T) {
	u := scripted(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		if r.URL.Path == "/v1/messages" {
			io.WriteString(c, jsonAnswer(404, `{"detail":"Not Found"}`))
		} else {
			io.WriteString(c, jsonAnswer(200, `{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"`+
				strings.Repeat("word ", 200)+`"},"finish_reason":"stop"}]}`))
		}
		return true
	})
	m := metered(hourly(admit.OutputTokens, 100000))
	f := limited(t, m, u.url)
	if res, text := f.post("/v1/messages", messagesBody("hello", "")); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	f.settled()
	if n := m.Stats().Balances[0].Charged; n < 200 {
		t.Errorf("%d tokens of output were charged", n)
	}
}
