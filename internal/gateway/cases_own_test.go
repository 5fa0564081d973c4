// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
)

// Case 39 with streams of our own: wherever usage stands, the bytes pass and it is found.
func TestCase39UsageShapes(t *testing.T) {
	const usage = `"usage":{"prompt_tokens":31,"completion_tokens":2,"total_tokens":33}`
	first, last := `data: {"id":"a","choices":[{"index":0,"delta":{"content":"Hé"},"finish_reason":null}]}`+"\n\n", `data: {"id":"a","choices":[{"index":0,"delta":{"content":"y"},"finish_reason":null}]}`+"\n\n"
	end := `data: {"id":"a","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	for name, text := range map[string]string{
		"no choices in the list": first + last + end + "data: {\"id\":\"a\",\"choices\":[]," + usage + "}\n\n" + done,
		"no list at all":         first + last + end + "data: {\"id\":\"a\"," + usage + "}\n\n" + done,
		"null list":              first + last + end + "data: {\"id\":\"a\",\"choices\":null," + usage + "}\n\n" + done,
		"with the finish reason": first + last + strings.Replace(end, `}]}`, `}],`+usage+`}`, 1) + done,
		"with the last token":    first + strings.Replace(strings.Replace(last, "null", `"stop"`, 1), `}]}`, `}],`+usage+`}`, 1) + done,
		"an empty first frame":   "data: {\"id\":\"\",\"choices\":[],\"prompt_filter_results\":[{\"x\":{}}]}\n\n" + ": keep-alive\n\n" + first + last + end + "data: {\"choices\":[]," + usage + "}\n\n" + done,
		"no end word":            first + last + end + "data: {\"choices\":[]," + usage + "}\n\n",
		"usage in the content":   strings.Replace(first, "Hé", `\"usage\":{\"prompt_tokens\":9}`, 1) + last + end + "data: {\"choices\":[]," + usage + "}\n\n" + done,
	} {
		cut := strings.LastIndex(text, `"usage"`) + 4
		f := newFixture(t, setup{}, says(t, sseHead+chunk(text[:cut])+chunk(text[cut:])+"0\r\n\r\n").url)
		_, body := f.chat(streamReq)
		if body != text {
			t.Errorf("%s: the bytes changed to %q", name, body)
		}
		if o := f.outcome(1); o.Kind != "ok" || o.PromptTokens == nil || *o.PromptTokens != 31 || *o.OutputTokens != 2 {
			t.Errorf("%s: %+v", name, o)
		}
		f.settled()
	}
}

// Case 44 with bodies of our own: what engines accept passes to the byte, what cannot
// be understood is refused by the name of its field, and the connection goes on.
func TestCase44ContentShapes(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{}, u.url)
	message := func(m string) string { return `{"model":"m","messages":[` + m + `]}` }
	for _, body := range []string{
		message(`{"role":"user","content":"good day"}`), message(`{"role":"user","content":[{"type":"text","text":"good day"}]}`),
		message(`{"role":"assistant","content":null,"tool_calls":[{"id":"c9","type":"function","function":{"name":"f","arguments":"{\"a\":1.0}"}}]},{"role":"tool","tool_call_id":"c9","content":"1"}`),
		message(`{"role":"assistant","content":""},{"role":"assistant"},{"role":"user","content":"x"}`),
		message(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lGOD=="}},{"type":"text","text":"what?"}]}`),
		message(`{"role":"developer","content":[{"type":"refusal","refusal":"no"},{"type":"from_the_future","x":[1,{}]}]}`),
		strings.TrimSuffix(message(`{"role":"user","content":"x"}`), "}") + `,"of_tomorrow":{"k":[1e2,-0,"\u00e9"]}}`,
	} {
		res, text := f.chat(body)
		e.mu.Lock()
		if res.StatusCode != 200 || e.body != body {
			t.Errorf("%s: %d %s, the engine got %s", body, res.StatusCode, text, e.body)
		}
		e.mu.Unlock()
	}
	for _, body := range []string{`{"model":{"name":"m"},"messages":[]}`, `{"model":3,"messages":[]}`, `{"model":"m","messages":"x"`} {
		if res, text := f.chat(body); res.StatusCode != 400 || !strings.Contains(text, `"error":{"message":`) {
			t.Errorf("%s: %d %s", body, res.StatusCode, text)
		}
	}
	if res, text := f.chat(message(`{"role":"user","content":[{"type":"image_url","image_url":{}}]}`)); res.StatusCode != 200 && res.StatusCode != 400 {
		t.Errorf("an image without an address: %d %s", res.StatusCode, text)
	}
	if res, _ := f.chat(chatBody); res.StatusCode != 200 || f.metric("panics_total") != 0 {
		t.Error("the next request does not work")
	}
}

// Case 46 with names of our own, longer and shorter than the model's: the engine gets a
// whole body of the right length however it was sent, and nothing but the name changes.
func TestCase46LengthAfterRewrite(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{})
	f.grow(Pool{Models: []Model{{Name: "m"}}}, more{Pool: Pool{Name: "long", Models: []Model{{Name: "model-of-middle-length",
		Aliases: []string{"short", "an-alias-that-is-much-longer-than-the-model"}}}}, urls: []string{u.url}})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	h2 := &http.Transport{Protocols: &p}
	defer h2.CloseIdleConnections()
	for _, alias := range []string{"short", "an-alias-that-is-much-longer-than-the-model"} {
		body := `{"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{"const":"` + alias + `"}}}}}],"temperature":1.0,"seed":12345678901234567890, "model" : "` +
			alias + `","messages":[{"role":"user","content":"\"model\":\"` + alias + `\" \u00e9 <b>"}]}`
		want := strings.Replace(body, `"model" : "`+alias+`"`, `"model" : "model-of-middle-length"`, 1)
		for name, rt := range map[string]http.RoundTripper{"HTTP/1.1": http.DefaultTransport, "HTTP/2": h2} {
			for _, length := range []int64{int64(len(body)), -1} {
				req, _ := http.NewRequestWithContext(context.Background(), "POST", f.url+"/v1/chat/completions", io.NopCloser(bytes.NewReader([]byte(body))))
				req.ContentLength = length
				res, err := rt.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(res.Body)
				res.Body.Close()
				if err != nil || res.StatusCode != 200 || !strings.Contains(string(text), `"model":"`+alias+`"`) && strings.Contains(string(text), `"model"`) {
					t.Errorf("%s, length %d: %d %s, %v", name, length, res.StatusCode, text, err)
				}
				e.mu.Lock()
				if e.body != want {
					t.Errorf("%s, length %d: the engine got %s", name, length, e.body)
				}
				e.mu.Unlock()
			}
		}
	}
}
