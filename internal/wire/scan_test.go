// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/testinput"
)

func scan(t testing.TB, surface fleet.Surface, body string) *Scan {
	t.Helper()
	var s Scan
	if err := ScanRequest(&s, surface, []byte(body), Limits{}); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return &s
}

func TestScanReadsWhatARouterNeeds(t *testing.T) {
	s := scan(t, fleet.SurfaceChat, ` {"messages":[{"role":"system","content":"be brief"},{"content":"h\u00e9 \"y\"","role":"user"}],
		"n":2,"stream":true,"stream_options":{"include_usage":true,"x":1},"model":"llama\u002d3","max_tokens":10,
		"max_completion_tokens":20,"user":"u1","prompt_cache_key":"k","cache_salt":"s\n","seed":12345678901234567890,"unknown":{"model":"no"}} `)
	if string(s.Model) != "llama-3" || !s.Stream || !s.IncludeUsage || s.MaxTokens != 20 || s.N != 2 || string(s.CacheSalt) != "s\n" {
		t.Fatalf("got %+v", s)
	}
	if s.User == 0 || s.CacheKey == 0 || s.Messages != 2 || s.Media != 0 {
		t.Fatalf("got %+v", s)
	}
	if want := len("be brief") + len(`hé "y"`); s.TextBytes != want {
		t.Errorf("TextBytes = %d, want %d", s.TextBytes, want)
	}
}

func TestScanOtherSurfaces(t *testing.T) {
	for _, c := range []struct {
		surface fleet.Surface
		body    string
		check   func(s *Scan) bool
	}{
		{fleet.SurfaceCompletions, `{"model":"m","prompt":"hello","max_tokens":1e3}`, func(s *Scan) bool { return s.TextBytes == 5 && s.MaxTokens == 1000 }},
		{fleet.SurfaceCompletions, `{"model":"m","prompt":["ab","c"]}`, func(s *Scan) bool { return s.TextBytes == 3 }},
		{fleet.SurfaceCompletions, `{"model":"m","prompt":[1, 2,30]}`, func(s *Scan) bool { return s.TokenIDs == 3 && s.TextBytes == 0 && len(s.pieces) == 1 }},
		{fleet.SurfaceCompletions, `{"model":"m","prompt":[[1,2],[3]]}`, func(s *Scan) bool { return s.TokenIDs == 3 && len(s.pieces) == 2 }},
		{fleet.SurfaceEmbeddings, `{"model":"m","input":"hello","encoding_format":null}`, func(s *Scan) bool { return s.TextBytes == 5 }},
		{fleet.SurfaceResponses, `{"model":"m","instructions":"be","input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"function_call_output","call_id":"c","output":"4"}],"max_output_tokens":7}`,
			func(s *Scan) bool { return s.TextBytes == 5 && s.MaxTokens == 7 && s.Messages == 2 }},
		{fleet.SurfaceMessages, `{"model":"m","system":[{"type":"text","text":"sys","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"metadata":{"user_id":"u"}}`,
			func(s *Scan) bool { return s.TextBytes == 5 && s.MaxTokens == 5 && s.User != 0 }},
		{fleet.SurfaceRerank, `{"model":"m","query":"q","documents":["d1","d2"]}`, func(s *Scan) bool { return s.TextBytes == 5 }},
		{fleet.SurfaceScore, `{"model":"m","text_1":"q","text_2":["d1"]}`, func(s *Scan) bool { return s.TextBytes == 3 }},
		{fleet.SurfaceTokenize, `{"model":"m","prompt":"hello"}`, func(s *Scan) bool { return s.TextBytes == 5 }},
		{fleet.SurfaceDetokenize, `{"model":"m","tokens":[1,2]}`, func(s *Scan) bool { return s.TextBytes == 0 }},
		{fleet.SurfaceChat, `{"model":null,"messages":null}`, func(s *Scan) bool { return s.Model == nil && s.ModelSpan.Len() == 0 }},
		{fleet.SurfaceChat, `{"messages":[],"max_tokens":-100,"n":-3,"stream":null}`, func(s *Scan) bool { return s.MaxTokens == 0 && s.N == 1 && !s.Stream }},
		{fleet.SurfaceChat, `{"messages":[],"max_tokens":900,"max_completion_tokens":20,"n_predict":70}`, func(s *Scan) bool { return s.MaxTokens == 20 && s.MostTokens == 900 }},
		{fleet.SurfaceCompletions, `{"prompt":["a","b","c"],"n":2,"best_of":5,"logprobs":4,"prompt_logprobs":7}`, func(s *Scan) bool { return s.Answers() == 15 && s.Logprobs == 7 }},
		{fleet.SurfaceCompletions, `{"prompt":[[1,2],[3]],"logprobs":-1}`, func(s *Scan) bool { return s.Answers() == 2 && s.Logprobs == -1 }},
		{fleet.SurfaceCompletions, `{"prompt":[1,2,3]}`, func(s *Scan) bool { return s.Answers() == 1 }},
		{fleet.SurfaceChat, `{"messages":[],"max_tokens":99999999999999999999,"n":2147483647}`, func(s *Scan) bool { return s.MaxTokens == 1<<31-1 && s.N == 1<<31-1 }},
	} {
		if s := scan(t, c.surface, c.body); !c.check(s) {
			t.Errorf("%s: got %+v", c.body, s)
		}
	}
}

