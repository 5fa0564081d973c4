// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start runs a replica on a free port until the test ends.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Models == nil {
		o.Models = []string{"tiny", "alias"}
	}
	if o.Speed == 0 {
		o.Speed = 200
	}
	o.Listen = "127.0.0.1:0"
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if err := s.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func post(t *testing.T, s *Server, path, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(s.URL()+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func get(t *testing.T, s *Server, path string) (int, string) {
	t.Helper()
	resp, err := http.Get(s.URL() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// eventually polls until ok; it fails the test only when all patience is gone.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 12000 { // a minute
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("never came true: %s", what)
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Total      int `json:"total_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

type answer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Model   string `json:"model"`
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Role    string  `json:"role"`
			Content *string `json:"content"`
		} `json:"delta"`
		Finish *string `json:"finish_reason"`
		Stop   any     `json:"stop_reason"`
	} `json:"choices"`
	Usage *usage `json:"usage"`
}

func parse(t *testing.T, body string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(body), &a); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return a
}

func ask(t *testing.T, s *Server, body string) answer {
	t.Helper()
	status, b := post(t, s, "/v1/chat/completions", body)
	if status != 200 {
		t.Fatalf("status %d: %s", status, b)
	}
	return parse(t, b)
}

// frames splits an event stream into the data of its events.
func frames(t *testing.T, body string) []string {
	t.Helper()
	var out []string
	for _, f := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		_, data, ok := strings.Cut(f, "data: ")
		if !ok {
			t.Fatalf("frame without data: %q", f)
		}
		out = append(out, data)
	}
	return out
}

var volatile = regexp.MustCompile(`(chatcmpl-|cmpl-|msg_|resp_|embd-)[0-9a-f]{32}|"created(_at)?":\d+`)

// masked replaces what differs from run to run.
func masked(s string) string {
	return volatile.ReplaceAllStringFunc(s, func(m string) string {
		if i := strings.IndexByte(m, ':'); i > 0 {
			return m[:i] + ":0"
		}
		return m[:strings.IndexAny(m, "-_")+1] + "X"
	})
}

const hello = `"model":"tiny","messages":[{"role":"user","content":"Hello"}]`

func TestChatShapes(t *testing.T) {
	s := start(t, Options{})
	_, whole := post(t, s, "/v1/chat/completions", `{`+hello+`,"max_tokens":3}`)
	want := `{"id":"chatcmpl-X","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Field clear ","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-simulated","usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0,"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`
	if d := cmp.Diff(want, masked(whole)); d != "" {
		t.Errorf("whole answer (-want +got):\n%s", d)
	}
	resp, err := http.Post(s.URL()+"/v1/chat/completions", "application/json", strings.NewReader(`{`+hello+`,"max_tokens":1,"stream":true,"stream_options":{"include_usage":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", ct)
	}
	if h := resp.Header.Get("Server"); h != ServerHeader || !strings.Contains(h, "simulated") {
		t.Errorf("server header %q", h)
	}
	b, _ := io.ReadAll(resp.Body)
	head := `data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[`
	want = head + `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}` + "\n\n" +
		head + `{"index":0,"delta":{"content":"Fiel"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}` + "\n\n" +
		head + `],"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},"system_fingerprint":"vllm-0.32.0-simulated"}` + "\n\n" +
		"data: [DONE]\n\n"
	if d := cmp.Diff(want, masked(string(b))); d != "" {
		t.Errorf("stream (-want +got):\n%s", d)
	}
}

func TestCompletionShapes(t *testing.T) {
	s := start(t, Options{Speed: 2})
	_, whole := post(t, s, "/v1/completions", `{"model":"alias","prompt":["Hello"],"max_tokens":2}`)
	want := `{"id":"cmpl-X","object":"text_completion","created":0,"model":"alias","choices":[{"index":0,"text":"Still se","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],"service_tier":null,"system_fingerprint":"vllm-0.32.0-simulated","usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,"multimodal_tokens":null},"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`
	got := masked(whole)
	text := regexp.MustCompile(`"text":"[^"]*"`)
	if d := cmp.Diff(text.ReplaceAllString(want, `"text":""`), text.ReplaceAllString(got, `"text":""`)); d != "" {
		t.Errorf("whole answer (-want +got):\n%s", d)
	}
	if n := len(parse(t, whole).Choices[0].Text); n != 8 {
		t.Errorf("two tokens make %d bytes", n)
	}
	_, b := post(t, s, "/v1/completions", `{"model":"tiny","prompt":[301,302],"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true}`)
	fs := frames(t, b)
	if fs[len(fs)-1] != "[DONE]" {
		t.Errorf("last frame %q", fs[len(fs)-1])
	}
	last := parse(t, fs[len(fs)-2])
	if len(last.Choices) != 0 || last.Usage == nil || last.Usage.Completion != defaultCompletionTokens || last.Usage.Prompt != 2 {
		t.Errorf("usage frame %s", fs[len(fs)-2])
	}
	if a := parse(t, fs[0]); a.Usage != nil || a.Choices[0].Finish != nil {
		t.Errorf("first frame %s", fs[0])
	}
}

// TestStreamEqualsWhole checks that a streamed answer is the whole one in pieces, for
// answers that end by length, by themselves and by a stop string.
func TestStreamEqualsWhole(t *testing.T) {
	s := start(t, Options{OutputMean: 20})
	for i, extra := range []string{`"max_tokens":40,"ignore_eos":true`, `"max_completion_tokens":1000`, `"stop":["e","zzz"]`, `"stop":"a","include_stop_str_in_output":true`, `"stop":"e","min_tokens":10`} {
		body := fmt.Sprintf(`{"model":"tiny","messages":[{"role":"user","content":"question %d"}],%s`, i, extra)
		whole := ask(t, s, body+"}")
		_, stream := post(t, s, "/v1/chat/completions", body+`,"stream":true}`)
		var text, finish string
		for _, f := range frames(t, stream) {
			if f == "[DONE]" {
				continue
			}
			c := parse(t, f).Choices[0]
			if c.Delta.Content != nil {
				text += *c.Delta.Content
			}
			if c.Finish != nil {
				finish = *c.Finish
			}
		}
		if w := whole.Choices[0]; text != w.Message.Content || finish != *w.Finish {
			t.Errorf("%s: stream %q (%s), whole %q (%s)", extra, text, finish, w.Message.Content, *w.Finish)
		}
		switch i {
		case 0:
			if whole.Usage.Completion != 40 || finish != "length" {
				t.Errorf("ignore_eos: %d tokens, %s", whole.Usage.Completion, finish)
			}
		case 1:
			if finish != "stop" {
				t.Errorf("natural end is %q", finish)
			}
		case 2:
			if finish != "stop" || strings.Contains(text, "e") || whole.Choices[0].Stop != "e" {
				t.Errorf("stop string: %q, %v", text, whole.Choices[0].Stop)
			}
		case 3:
			if !strings.HasSuffix(text, "a") || strings.Count(text, "a") != 1 {
				t.Errorf("kept stop string: %q", text)
			}
		case 4:
			if len(text) < 10*tokenBytes-1 {
				t.Errorf("min_tokens: %q", text)
			}
		}
	}
}

func TestPrefixCache(t *testing.T) {
	s := start(t, Options{LoRA: []string{"ad1"}})
	long := strings.Repeat("All work and no play makes a dull boy. ", 40)
	body := func(model, salt, content string) string {
		q := fmt.Sprintf(`{"model":%q,"max_tokens":8,"ignore_eos":true,"messages":[{"role":"user","content":%q}]`, model, content)
		if salt != "" {
			q += fmt.Sprintf(`,"cache_salt":%q`, salt)
		}
		return q + "}"
	}
	cold, warm := ask(t, s, body("tiny", "", long)), ask(t, s, body("alias", "", long))
	if cold.Usage.Details.Cached != 0 {
		t.Errorf("cold prompt: %d cached", cold.Usage.Details.Cached)
	}
	if got, want := warm.Usage.Details.Cached, (warm.Usage.Prompt-1)/16*16; got != want {
		t.Errorf("warm prompt of %d tokens: %d cached, want whole blocks and never the last token: %d", warm.Usage.Prompt, got, want)
	}
	for _, m := range []struct{ model, salt string }{{"ad1", ""}, {"tiny", "s1"}, {"tiny", "s2"}} {
		first, second := ask(t, s, body(m.model, m.salt, long)), ask(t, s, body(m.model, m.salt, long))
		if first.Usage.Details.Cached != 0 || second.Usage.Details.Cached == 0 {
			t.Errorf("model %s salt %q: cached %d then %d", m.model, m.salt, first.Usage.Details.Cached, second.Usage.Details.Cached)
		}
	}
	// The next turn of a conversation finds the answer cached, too.
	turn := fmt.Sprintf(`{"model":"tiny","max_tokens":64,"ignore_eos":true,"messages":[{"role":"user","content":%q}]}`, long)
	a := ask(t, s, turn)
	next := ask(t, s, fmt.Sprintf(`{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"go on"}]}`, long, a.Choices[0].Message.Content))
	if got, want := next.Usage.Details.Cached, (a.Usage.Total-1)/16*16; got != want {
		t.Errorf("next turn: %d cached, want prompt and answer of the turn before, %d", got, want)
	}
}

func TestErrors(t *testing.T) {
	s := start(t, Options{MaxModelLen: 100})
	long := strings.Repeat("word ", 200)
	for _, tc := range []struct {
		path, body        string
		status            int
		typ, param, words string
	}{
		{"/v1/chat/completions", `{"model":"x","messages":[{"role":"user","content":"a"}]}`, 404, "NotFoundError", "model", "The model `x` does not exist."},
		{"/v1/chat/completions", `{"model":"tiny","messages":[{"role":"user","content":"` + long + `"}]}`, 400, "BadRequestError", "input_tokens", "maximum context length is 100 tokens"},
		{"/v1/chat/completions", `{` + hello + `,"max_tokens":1000}`, 400, "BadRequestError", "max_tokens", "too large: 1000"},
		{"/v1/chat/completions", `{"model":"tiny",  ?}`, 400, "Bad Request", "body.18", "JSON"},
		{"/v1/chat/completions", ``, 400, "Bad Request", "body.0", "JSON"},
		{"/v1/chat/completions", `{"model":"tiny"}`, 400, "Bad Request", "body.messages", "Field required"},
		{"/v1/chat/completions", `{"model":"tiny","messages":[]}`, 400, "BadRequestError", "messages", "empty"},
		{"/v1/chat/completions", `{"model":"tiny","messages":[{"content":"a"}]}`, 400, "Bad Request", "body.messages", "role"},
		{"/v1/chat/completions", `{"model":"tiny","messages":"a"}`, 400, "Bad Request", "body.messages", "valid"},
		{"/v1/chat/completions", `{` + hello + `,"n":0}`, 400, "BadRequestError", "", "at least 1"},
		{"/v1/chat/completions", `{` + hello + `,"n":2}`, 400, "BadRequestError", "n", "n=2"},
		{"/v1/chat/completions", `{` + hello + `,"temperature":-1}`, 400, "BadRequestError", "temperature", "non-negative"},
		{"/v1/chat/completions", `{` + hello + `,"max_tokens":0}`, 400, "BadRequestError", "max_tokens", "at least 1"},
		{"/v1/chat/completions", `{` + hello + `,"max_tokens":"many"}`, 400, "Bad Request", "body.max_tokens", "valid"},
		{"/v1/chat/completions", `{` + hello + `,"cache_salt":""}`, 400, "BadRequestError", "cache_salt", "non-empty string"},
		{"/v1/chat/completions", `{` + hello + `,"stop":7}`, 400, "Bad Request", "body.stop", "valid"},
		{"/v1/chat/completions", `{` + hello + `,"stream_options":{"include_usage":true}}`, 400, "Bad Request", "body.stream_options", "stream"},
		{"/v1/completions", `{"model":"tiny"}`, 400, "BadRequestError", "prompt", "must be provided"},
		{"/v1/completions", `{"model":"tiny","prompt":["a","b"]}`, 400, "BadRequestError", "prompt", "one prompt"},
		{"/tokenize", `{"model":"x","prompt":"a"}`, 404, "NotFoundError", "model", "does not exist"},
		{"/detokenize", `{}`, 400, "Bad Request", "body.tokens", "Field required"},
		{"/v1/responses", `{"model":"tiny"}`, 400, "Bad Request", "body.input", "Field required"},
		{"/v1/embeddings", `{"model":"tiny"}`, 400, "Bad Request", "body.input", "valid"},
	} {
		status, b := post(t, s, tc.path, tc.body)
		var e struct {
			Error struct {
				Message, Type string
				Param         *string
				Code          int
			}
		}
		if err := json.Unmarshal([]byte(b), &e); err != nil {
			t.Errorf("%s: %v in %s", tc.body, err, b)
			continue
		}
		param := ""
		if e.Error.Param != nil {
			param = *e.Error.Param
		}
		if status != tc.status || e.Error.Code != tc.status || e.Error.Type != tc.typ || param != tc.param || !strings.Contains(e.Error.Message, tc.words) {
			t.Errorf("%s %.60s: %d %s", tc.path, tc.body, status, b)
		}
	}
	if status, b := get(t, s, "/nowhere"); status != 404 || b != `{"detail":"Not Found"}` {
		t.Errorf("unknown path: %d %s", status, b)
	}
	if status, b := get(t, s, "/v1/completions"); status != 405 || b != `{"detail":"Method Not Allowed"}` {
		t.Errorf("wrong method: %d %s", status, b)
	}
	status, b := post(t, s, "/v1/messages", `{"model":"x","max_tokens":5,"messages":[{"role":"user","content":"a"}]}`)
	if status != 404 || !strings.HasPrefix(b, `{"type":"error","error":{"type":"NotFoundError"`) {
		t.Errorf("messages: %d %s", status, b)
	}
}

func TestSmallEndpoints(t *testing.T) {
	s := start(t, Options{LoRA: []string{"ad1=/models/ad1"}})
	for _, p := range []string{"/health", "/ping"} {
		if status, b := get(t, s, p); status != 200 || b != "" {
			t.Errorf("%s: %d %q", p, status, b)
		}
	}
	if _, b := get(t, s, "/version"); !strings.Contains(b, "simulated") {
		t.Errorf("version %s", b)
	}
	if _, b := get(t, s, "/load"); b != `{"server_load":0}` {
		t.Errorf("load %s", b)
	}
	if _, b := get(t, s, "/kv_event_sources"); !strings.Contains(b, `"enable_kv_cache_events":false`) {
		t.Errorf("event sources %s", b)
	}
	_, b := get(t, s, "/v1/models")
	var list struct {
		Data []modelCard `json:"data"`
	}
	if err := json.Unmarshal([]byte(b), &list); err != nil || len(list.Data) != 3 {
		t.Fatalf("models %s %v", b, err)
	}
	if m := list.Data[0]; m.ID != "tiny" || m.Parent != nil || m.MaxModelLen == nil {
		t.Errorf("base model %+v", m)
	}
	if m := list.Data[2]; m.ID != "ad1" || m.Parent == nil || *m.Parent != "tiny" || m.MaxModelLen != nil || m.Root != "/models/ad1" {
		t.Errorf("adapter %+v", m)
	}
	_, b = post(t, s, "/tokenize", `{"model":"tiny","prompt":"Grüße, 世界! one two"}`)
	var tok struct {
		Count  int      `json:"count"`
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal([]byte(b), &tok); err != nil || tok.Count != len(tok.Tokens) || tok.Count < 5 {
		t.Fatalf("tokenize %s %v", b, err)
	}
	ids, _ := json.Marshal(tok.Tokens)
	if _, b = post(t, s, "/detokenize", `{"tokens":`+string(ids)+`}`); b != `{"prompt":"Grüße, 世界! one two"}` {
		t.Errorf("detokenize %s", b)
	}
	_, b = post(t, s, "/tokenize", `{`+hello+`}`)
	if want := ask(t, s, `{`+hello+`,"max_tokens":1}`).Usage.Prompt; !strings.Contains(b, fmt.Sprintf(`"count":%d,`, want)) {
		t.Errorf("tokenize says %s, usage %d", b, want)
	}
}

func TestOtherSurfaces(t *testing.T) {
	s := start(t, Options{})
	_, b := post(t, s, "/v1/messages", `{"model":"tiny","max_tokens":5,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}]}`)
	for _, want := range []string{`"type":"message"`, `"role":"assistant"`, `"content":[{"type":"text","text":"`, `"stop_reason":"max_tokens"`, `"output_tokens":5`} {
		if !strings.Contains(b, want) {
			t.Errorf("messages lacks %s: %s", want, b)
		}
	}
	names := func(body string) string {
		var out []string
		sc := bufio.NewScanner(strings.NewReader(body))
		for sc.Scan() {
			name, ok := strings.CutPrefix(sc.Text(), "event: ")
			if ok && (len(out) == 0 || out[len(out)-1] != name) {
				out = append(out, name)
			}
		}
		return strings.Join(out, " ")
	}
	_, b = post(t, s, "/v1/messages", `{"model":"tiny","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"hi"}]}`)
	if got, want := names(b), "message_start content_block_start content_block_delta content_block_stop message_delta message_stop"; got != want {
		t.Errorf("events %q, want %q", got, want)
	}
	if _, b = post(t, s, "/v1/messages/count_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}]}`); !strings.HasPrefix(b, `{"input_tokens":`) {
		t.Errorf("count_tokens %s", b)
	}
	_, b = post(t, s, "/v1/responses", `{"model":"tiny","input":"hi","max_output_tokens":3}`)
	for _, want := range []string{`"object":"response"`, `"status":"incomplete"`, `"type":"output_text"`, `"output_tokens":3`} {
		if !strings.Contains(b, want) {
			t.Errorf("responses lacks %s: %s", want, b)
		}
	}
	_, b = post(t, s, "/v1/responses", `{"model":"tiny","stream":true,"max_output_tokens":300,"instructions":"x","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]}`)
	if got := names(b); !strings.HasPrefix(got, "response.created response.in_progress response.output_item.added response.content_part.added response.output_text.delta response.output_text.done response.content_part.done response.output_item.done response.") {
		t.Errorf("events %q", got)
	}
	for _, f := range frames(t, b) {
		if !json.Valid([]byte(f)) {
			t.Errorf("not JSON: %s", f)
		}
	}
	_, b = post(t, s, "/v1/embeddings", `{"model":"tiny","input":["a","b"],"dimensions":3}`)
	var e struct {
		Data []struct {
			Embedding []float64 `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(b), &e); err != nil || len(e.Data) != 2 || len(e.Data[1].Embedding) != 3 {
		t.Errorf("embeddings %v %s", err, b)
	}
}
