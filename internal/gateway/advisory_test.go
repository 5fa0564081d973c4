// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/identity"
)

// lastSeen is an engine that keeps the head and body of its last request.
type lastSeen struct {
	mu   sync.Mutex
	head http.Header
	path string
	body string
}

func (l *lastSeen) script(c net.Conn, req *http.Request, body []byte) bool {
	l.mu.Lock()
	l.head, l.path, l.body = req.Header, req.URL.Path, string(body)
	l.mu.Unlock()
	io.WriteString(c, jsonAnswer(200, okBody))
	return true
}

// GHSA-4gph-2hhr-5mwg: two spellings of a member are two meanings for two parsers.
func TestAdvisoryParserDifferential(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{}, u.url)
	for _, body := range []string{
		`{"model":"m","messages":[],"model":"lora"}`, `{"model":"m","Model":"lora","messages":[]}`, `{"model":"m","MODEL":"lora","messages":[]}`,
		`{"model":"m","mod\u0065l":"lora","messages":[]}`,
	} {
		if res, text := f.chat(body); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", body, res.StatusCode, text)
		}
	}
	if u.seen.Load() != 0 {
		t.Error("an ambiguous body reached the engine")
	}
}

// CVE-2024-6587 and the llm-d and agentgateway reports: no client chooses where its
// request goes, nor who it is.
func TestAdvisoryClientChosenUpstream(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	k := newKeyFile(t)
	_, key := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	trap := says(t, jsonAnswer(200, okBody))
	res, _ := f.chat(strings.TrimSuffix(chatBody, "}")+`,"api_base":"`+trap.url+`","base_url":"`+trap.url+`"}`,
		"Authorization", "Bearer "+key, "X-Gateway-Destination-Endpoint", trap.l.Addr().String(), "X-Prefiller-Url", trap.url,
		"X_Gateway_Destination_Endpoint", trap.l.Addr().String(), "Target-Pod", "x", "X-Penstock-Tenant", "rich", "X-Penstock-Replica", "x")
	if res.StatusCode != 200 || trap.seen.Load() != 0 {
		t.Fatalf("%d, the trap saw %d", res.StatusCode, trap.seen.Load())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.head {
		if internalHeader(name) || name == "Authorization" {
			t.Errorf("%s went on to the engine", name)
		}
	}
	f.outcome(1)
	if got := f.records.last().Request.Tenant; got != "acme" {
		t.Errorf("tenant %q", got)
	}
}

// vLLM's guide to security: control endpoints are guarded by nothing but the path.
func TestAdvisoryControlEndpoints(t *testing.T) {
	u := says(t, jsonAnswer(200, "{}"))
	f := newFixture(t, setup{}, u.url)
	for _, path := range []string{
		"/pause", "/resume", "/sleep", "/wake_up", "/collective_rpc", "/update_weights", "/invocations", "/scale_elastic_ep", "/reset_prefix_cache",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/metrics", "/v1/../pause", "/v1/chat/completions/../../../sleep", "//pause", "/v1/chat/completions/",
		"/%70ause", "/v1/chat%2fcompletions",
	} {
		res, _ := f.post(path, chatBody)
		if path != "/v1/chat%2fcompletions" && res.StatusCode < 400 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	if n := u.seen.Load(); n > 1 {
		t.Errorf("%d requests reached the engine", n)
	}
}

// vLLM CVE-2026-34756 class: a number that makes an engine set memory aside.
func TestAdvisoryAstronomicalN(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, n := range []string{"2147483647", "1e300", "129", `"129"`, `"1000000"`, `" 1_000_000 "`} {
		if res, _ := f.chat(strings.TrimSuffix(chatBody, "}") + `,"n":` + n + `}`); res.StatusCode != 400 {
			t.Errorf("n %s: %d", n, res.StatusCode)
		}
	}
	if res, _ := f.chat(strings.TrimSuffix(chatBody, "}") + `,"n":128}`); res.StatusCode != 200 {
		t.Errorf("n 128: %d", res.StatusCode)
	}
}

// vLLM lora resolvers: an unknown name is a path or a download to some engines.
func TestAdvisoryAdapterNames(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, name := range []string{"../../etc/passwd", "/etc/passwd", "%2e%2e/", "M", "lora ", "m\u0000", "org/adapter", "m:adapter@rev", ""} {
		body := `{"model":"` + strings.ReplaceAll(name, "\x00", `\u0000`) + `","messages":[]}`
		if name == "" {
			continue // names no model: the only one is meant
		}
		if res, _ := f.chat(body); res.StatusCode != 404 {
			t.Errorf("%q: %d", name, res.StatusCode)
		}
	}
	if u.seen.Load() != 0 {
		t.Error("an unknown name reached the engine")
	}
}

// CVE-2025-48956 and kortix #6835: heads are bounded, and who may not enter is told so
// before the body is read.
func TestAdvisoryLargeHeadAndUnreadBody(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	k := newKeyFile(t)
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	res, _, err := f.try("/v1/chat/completions", chatBody, "X-Big", strings.Repeat("a", 256<<10))
	if err == nil && res.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("a head of 256 KiB got %d", res.StatusCode)
	}
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n")
	b := make([]byte, 12)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "HTTP/1.1 401" {
		t.Errorf("%q, %v", b, err)
	}
}

// CWE-444: a length beside chunks is what request smuggling is made of. What follows
// the chunks must not be taken for a request.
func TestAdvisoryLengthBesideChunks(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, head := range []string{
		"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "Transfer-Encoding: chunked\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		before := u.seen.Load()
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"+chunk(chatBody)+"0\r\n\r\n"+
			"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: "+strconv.Itoa(len(chatBody))+"\r\n\r\n"+chatBody)
		all, err := io.ReadAll(c)
		c.Close()
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(all), "HTTP/1.1 200"); n != 1 || u.seen.Load() != before+1 || !strings.Contains(string(all), "Connection: close") {
			t.Errorf("%q: %d answers, %d requests at the engine: %s", head, n, u.seen.Load()-before, all)
		}
	}
	for _, head := range []string{"Content-Length: 5\r\nContent-Length: 6\r\n", "Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "Content-Length: +5\r\n", "Content-Length : 5\r\n"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		before := u.seen.Load()
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+head+"\r\n"+chatBody)
		all, _ := io.ReadAll(c)
		c.Close()
		if s := string(all); !strings.HasPrefix(s, "HTTP/1.1 4") && !strings.HasPrefix(s, "HTTP/1.1 501") || u.seen.Load() != before {
			t.Errorf("%q: %s", head, all)
		}
	}
}

