// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// bodies that every plain proxy passes unchanged and most routers do not.
var faithful = []struct{ name, path, body string }{
	{"plain", "/v1/chat/completions", chatBody},
	{"order and space", "/v1/chat/completions", " {\n\t\"z\": 1 , \"messages\" : [ ] , \"model\" : \"m\" , \"a\":[ 1,2 ] }\n"},
	{"max_tokens", "/v1/chat/completions", `{"model":"m","max_tokens":5,"messages":[]}`},
	{"unknown members", "/v1/chat/completions", `{"guided_json":{"type":"object"},"cache_salt":"s","vllm_xargs":{"do":true},"top_k":5,"x_new":[{}],"model":"m","messages":[]}`},
	{"unknown in a message", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a","x_new":{"b":1}}]}`},
	{"unread key twice", "/v1/chat/completions", `{"model":"m","messages":[],"x":1,"x":2,"stop":"a","stop":"b"}`},
	{"big integer", "/v1/chat/completions", `{"model":"m","messages":[],"big":123456789012345678901234567890,"seed":9007199254740993}`},
	{"number formats", "/v1/chat/completions", `{"model":"m","messages":[],"a":1e2,"temperature":0.90,"top_p":1.0,"b":-0,"c":1E+5}`},
	{"escapes", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"\u00e9\/\ud83d\ude00 é 😀"}]}`},
	{"lone surrogate", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"\ud800 x"}]}`},
	{"no utf-8", "/v1/chat/completions", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"},
	{"nulls", "/v1/chat/completions", `{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]}],"stop":null,"user":null,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"z":{},"a":{}}}}}]}`},
	{"completions", "/v1/completions", `{"model":"m","prompt":["a","b"],"echo":true}`},
	{"embeddings", "/v1/embeddings", `{"model":"m","input":"x","encoding_format":null}`},
	{"responses", "/v1/responses", `{"model":"m","input":[{"role":"user","content":"x"}],"store":false}`},
	{"messages", "/v1/messages", `{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"x"}]}`},
	{"count tokens", "/v1/messages/count_tokens", `{"model":"m","messages":[{"role":"user","content":"x"}]}`},
	{"rerank", "/v2/rerank", `{"model":"m","query":"q","documents":["a"]}`},
	{"score", "/score", `{"model":"m","text_1":"q","text_2":"a"}`},
	{"tokenize", "/tokenize", `{"model":"m","prompt":"hello"}`},
	{"detokenize", "/detokenize", `{"model":"m","tokens":[1,2]}`},
	{"no model", "/v1/chat/completions", `{"messages":[]}`},
	{"adapter", "/v1/chat/completions", `{"model":"lora","messages":[]}`},
}

func TestRequestsPassUnchanged(t *testing.T) {
	got := make(chan *http.Request, 1)
	text := make(chan string, 1)
	u := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		got <- r
		text <- string(body)
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	for _, c := range faithful {
		res, answer := f.post(c.path+"?a=1&b=%20%2F&a=2", c.body,
			"X-Custom-Thing", "one", "X-Custom-Thing", "two", "Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
			"X-Request-Id", "my.id-1_x", "Authorization", "Bearer secret", "X-Forwarded-For", "10.0.0.1", "Content-Type", "application/json; charset=utf-8",
			"Anthropic-Beta", "x")
		if res.StatusCode != 200 || answer != okBody {
			t.Fatalf("%s: %d %s", c.name, res.StatusCode, answer)
		}
		r := <-got
		if b := <-text; b != c.body {
			t.Errorf("%s: body\n%s\nwant\n%s", c.name, b, c.body)
		}
		if r.RequestURI != c.path+"?a=1&b=%20%2F&a=2" || r.ContentLength != int64(len(c.body)) {
			t.Errorf("%s: %s, length %d", c.name, r.RequestURI, r.ContentLength)
		}
		h := r.Header
		if strings.Join(h["X-Custom-Thing"], ",") != "one,two" || !strings.HasPrefix(h.Get("Traceparent"), "00-4bf9") || h.Get("X-Request-Id") != "my.id-1_x" ||
			h.Get("Authorization") != "Bearer secret" || h.Get("X-Forwarded-For") != "10.0.0.1" || h.Get("Content-Type") != "application/json; charset=utf-8" ||
			h.Get("Anthropic-Beta") != "x" {
			t.Errorf("%s: header %v", c.name, h)
		}
		if res.Header.Get("X-Client-Request-Id") != "my.id-1_x" || RouterOf(res.Header.Get("X-Request-Id")) != "gw-1" || res.Header.Get("X-Penstock-Replica") != "r0" {
			t.Errorf("%s: answer header %v", c.name, res.Header)
		}
	}
	f.settled()
}

