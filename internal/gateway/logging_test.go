// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/promptlog"
	"github.com/penstock-project/penstock/internal/wire"
)

// Under none there is no record; a client may ask for it, and for nothing looser.
func TestLoggingNoneKeepsNoRecord(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	who := byKey{"open": {Tenant: "open"}, "closed": {Tenant: "closed"}, "key": {Tenant: "open", Scopes: &identity.Scopes{Logging: "none"}}}
	f := newFixture(t, setup{options: Options{Auth: who}}, u.url)
	f.h.SetTenants(map[string]entry.TenantPolicy{"closed": {Logging: "none"}})
	n := 0
	for _, c := range []struct {
		key, header string
		recorded    bool
	}{{"open", "", true}, {"open", "none", false}, {"open", "full", true}, {"closed", "", false}, {"closed", "full", false}, {"key", "", false}, {"open", "?", false}} {
		headers := []string{"X-Api-Key", c.key}
		if c.header != "" {
			headers = append(headers, "X-Prompt-Logging", c.header)
		}
		f.chat(chatBody, headers...)
		f.settled()
		if c.recorded {
			n++
		}
		f.records.mu.Lock()
		if got := len(f.records.all); got != n {
			t.Errorf("%+v: %d records, want %d", c, got, n)
		}
		n = len(f.records.all)
		f.records.mu.Unlock()
	}
}

// panicking fails on a request whose key says so, with the request in its hands.
type panicking struct{ everybody }

func (p panicking) Authenticate(r *http.Request) (entry.Identity, *wire.Error) {
	if r.Header.Get("X-Panic") != "" {
		panic("boom with " + r.Header.Get("Authorization") + r.Header.Get("X-Canary"))
	}
	return p.everybody.Authenticate(r)
}

// TestCanaries sends strings that must not stay anywhere through every path and looks
// for them in logs, records and metrics.
// Only a policy that says so lets them into the one place that it names.
func TestCanaries(t *testing.T) {
	for _, level := range []string{"none", "metadata", "hash", "redacted", "full"} {
		t.Run(level, func(t *testing.T) { canaries(t, level) })
	}
}

// sink keeps the entries of the prompt log.
type sink struct {
	mu  sync.Mutex
	all []promptlog.Record
}

// Take implements promptlog.Sink.
func (s *sink) Take(r *promptlog.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, *r)
}

// Close implements promptlog.Sink.
func (s *sink) Close() {}

func canaries(t *testing.T, level string) {
	canary := "CANARY-7f3a"
	if level == "redacted" {
		canary = "canary@7f3a.example" // what it takes out
	}
	kept := &sink{}
	prompts := promptlog.New(promptlog.Options{Sinks: map[string]promptlog.Sink{"s": kept}, Rules: []promptlog.Rule{{Level: promptlog.Full, Sample: 1, Sinks: []string{"s"}}}})
	answers := []string{
		jsonAnswer(200, strings.Replace(okBody, `"hi"`, `"`+canary+`"`, 1)), jsonAnswer(400, `{"error":{"message":"`+canary+`"}}`),
		jsonAnswer(500, canary), "HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\nCLOSE", "CLOSE",
		sseHead + chunk(strings.Replace(token, `"x"`, `"`+canary+`"`, 1)) + "CLOSE",
		stream(`data: {"error":{"message":"` + canary + `","code":500}}` + "\n\n"), stream("data: "+canary+"\n\n", done),
	}
	var i atomic.Int64
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		text, closes := strings.CutSuffix(answers[int(i.Add(1)-1)%len(answers)], "CLOSE")
		io.WriteString(c, text)
		return !closes
	})
	m := metered(hourly(admit.Requests, 30))
	f := newFixture(t, setup{options: Options{Auth: panicking{everybody{tenant: "acme", key: "k"}}, Quotas: m, Prompts: prompts}}, u.url)
	f.h.SetTenants(map[string]entry.TenantPolicy{"acme": {Logging: level}})
	body := func(model string) string {
		return `{"model":"` + model + `","stream":true,"user":"` + canary + `","metadata":{"user_id":"` + canary + `"},"cache_salt":"` + canary +
			`","messages":[{"role":"user","content":"` + canary + `"}],"tools":[{"function":{"name":"` + canary + `"}}]}`
	}
	secret := []string{"Authorization", "Bearer " + canary, "X-Canary", canary, "X-Request-Id", "{" + canary}
	for range 2 * len(answers) {
		f.try("/v1/chat/completions?q="+canary, body("m"), secret...)
	}
	for _, bad := range []string{body(canary), `{"` + canary, `{"model":"m","model":"` + canary + `"}`, `{"model":["` + canary + `"]}`, canary,
		`{"model":"m","messages":[{"role":"user","content":"` + canary + "\x01" + `"}]}`} {
		f.try("/v1/chat/completions", bad, secret...)
	}
	f.try("/v1/"+canary, body("m"), secret...)
	f.try("/v1/models/"+canary, "", secret...)
	f.try("/v1/chat/completions", body("m"), append(secret, "X-Panic", "1")...)
	f.try("/v1/messages", body("m"), append(secret, "Content-Encoding", canary)...)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(body("m")))
		if res, err := http.DefaultClient.Do(req); err == nil {
			res.Body.Close()
		}
		cancel()
	}
	for range 40 { // into the limit
		f.try("/v1/chat/completions", body("m"), secret...)
	}
	f.observe(fleet.PhaseFailed, u.url)
	f.try("/v1/chat/completions", body("m"), secret...)
	f.waitFor("the end of all", func() bool { return f.h.Stats().InFlight == 0 })

	look := func(where, text string) {
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("%s holds %q", where, text[max(0, at-200):min(len(text), at+40)])
		}
	}
	look("the log", f.log.String())
	f.records.mu.Lock()
	b, err := json.Marshal(f.records.all)
	f.records.mu.Unlock()
	if err != nil || (len(b) < 1000) != (level == "none") {
		t.Fatalf("records of %d bytes: %v", len(b), err)
	}
	look("the journal", string(b))
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, fam := range families {
		if _, err := expfmt.MetricFamilyToText(&text, fam); err != nil {
			t.Fatal(err)
		}
	}
	look("the metrics", text.String())
	if f.metric("panics_total") != 1 {
		t.Error("the panic was not reached")
	}
	kept.mu.Lock()
	b, err = json.Marshal(kept.all)
	kept.mu.Unlock()
	if err != nil || (len(kept.all) == 0) != (level == "none") {
		t.Errorf("%d entries in the prompt log: %v", len(kept.all), err)
	}
	if level != "full" {
		look("the prompt log", string(b))
	} else if !strings.Contains(string(b), canary) {
		t.Error("the prompt log holds no text")
	}
}
