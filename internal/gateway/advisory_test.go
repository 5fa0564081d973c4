// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
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
	c.SetDeadline(time.Now().Add(5 * time.Second))
	io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n")
	b := make([]byte, 12)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "HTTP/1.1 401" {
		t.Errorf("%q, %v", b, err)
	}
}