func TestAnswersPassUnchanged(t *testing.T) {
	sse := ": comment\n\nevent: x\nid: 7\nretry: 5\ndata: {\"choices\":[{\"delta\":{\"content\":\"é😀\\u00e9\"},\"x_new\":1e2}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\r\n\r\ndata: [DONE]\n\n"
	var gz bytes.Buffer
	zw := gzip.NewWriter(&gz)
	zw.Write([]byte(sse))
	zw.Close()
	odd := "{ \"b\":1,\"a\" : 1.0, \"x\":\"\\u00e9\" }\n"
	for _, c := range []struct{ name, answer, body, length string }{
		{"json", jsonAnswer(200, odd), odd, fmt.Sprint(len(odd))},
		{"no type", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n<a/>", "<a/>", "4"},
		{"chunked json", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(odd[:5]) + chunk(odd[5:]) + "0\r\n\r\n", odd, ""},
		{"to the end", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + odd + "CLOSE", odd, ""},
		{"events", stream(sse), sse, ""},
		{"events cut anywhere", stream(sse[:3], sse[3:50], sse[50:61], sse[61:]), sse, ""},
		{"gzip events", "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(gz.String()) + "0\r\n\r\n", gz.String(), ""},
		{"error with headers", "HTTP/1.1 429 Slow\r\nRetry-After: -1\r\nX-Engine: v\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>", "<html>", "6"},
		{"empty", "HTTP/1.1 204 No Content\r\n\r\n", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, setup{}, says(t, c.answer).url)
			res, body := f.chat(streamReq, "Accept-Encoding", "gzip")
			if body != c.body || res.Header.Get("Content-Length") != c.length && c.length != "" {
				t.Errorf("got %q %v, want %q", body, res.Header, c.body)
			}
			if c.name == "no type" && res.Header["Content-Type"] != nil {
				t.Errorf("a type was made up: %v", res.Header)
			}
			if c.name == "error with headers" && (res.StatusCode != 429 || res.Header.Get("Retry-After") != "-1" || res.Header.Get("X-Engine") != "v" || res.Header.Get("X-Penstock-Error-Source") != "") {
				t.Errorf("%d %v", res.StatusCode, res.Header)
			}
			f.settled()
		})
	}
}

// A short stream that comes in one read must still be a stream for the client.
func TestStreamStaysAStream(t *testing.T) {
	f := newFixture(t, setup{}, says(t, stream(token, finish, done)).url)
	res, body := f.chat(streamReq)
	if res.ContentLength != -1 || body != token+finish+done {
		t.Errorf("length %d, body %q", res.ContentLength, body)
	}
}

func TestInternalHeadersAreStripped(t *testing.T) {
	var got http.Header
	u := scripted(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		got = r.Header
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	f.chat(chatBody, "X-Gateway-Destination-Endpoint", "10.0.0.1:80", "x-gateway-destination-endpoint-subset", "a", "X-Penstock-Tenant", "root",
		"X_Penstock_Tenant", "root", "X-Prefiller-Url", "http://x", "X-Data-Parallel-Rank", "3", "Target-Pod", "x", "X-Request-Id", "bad id\"", "Te", "trailers",
		"Connection", "X-Hop", "X-Hop", "1", "X-Custom", "stays")
	for k := range got {
		switch k {
		case "X-Request-Id", "X-Custom", "User-Agent", "Accept-Encoding", "Content-Length":
		default:
			t.Errorf("%s went on: %v", k, got[k])
		}
	}
	if RouterOf(got.Get("X-Request-Id")) != "gw-1" {
		t.Errorf("id %q", got.Get("X-Request-Id"))
	}
}

// The name of the model changes length in both directions, over all codings of the
// client's side.
func TestAliasBothWays(t *testing.T) {
	var got []byte
	var length int64
	answer := `{"id":"c","model":"m","choices":[{"message":{"content":"\"model\":\"m\""},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`
	u := scripted(t, func(c net.Conn, r *http.Request, body []byte) bool {
		got, length = body, r.ContentLength
		if bytes.Contains(body, []byte(`"stream":true`)) {
			io.WriteString(c, stream(`data: {"model":"m","choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}`+"\n\n", done))
			return true
		}
		io.WriteString(c, jsonAnswer(200, answer))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	ts := httptest.NewUnstartedServer(f.h)
	ts.EnableHTTP2 = true
	ts.StartTLS()
	defer ts.Close()
	for _, alias := range []string{"alias", "a-much-longer-public-name", "m"} {
		body := `{"stream": false, "temperature": 1.0, "model": "` + alias + `", "messages": [{"role":"user","content":"say \"model\": \"` + alias + `\" \u00e9"}], "seed": 12345678901234567890}`
		want := strings.Replace(body, `"model": "`+alias+`"`, `"model": "m"`, 1)
		for _, via := range []string{"length", "chunked", "h2"} {
			var rd io.Reader = strings.NewReader(body)
			base, client := f.url, http.DefaultClient
			switch via {
			case "chunked":
				rd = io.MultiReader(rd)
			case "h2":
				base, client = ts.URL, ts.Client()
			}
			res, err := client.Post(base+"/v1/chat/completions", "application/json", rd)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || string(got) != want || length != int64(len(want)) {
				t.Errorf("%s %s: %v: the engine got %s", alias, via, err, got)
			}
			if string(text) != strings.Replace(answer, `"model":"m"`, `"model":"`+alias+`"`, 1) {
				t.Errorf("%s %s: the client got %s", alias, via, text)
			}
			if via == "h2" && res.ProtoMajor != 2 {
				t.Error("no HTTP/2")
			}
		}
		_, text := f.chat(`{"model":"` + alias + `","messages":[],"stream":true}`)
		if text != `data: {"model":"`+alias+`","choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}`+"\n\n"+done {
			t.Errorf("stream: %s", text)
		}
	}
	f.settled()
}

func TestAdapterKeepsItsName(t *testing.T) {
	var got []byte
	u := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		got = body
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	body := `{"model":"lora","messages":[]}`
	f.chat(body)
	if string(got) != body {
		t.Errorf("the engine got %s", got)
	}
	f.settled()
	if r := f.records.last(); r.Request.Model != "m" || r.Request.Adapter != "lora" {
		t.Errorf("%+v", r.Request)
	}
}

func TestH2CAndOneByteReads(t *testing.T) {
	f := newFixture(t, setup{}, says(t, stream(token, finish, done)).url)
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, TLSClientConfig: &tls.Config{}}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(streamReq))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(iotestOneByte{res.Body})
	res.Body.Close()
	if res.ProtoMajor != 2 || string(b) != token+finish+done {
		t.Errorf("%s %q", res.Proto, b)
	}
	f.settled()
}

type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:1]) }
