// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/identity"
)

// CVE-2026-42208 and the panics on malformed bearers: what stands in a credential is
// looked up and compared, never interpreted or repeated. All that do not open look alike.
func TestAdvisoryKeyLookupInjection(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	k := newKeyFile(t)
	id, key := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	want := ""
	for _, v := range []string{
		"psk_" + id + "_" + strings.Repeat("a", 32), key[:len(key)-1], key + "a", strings.ToUpper(key), "psk_", "psk__", "psk_" + id, "psk_../../keys_x",
		"psk_' OR '1'='1' --_x", "psk_" + strings.Repeat("a", 30000), "a.b.c", "...", "eyJhbGciOiJub25lIn0.e30.", "%00", "${jndi:ldap://x}", "psk_{{7*7}}_%s%n",
	} {
		res, body := f.chat(chatBody, "Authorization", "Bearer "+v)
		if i := strings.Index(body, `,"request_id"`); i > 0 {
			body = body[:i]
		}
		if want == "" {
			want = body
		}
		if res.StatusCode != 401 || body != want {
			t.Errorf("%.40q: %d %s, another one got %s", v, res.StatusCode, body, want)
		}
	}
	for _, v := range []string{"Bearer", "Bearer ", "Basic OnNlY3JldA==", "bearer\t" + key + "\t" + key} {
		if res, _ := f.chat(chatBody, "Authorization", v); res.StatusCode != 401 && res.StatusCode != 400 {
			t.Errorf("%q: %d", v, res.StatusCode)
		}
	}
	if u.seen.Load() != 0 || f.metric("panics_total") != 0 {
		t.Error("one of them came through, or made the gateway panic")
	}
}

// GHSA-69x8-hrgq-fjj8: the hash of a secret opens nothing.
func TestAdvisoryHashIsNoPassword(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	k := newKeyFile(t)
	id, _ := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}}}, u.url)
	hash := k.f.Find(id).Secrets[0].SHA256
	if len(hash) < 32 {
		t.Fatalf("no hash to try: %q", hash)
	}
	for _, v := range []string{hash, "psk_" + id + "_" + hash, "sha256:" + hash} {
		if res, _ := f.chat(chatBody, "Authorization", "Bearer "+v); res.StatusCode != 401 {
			t.Errorf("%q: %d", v, res.StatusCode)
		}
	}
}

// bifrost #2873: there is no way to an engine that a limit does not see.
func TestAdvisoryEveryRouteIsMetered(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := limited(t, metered(hourly(admit.Requests, 1)), u.url)
	f.chat(chatBody)
	var paths []string
	for path := range routes {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	if len(paths) < 8 {
		t.Fatalf("routes %v", paths)
	}
	for _, path := range paths {
		if res, body := f.post(path, chatBody); res.StatusCode != 429 {
			t.Errorf("%s: %d %s", path, res.StatusCode, body)
		}
	}
	for _, path := range []string{"/v1/batches", "/v1/files", "/openai/v1/chat/completions", "/proxy/v1/chat/completions", "/v1/realtime"} {
		if res, _ := f.post(path, chatBody); res.StatusCode != 404 {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	if u.seen.Load() != 1 {
		t.Errorf("the engine saw %d requests", u.seen.Load())
	}
}

// CVE-2024-23326: an upgrade must not turn a connection into a tunnel past the gateway.
func TestAdvisoryUpgrade(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{}, u.url)
	for _, head := range []string{"Connection: Upgrade\r\nUpgrade: websocket\r\n", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", "Upgrade: TLS/1.2\r\n"} {
		c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(time.Minute))
		io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+head+"Content-Length: "+strconv.Itoa(len(chatBody))+"\r\n\r\n"+chatBody)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusSwitchingProtocols {
			t.Errorf("%q was upgraded", head)
		}
		c.Close()
		e.mu.Lock()
		for _, name := range []string{"Upgrade", "Connection", "Http2-Settings"} {
			if v := e.head.Get(name); v != "" {
				t.Errorf("%q: the engine got %s: %s", head, name, v)
			}
		}
		e.mu.Unlock()
	}
	f.settled()
}

// Portkey #1372: an address inside of the network has many spellings.
func TestAdvisoryAddressSpellings(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	f := newFixture(t, setup{}, u.url)
	for _, address := range []string{
		"http://127.0.0.1/", "http://2130706433/", "http://0x7f000001/", "http://0177.0.0.1/", "http://127.1/", "http://[::1]/", "http://[::ffff:127.0.0.1]/",
		"http://[::ffff:a9fe:a9fe]/", "http://localhost/", "http://LOCALHOST./", "http://0/", "http://10.0.0.1:8000/", "http://user@169.254.169.254/", "http://169.254.169.254\\u002f@example.com/",
		"HTTP://192.168.0.1/", "ftp://example.com/x", "gopher://127.0.0.1/", "//127.0.0.1/", "https://metadata.google.internal/",
	} {
		body := `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + address + `"}}]}]}`
		if res, text := f.chat(body); res.StatusCode != 400 {
			t.Errorf("%s: %d %s", address, res.StatusCode, text)
		}
	}
	if u.seen.Load() != 0 {
		t.Error("one of them reached the engine")
	}
}