func TestScanRefuses(t *testing.T) {
	deep := strings.Repeat("[", 300) + strings.Repeat("]", 300)
	for _, c := range []struct{ body, param, code string }{
		{"", "", CodeInvalidJSON},
		{"  \n", "", CodeInvalidJSON},
		{"{", "", CodeInvalidJSON},
		{`{"model":"a"`, "", CodeInvalidJSON},
		{`{"model":"a",}`, "", CodeInvalidJSON},
		{`{"model":"a"} x`, "", CodeInvalidJSON},
		{`{"model":"a"}{}`, "", CodeInvalidJSON},
		{"{\"model\":\"a\nb\"}", "", CodeInvalidJSON},
		{`{"model":"\x"}`, "", CodeInvalidJSON},
		{`{"x":01}`, "", CodeInvalidJSON},
		{`{"x":1.}`, "", CodeInvalidJSON},
		{`{"x":nul}`, "", CodeInvalidJSON},
		{`[]`, "", CodeInvalidJSON},
		{`"x"`, "", CodeInvalidJSON},
		{`{"x":` + deep + `}`, "", CodeInvalidJSON},
		{`{"model":{"name":"m"},"messages":[]}`, "model", CodeInvalidType},
		{`{"model":7,"messages":[]}`, "model", CodeInvalidType},
		{`{"model":"m","messages":[],"n":"1000000"}`, "n", CodeInvalidType},
		{`{"model":"m","messages":[],"n":" 1_000 "}`, "n", CodeInvalidType},
		{`{"model":"m","messages":[],"max_tokens":"100"}`, "max_tokens", CodeInvalidType},
		{`{"model":"m","messages":[],"max_completion_tokens":" 1_0 "}`, "max_completion_tokens", CodeInvalidType},
		{`{"model":"m","messages":[],"n_predict":"9"}`, "n_predict", CodeInvalidType},
		{`{"model":"m","messages":[],"best_of":"9"}`, "best_of", CodeInvalidType},
		{`{"model":"m","messages":[],"top_logprobs":"9"}`, "top_logprobs", CodeInvalidType},
		{`{"model":"m","messages":[],"stream":"yes"}`, "stream", CodeInvalidType},
		{`{"model":"m","messages":[],"stream":"true"}`, "stream", CodeInvalidType},
		{`{"model":"m","messages":[],"stream":1}`, "stream", CodeInvalidType},
		{`{"model":"m","messages":[],"stream":-0.0}`, "stream", CodeInvalidType},
		{`{"model":"m","messages":[],"stream_options":{"include_usage":"on"}}`, "stream_options.include_usage", CodeInvalidType},
		{`{"messages":[],"kv_transfer_params":{"remote_host":"10.0.0.1"}}`, "", CodeInvalidValue},
		{`{"messages":[],"lora_path":"/etc/x"}`, "", CodeInvalidValue},
		{`{"messages":[],"lor\u0061":[{"id":1}]}`, "", CodeInvalidValue},
		{`{"messages":[],"bootstrap_host":"10.0.0.1"}`, "", CodeInvalidValue},
		{`{"model":"m"}`, "messages", CodeMissing},
		{`{"model":"a","messages":[],"model":"b"}`, "model", CodeInvalidValue},
		{`{"model":"a","messages":[],"Model":"b"}`, "model", CodeInvalidValue},
		{`{"Model":"b","messages":[]}`, "model", CodeInvalidValue},
		{`{"model":"a","messages":[],"mod\u0065l":"b"}`, "model", CodeInvalidValue},
		{`{"model":"a","messages":[],"\u017ftream":true}`, "stream", CodeInvalidValue},
		{"{\"model\":\"a\",\"messages\":[],\"max_to\u212aens\":1}", "max_tokens", CodeInvalidValue},
		{`{"messages":[],"stream_options":{"include_usage":true,"include_usage":false}}`, "stream_options.include_usage", CodeInvalidValue},
		{`{"messages":[{"role":"user","content":"a","content":"b"}]}`, "messages[0].content", CodeInvalidValue},
		{`{"messages":[{},{"Role":"user"}]}`, "messages[1].role", CodeInvalidValue},
		{`{"messages":[{"content":[{"text":"a","text":"b"}]}]}`, "messages[0].content[0].text", CodeInvalidValue},
	} {
		var s Scan
		err := ScanRequest(&s, fleet.SurfaceChat, []byte(c.body), Limits{})
		var bad *BadRequest
		if !errors.As(err, &bad) || bad.Param != c.param || bad.Code != c.code {
			t.Errorf("%.60s: got %v (%+v), want param %q code %q", c.body, err, bad, c.param, c.code)
		}
	}
}