// vLLM CVE-2025-48944 and its kind: schemas that a worker cannot compile, and caps in
// a form that one side reads and the other does not.
func TestAdvisoryBodyCeilings(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, more := range []string{
		`"max_tokens":"100000"`, `"max_completion_tokens":"1"`, `"stream":"true"`, `"stream":1`, `"max_tokens":1e12`, `"best_of":1000000`, `"top_logprobs":10000`,
		`"prompt_logprobs":-1`, `"tools":[{"function":{"parameters":{"pattern":"(("}}}]`, `"guided_regex":["x"],"structured_outputs":{"regex":"(("}`,
		`"kv_transfer_params":{"remote_host":"10.0.0.1"}`, `"lora_path":"/x"`,
	} {
		if res, text := f.chat(strings.TrimSuffix(chatBody, "}") + "," + more + "}"); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", more, res.StatusCode, text)
		}
	}
	if res, _ := f.post("/v1/responses", `{"model":"m","input":"x","background":true}`); res.StatusCode != 400 {
		t.Errorf("an answer in the background: %d", res.StatusCode)
	}
	if u.seen.Load() != 0 {
		t.Error("one of them reached the engine")
	}
}

// vLLM's media_url reports: an engine fetches addresses from inside of the network.
func TestAdvisoryMediaAddresses(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for address, want := range map[string]int{
		"http://169.254.169.254/latest/meta-data": 400, "file:///etc/passwd": 400, "http://vllm-0.vllm.svc:8000/": 400, "https://example.com/a.png": 200, "data:image/png;base64,aaaa": 200,
	} {
		body := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + address + `"}}]}]}`
		if res, text := f.chat(body); res.StatusCode != want {
			t.Errorf("%s: %d %s", address, res.StatusCode, text)
		}
	}
}

