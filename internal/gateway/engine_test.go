// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	engine "github.com/penstock-project/penstock/internal/replica"
	"github.com/penstock-project/penstock/internal/route"
)

// engines starts simulated model servers and a gateway in front, under the default
// policy.
func engines(t *testing.T, n int, o engine.Options) (*fixture, []*engine.Server) {
	t.Helper()
	var all []*engine.Server
	var urls []string
	for range n {
		o.Models, o.Listen, o.LoRA = []string{"m"}, "127.0.0.1:0", []string{"lora"}
		if o.Speed == 0 {
			o.Speed = 200
		}
		s, err := engine.New(o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if err := s.Start(context.Background()); err != nil {
			t.Fatal(err)
		}
		all, urls = append(all, s), append(urls, s.URL())
	}
	p, err := route.New("penstock", 1)
	if err != nil {
		t.Fatal(err)
	}
	return newFixture(t, setup{dispatch: dispatch.Options{Policy: p}}, urls...), all
}

func TestSurfacesOfAnEngine(t *testing.T) {
	f, _ := engines(t, 2, engine.Options{})
	n := 0
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`, `"object":"chat.completion"`},
		{"/v1/chat/completions", `{"model":"alias","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`, `"model":"alias"`},
		{"/v1/chat/completions", `{"model":"lora","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`, `"model":"lora"`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":4,"stream":true,"stream_options":{"include_usage":true}}`, "data: [DONE]"},
		{"/v1/completions", `{"model":"m","prompt":"hello","max_tokens":4}`, `"object":"text_completion"`},
		{"/v1/embeddings", `{"model":"m","input":"hello"}`, `"embedding"`},
		{"/v1/responses", `{"model":"m","input":"hello","max_output_tokens":4}`, `"object":"response"`},
		{"/v1/responses", `{"model":"m","input":"hello","max_output_tokens":4,"stream":true}`, "event: response.incomplete"},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":4}`, `"type":"message"`},
		{"/v1/messages", `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":4,"stream":true}`, "event: message_stop"},
		{"/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"hello"}]}`, `"input_tokens"`},
		{"/tokenize", `{"model":"m","prompt":"hello"}`, `"tokens"`},
	} {
		res, body := f.post(c.path, c.body)
		if res.StatusCode != 200 || !strings.Contains(body, c.want) {
			t.Errorf("%s: %d %s", c.path, res.StatusCode, body)
		}
		n++
		if o := f.outcome(n); o.Kind != "ok" || o.Status != 200 {
			t.Errorf("%s: %+v", c.path, o)
		}
		if strings.Contains(c.body, `"stream":true`) {
			if o := f.records.last().Outcome; o.TTFTMS == nil || o.OutputTokens == nil || *o.OutputTokens != 4 {
				t.Errorf("%s: %+v", c.path, o)
			}
		}
	}
	f.settled()
}

// What the engine says of its cache is what the record and the metrics hold.
func TestCachedTokensOfAnEngine(t *testing.T) {
	f, _ := engines(t, 3, engine.Options{})
	text := strings.Repeat("The quick brown fox jumps over the lazy dog. ", 200)
	said := regexp.MustCompile(`"cached_tokens":(\d+)`)
	for turn := range 6 {
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"%s"},{"role":"user","content":"turn %d"}],"max_tokens":4}`, text, turn)
		_, answer := f.chat(body)
		m := said.FindStringSubmatch(answer)
		o := f.outcome(turn + 1)
		if m == nil || o.CachedTokens == nil || strconv.Itoa(*o.CachedTokens) != m[1] {
			t.Fatalf("turn %d: record %+v, answer %s", turn, o, answer)
		}
		if turn > 0 && (*o.CachedTokens < 1000 || o.PredictedCachedTokens < 1000) {
			t.Errorf("turn %d: %d tokens cached, %d predicted: it went elsewhere", turn, *o.CachedTokens, o.PredictedCachedTokens)
		}
	}
	if f.metric("cached_prompt_tokens_total") < 5000 {
		t.Errorf("metric %v", f.metric("cached_prompt_tokens_total"))
	}
	f.settled()
}

// A client that leaves frees its place in the engine's batch.
func TestLeavingFreesTheEngine(t *testing.T) {
	f, all := engines(t, 1, engine.Options{Speed: 1})
	running := func() int {
		res, err := http.Get(all[0].URL() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, _ := io.ReadAll(res.Body)
		m := regexp.MustCompile(`(?m)^vllm:num_requests_running\{[^}]*\} (\d+)`).FindSubmatch(b)
		n, _ := strconv.Atoi(string(m[1]))
		return n
	}
	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"a long story"}],"max_tokens":4000,"ignore_eos":true,"stream":%v}`, stream)
		c := leave(t, f, body)
		f.waitFor("the engine's work", func() bool { return running() == 1 })
		if stream {
			for range 12 { // head and some events
				if _, err := c.r.ReadString('\n'); err != nil {
					t.Fatal(err)
				}
			}
		}
		left := time.Now()
		c.Close()
		f.waitFor("the engine's rest", func() bool { return running() == 0 })
		if d := time.Since(left); d > time.Second {
			t.Errorf("stream %v: the engine went on for %v", stream, d)
		}
		f.settled()
	}
}

func TestErrorsOfAnEngine(t *testing.T) {
	f, _ := engines(t, 1, engine.Options{})
	res, body := f.chat(`{"model":"m","messages":[{"role":"user","content":"x"}],"n":0}`)
	var e struct {
		Error struct{ Message, Type string }
	}
	if res.StatusCode != 400 || json.Unmarshal([]byte(body), &e) != nil || e.Error.Message == "" || res.Header.Get("X-Penstock-Error-Source") != "" {
		t.Errorf("%d %s", res.StatusCode, body)
	}
	if o := f.outcome(1); o.Kind != "client_error" {
		t.Errorf("%+v", o)
	}
	f.settled()
}