func TestScanPasses(t *testing.T) {
	deep := strings.Repeat(`{"a":[`, 100) + strings.Repeat(`]}`, 100)
	for _, body := range []string{
		`{"messages":[],"x":1,"x":2}`,                       // twice, but we do not read it
		`{"messages":[],"prompt":1,"prompt":2,"input":3}`,   // of other surfaces
		`{"messages":[],"STOP":1,"stop":null,"x":1e400}`,    // unread, any number
		`{"messages":[{"role":"user","content":"\ud800"}]}`, // half of a surrogate pair
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}",
		`{"messages":[],"tools":` + deep + `}`,
		`{"messages":[{"content":[{"type":"image_url","image_url":{}}]},{"content":{"a":1}},{"content":7},"x",null]}`,
		`{"messages":[],"seed":9007199254740993,"big":123456789012345678901234567890,"f":0.90,"e":1E2,"s":"\/\u00e9"}`,
	} {
		scan(t, fleet.SurfaceChat, body)
	}
}

func keys(t testing.TB, surface fleet.Surface, body string) []uint64 {
	t.Helper()
	s := scan(t, surface, body)
	var h prefix.Hasher
	h.Reset(1, 8)
	s.Feed([]byte(body), &h)
	return slices.Clone(h.Blocks())
}

func TestPrefixKeys(t *testing.T) {
	long := strings.Repeat("lorem ipsum ", 10)
	base := keys(t, fleet.SurfaceChat, `{"model":"m","messages":[{"role":"user","content":"`+long+`"}]}`)
	for _, same := range []string{
		`{"messages":[{"content":"` + long + `","role":"user"}],"model":"m"}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"` + long + `"}]}],"temperature":1}`,
		` { "messages" : [ { "role" : "user" , "content" : "` + long + `" } ] } `,
	} {
		if got := keys(t, fleet.SurfaceChat, same); !slices.Equal(got, base) {
			t.Errorf("%s has another key", same)
		}
	}
	next := keys(t, fleet.SurfaceChat, `{"messages":[{"role":"user","content":"`+long+`"},{"role":"assistant","content":"ok"},{"role":"user","content":"more"}]}`)
	if len(next) <= len(base) || !slices.Equal(next[:len(base)], base) {
		t.Error("the next turn does not begin with the blocks of the turn before")
	}
	for _, other := range []string{
		`{"messages":[{"role":"system","content":"` + long + `"}]}`,
		`{"messages":[{"role":"user","content":"x` + long + `"}]}`,
		`{"tools":[{"a":1}],"messages":[{"role":"user","content":"` + long + `"}]}`,
	} {
		if got := keys(t, fleet.SurfaceChat, other); got[0] == base[0] {
			t.Errorf("%s shares the first block", other)
		}
	}
	// Tools are rendered before the messages, wherever they stand in the body.
	a := keys(t, fleet.SurfaceChat, `{"tools":[{"name":"weather"}],"messages":[{"role":"user","content":"`+long+`"}]}`)
	b := keys(t, fleet.SurfaceChat, `{"messages":[{"role":"user","content":"`+long+`"}],"tools":[{"name":"weather"}]}`)
	if !slices.Equal(a, b) {
		t.Error("the place of tools in the body changes the key")
	}
}