// CVE-2024-8984: boundaries and parts of a form are bounded, and its model has one
// meaning.
func TestAdvisoryMultipart(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{}, u.url)
	form := func(parts string) string {
		return parts + "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--b--\r\n"
	}
	model := func(name string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n" + name + "\r\n"
	}
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{"multipart/form-data; boundary=b", form(model("m")), 200}, {"multipart/form-data; boundary=b", form(model("alias")), 200},
		{"multipart/form-data; boundary=b", form(model("other")), 404}, {"multipart/form-data; boundary=" + strings.Repeat("b", 100), form(model("m")), 400},
		{"multipart/form-data; boundary=b", form(model("m") + model("lora")), 400}, {"multipart/form-data; boundary=b", form(model("m") + strings.Repeat(model("m"), 100)), 400},
		{"application/json", chatBody, 400},
	} {
		if res, text := f.post("/v1/audio/transcriptions", c.body, "Content-Type", c.kind); res.StatusCode != c.want {
			t.Errorf("%s %.60q: %d %s", c.kind, c.body, res.StatusCode, text)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.body != form(model("m")) {
		t.Errorf("the engine got %q", e.body) // the alias in the place of its model
	}
}

// A client cannot jump the engine's own queue: its key says how urgent it is.
func TestAdvisoryPriority(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	k := newKeyFile(t)
	_, key := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	if res, text := f.chat(strings.TrimSuffix(chatBody, "}")+`,"priority":-1000000}`, "Authorization", "Bearer "+key); res.StatusCode != 200 {
		t.Fatal(text)
	}
	if e.mu.Lock(); !strings.HasSuffix(e.body, `,"priority":0}`) {
		t.Errorf("the engine got %s", e.body)
	}
	e.mu.Unlock()
}

// Connections and streams are bounded for each key, so that one key cannot hold all.
func TestAdvisoryConnectionsAndStreams(t *testing.T) {
	release := make(chan bool)
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		<-release
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	})
	k := newKeyFile(t)
	_, a := k.add(identity.Key{Tenant: "acme"})
	_, b := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}, Conns: ConnLimits{Total: 6, PerKey: 4, Streams: 2}}}, u.url)
	dial := func(key string) net.Conn {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+key+"\r\nContent-Length: "+strconv.Itoa(len(chatBody))+"\r\n\r\n"+chatBody)
		return c
	}
	status := func(c net.Conn) string {
		line := make([]byte, 12)
		io.ReadFull(c, line)
		return string(line)
	}
	one := dial(a)
	two := dial(a)
	f.waitFor("two streams", func() bool { return u.seen.Load() == 2 })
	three, four := dial(a), dial(a)
	if s := status(three) + status(four); s != "HTTP/1.1 429HTTP/1.1 429" {
		t.Errorf("more streams of a key: %q", s)
	}
	if s := status(dial(a)); s != "HTTP/1.1 429" {
		t.Errorf("a fifth connection of a key: %q", s)
	}
	f.waitFor("the end of the fifth", func() bool { return f.h.conns.count() == 4 })
	other := dial(b)
	f.waitFor("a stream of another key", func() bool { return u.seen.Load() == 3 })
	dial(b)
	f.waitFor("its second", func() bool { return u.seen.Load() == 4 })
	if s := status(dial(b)); s != strings.Repeat("\x00", 12) {
		t.Errorf("a connection beyond the total: %q", s)
	}
	close(release)
	for _, c := range []net.Conn{one, two, other} {
		if s := status(c); s != "HTTP/1.1 200" {
			t.Errorf("%q", s)
		}
	}
	f.settled()
}