func TestMediaCountsAsDigest(t *testing.T) {
	img := func(data string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + data + `"}},{"type":"text","text":"what is it, tell me"}]}]}`
	}
	s := scan(t, fleet.SurfaceChat, img(strings.Repeat("A", 100000)))
	if s.Media != 1 || s.TextBytes != len("what is it, tell me") {
		t.Fatalf("got %+v", s)
	}
	a, b := keys(t, fleet.SurfaceChat, img("AAAA")), keys(t, fleet.SurfaceChat, img("AAAB"))
	if len(a) == 0 || a[len(a)-1] == b[len(b)-1] {
		t.Error("two images share a key")
	}
	if !slices.Equal(a, keys(t, fleet.SurfaceChat, img("AAAA"))) {
		t.Error("one image has two keys")
	}
	// An Anthropic tool result holds parts of its own.
	s = scan(t, fleet.SurfaceMessages, `{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"ok"},{"type":"image","source":{"type":"base64","data":"AAAA"}}]},{"type":"tool_use","name":"f","input":{"a":1}}]}]}`)
	if s.Media != 1 || s.TextBytes != len("ok")+len("f")+len(`{"a":1}`) {
		t.Errorf("got %+v", s)
	}
}

func TestContentShapesOfTheField(t *testing.T) {
	f, err := os.Open(testinput.Shared(t, "cases/44-content-shapes/requests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := map[int][]uint64{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var c struct {
			Case int
			Body json.RawMessage
		}
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		var s Scan
		err := ScanRequest(&s, fleet.SurfaceChat, c.Body, Limits{})
		if refused := c.Case == 9 || c.Case == 10; (err != nil) != refused {
			t.Errorf("request %d: %v", c.Case, err)
			continue
		}
		var h prefix.Hasher
		h.Reset(1, 4)
		s.Feed(c.Body, &h)
		got[c.Case] = slices.Clone(h.Blocks())
	}
	if !slices.Equal(got[1], got[2]) || len(got[1]) == 0 {
		t.Errorf("string and text part differ: %v %v", got[1], got[2])
	}
}

func TestSpliceModel(t *testing.T) {
	for _, name := range []string{"llama-3.1-8b-instruct-awq", "m", `q"\é`} {
		body := `{"stream": false, "temperature": 1.0, "model": "chat", "messages": [{"role":"user","content":"say \"model\": \"chat\" \u00e9"}], "seed": 12345678901234567890}`
		s := scan(t, fleet.SurfaceChat, body)
		quoted := string(AppendString(nil, name))
		want := strings.Replace(body, `"model": "chat"`, `"model": `+quoted, 1)
		if got := string(SpliceModel(nil, []byte(body), s.ModelSpan, name)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestScanDoesNotAllocate(t *testing.T) {
	body := []byte(chatBody(20, 200))
	var s Scan
	var h prefix.Hasher
	one := func() {
		if err := ScanRequest(&s, fleet.SurfaceChat, body, Limits{}); err != nil {
			t.Fatal(err)
		}
		h.Reset(7, 512)
		s.Feed(body, &h)
	}
	one()
	if n := testing.AllocsPerRun(100, one); n != 0 {
		t.Errorf("%v allocations a scan", n)
	}
}

// chatBody builds a chat request of n messages with text of about size bytes each
// and an escape about every 80 characters.
func chatBody(n, size int) string {
	var b strings.Builder
	b.WriteString(`{"model":"llama-3.1-8b","stream":true,"messages":[`)
	line := `The quick brown fox jumps over the lazy dog, then it rests below the old tree.\n`
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"role":"user","content":"`)
		for k := 0; k < size; k += len(line) {
			b.WriteString(line)
		}
		b.WriteString(`"}`)
	}
	b.WriteString(`],"temperature":0.7}`)
	return b.String()
}

func BenchmarkScan(b *testing.B) {
	for _, c := range []struct {
		name string
		body string
	}{
		{"2KiB", chatBody(2, 960)},
		{"400KB", chatBody(8, 50000)},
	} {
		body := []byte(c.body)
		b.Run(c.name, func(b *testing.B) {
			var s Scan
			var h prefix.Hasher
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := ScanRequest(&s, fleet.SurfaceChat, body, Limits{}); err != nil {
					b.Fatal(err)
				}
				h.Reset(7, 512)
				s.Feed(body, &h)
			}
		})
		b.Run(c.name+"/valid", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if !json.Valid(body) {
					b.Fatal()
				}
			}
		})
	}
}

// nested reports how deep a JSON text nests at most.
func nested(b []byte) int {
	depth, most := 0, 0
	d := json.NewDecoder(bytes.NewReader(b))
	for {
		tok, err := d.Token()
		if err != nil {
			return most
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > most {
				most = depth
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

func FuzzScanRequest(f *testing.F) {
	for _, s := range []string{
		chatBody(2, 100), `{"model":"a","messages":[],"Model":"b"}`, `{"prompt":[1,2.5e-3,-0],"model":"\u00e9"}`,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}`,
		`{"messages":[{"content":null,"tool_calls":[{"function":{"arguments":"{}"}}]}],"stream_options":{"include_usage":true}}`,
		`{"a":"\ud800\/"}`, "{\"a\":\"\x01\"}", `{"a":tru}`, `[1,{}]`, ``, `{}`, `{"metadata":{"user_id":"x"}}`,
	} {
		for surface := range uint8(12) {
			f.Add(surface, []byte(s))
		}
	}
	f.Fuzz(func(t *testing.T, surface uint8, body []byte) {
		var s Scan
		err := ScanRequest(&s, fleet.Surface(surface%12), body, Limits{})
		valid := json.Valid(body)
		var bad *BadRequest
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("%T: %v", err, err)
		}
		switch {
		case err == nil && !valid:
			t.Fatalf("passed, but it is not valid JSON: %q", body)
		case err != nil && bad.Code == CodeInvalidJSON && valid && nested(body) <= DefaultMaxDepth:
			if trimmed := bytes.TrimLeft(body, " \t\r\n"); trimmed[0] == '{' {
				t.Fatalf("refused valid JSON: %v: %q", err, body)
			}
		case err != nil && bad.Code == CodeInvalidJSON && bad.Param != "":
			t.Fatalf("%+v", bad)
		}
		if err != nil {
			return
		}
		var h prefix.Hasher
		h.Reset(1, 64)
		s.Feed(body, &h)
		checkAgainstDecoder(t, &s, body)
	})
}

// checkAgainstDecoder compares the model with what encoding/json reads, where the
// body leaves it no choice between two members.
func checkAgainstDecoder(t *testing.T, s *Scan, body []byte) {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	raw, ok := m["model"]
	if !ok || string(raw) == "null" {
		if s.Model != nil {
			t.Fatalf("model %q out of nothing in %q", s.Model, body)
		}
		return
	}
	var want string
	if err := json.Unmarshal(raw, &want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(s.Model, []byte("\xff")) && strings.ToValidUTF8(string(s.Model), "\ufffd") != want && len(s.Model) < 4 {
		t.Fatalf("model %q, want %q", s.Model, want)
	}
	spliced := SpliceModel(nil, body, s.ModelSpan, "other")
	var again Scan
	if err := ScanRequest(&again, s.Surface, spliced, Limits{}); err != nil || string(again.Model) != "other" {
		t.Fatalf("after the splice: %v, %q", err, again.Model)
	}
}
