// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wire"
)

// everybody is an authenticator that takes the tenant from the test, not from the
// request.
type everybody struct{ tenant, key string }

func (e everybody) Authenticate(r *http.Request) (entry.Identity, *wire.Error) {
	return entry.Identity{Tenant: e.tenant, Key: e.key, Ours: true, Scopes: &identity.Scopes{}}, nil
}

func hourly(m admit.Measure, n int64) share.Limit {
	return share.Limit{Rule: admit.Rule{Measure: m, Limit: n, Per: time.Hour}}
}

// metered returns a meter of the tenant acme.
func metered(limits ...share.Limit) *share.Meter {
	return share.NewMeter(share.Options{
		Policy: &share.Policy{Tenants: map[string]*share.Tenant{"acme": {Name: "acme", Limits: limits}}},
		Clock:  func() fleet.Time { return fleet.At(time.Now()) },
	})
}

func limited(t testing.TB, m *share.Meter, urls ...string) *fixture {
	return newFixture(t, setup{options: Options{Auth: everybody{tenant: "acme", key: "k1"}, Quotas: m}}, urls...)
}

// used waits until no reservation is open and returns what each account was charged.
func (f *fixture) used(m *share.Meter) map[string]int64 {
	f.t.Helper()
	f.waitFor("the last settlement", func() bool { return m.Stats().Open == 0 })
	out := map[string]int64{}
	for _, b := range m.Stats().Balances {
		if b.Reserved != 0 {
			f.t.Errorf("%s still has %d reserved", b.Name, b.Reserved)
		}
		out[b.Rule.Measure.String()] = b.Charged
	}
	return out
}

// engine is a scripted engine that adds usage when it is asked, as vLLM and OpenAI
// do, and notes the bodies it got.
type usageEngine struct {
	mu     sync.Mutex
	bodies []string
	deaf   bool // ignores the option
	strict bool // refuses it
}

func (e *usageEngine) script(c net.Conn, _ *http.Request, body []byte) bool {
	e.mu.Lock()
	e.bodies = append(e.bodies, string(body))
	e.mu.Unlock()
	asked := strings.Contains(string(body), `"include_usage":true`)
	if asked && e.strict {
		io.WriteString(c, jsonAnswer(400, `{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options')}]","code":400}`))
		return true
	}
	if !strings.Contains(string(body), `"stream":true`) {
		io.WriteString(c, jsonAnswer(200, okBody))
		return true
	}
	io.WriteString(c, stream(e.events(asked && !e.deaf)...))
	return true
}

func (e *usageEngine) events(usage bool) []string {
	tok, fin := token, finish
	if usage {
		tok = strings.Replace(token, `}]}`, `}],"usage":null}`, 1)
		fin = strings.Replace(finish, `}]}`, `}],"usage":null}`, 1)
	}
	out := []string{": hello\n\n", tok, tok, tok, fin}
	if usage {
		out = append(out, `data: {"id":"c","choices":[],"usage":{"prompt_tokens":98,"completion_tokens":3,"total_tokens":101}}`+"\n\n")
	}
	return append(out, done)
}

// Case 47: usage is asked for, charged, and the client's stream is to the byte what
// the engine would have sent without.
func TestUsageIsAskedForAndTakenOut(t *testing.T) {
	e := &usageEngine{}
	u := scripted(t, e.script)
	m := metered(hourly(admit.PromptTokens, 100000), hourly(admit.OutputTokens, 100000), hourly(admit.Requests, 10))
	f := limited(t, m, u.url)
	want := strings.Join(e.events(false), "")
	for i, opts := range []string{``, `,"stream_options":null`, `,"stream_options":{"include_usage":false}`} {
		res, got := f.chat(strings.TrimSuffix(streamReq, "}") + opts + "}")
		if got != want {
			t.Errorf("%s: got %q, want %q", opts, got, want)
		}
		if left := res.Header.Get("X-Ratelimit-Remaining-Requests"); left != strconv.Itoa(9-i) || res.Header.Get("X-Ratelimit-Limit-Requests") != "10" {
			t.Errorf("remaining %q", left)
		}
	}
	// A client that asks itself gets it all.
	_, got := f.chat(strings.TrimSuffix(streamReq, "}") + `,"stream_options":{"include_usage":true}}`)
	if want := strings.Join(e.events(true), ""); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if u := f.used(m); u["prompt tokens"] != 4*98 || u["output tokens"] != 4*3 || u["requests"] != 4 {
		t.Errorf("charged %v", u)
	}
	if n := f.metric("reservation_settles_total", "exact"); n != 4 {
		t.Errorf("%v exact settlements", n)
	}
	f.settled()
}

// Engines that ignore or refuse the option are charged by counted frames.
func TestUsageIsEstimated(t *testing.T) {
	for name, e := range map[string]*usageEngine{"ignores": {deaf: true}, "refuses": {strict: true}} {
		u := scripted(t, e.script)
		m := metered(hourly(admit.OutputTokens, 100000), hourly(admit.PromptTokens, 100000))
		f := limited(t, m, u.url)
		for range 2 {
			res, got := f.chat(streamReq)
			if want := strings.Join(e.events(false), ""); res.StatusCode != 200 || got != want {
				t.Errorf("%s: %d %q", name, res.StatusCode, got)
			}
		}
		used := f.used(m)
		if used["output tokens"] != 6 || used["prompt tokens"] <= 0 {
			t.Errorf("%s: charged %v", name, used)
		}
		if n := f.metric("reservation_settles_total", "estimated"); n != 2 {
			t.Errorf("%s: %v estimated settlements", name, n)
		}
		if e.strict && len(e.bodies) != 3 {
			t.Errorf("the engine got %d requests: it is asked once only", len(e.bodies))
		}
		if e.strict && e.bodies[2] != streamReq {
			t.Errorf("the engine got %s", e.bodies[2])
		}
	}
}

// An alias and the option in one body.
func TestUsageAndAlias(t *testing.T) {
	e := &usageEngine{}
	u := scripted(t, e.script)
	f := limited(t, metered(hourly(admit.Requests, 10)), u.url)
	f.chat(strings.Replace(streamReq, `"m"`, `"alias"`, 1))
	if want := `{"stream_options":{"include_usage":true},` + streamReq[1:]; e.bodies[0] != want {
		t.Errorf("the engine got %s, want %s", e.bodies[0], want)
	}
}

func TestOverLimitIs429(t *testing.T) {
	e := &usageEngine{}
	u := scripted(t, e.script)
	m := metered(hourly(admit.Requests, 2))
	f := limited(t, m, u.url)
	f.chat(chatBody)
	f.chat(chatBody)
	res, body := f.chat(chatBody)
	if res.StatusCode != 429 || !strings.Contains(body, `"type":"rate_limit_error"`) || !strings.Contains(body, `"code":"rate_limit_exceeded"`) {
		t.Fatalf("%d %s", res.StatusCode, body)
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err != nil || s < 1700 || s > 1800 {
		t.Errorf("Retry-After %q, want about 1800: two an hour", res.Header.Get("Retry-After"))
	}
	if res.Header.Get("X-Ratelimit-Remaining-Requests") != "0" || res.Header.Get("X-Penstock-Error-Source") != "gateway" {
		t.Errorf("headers %v", res.Header)
	}
	if u.seen.Load() != 2 {
		t.Errorf("the engine saw %d requests", u.seen.Load())
	}
	res, body = f.post("/v1/messages", chatBody, "Anthropic-Version", "x")
	if res.StatusCode != 429 || !strings.HasPrefix(body, `{"type":"error","error":{"type":"rate_limit_error"`) {
		t.Errorf("Anthropic: %d %s", res.StatusCode, body)
	}
	// A request that could never be let in says so.
	f2 := limited(t, metered(hourly(admit.TotalTokens, 50)), u.url)
	res, body = f2.chat(strings.TrimSuffix(chatBody, "}") + `,"max_tokens":60}`)
	if res.StatusCode != 429 || res.Header.Get("Retry-After") != "" || !strings.Contains(body, "lower max_tokens") {
		t.Errorf("%d %s %v", res.StatusCode, body, res.Header)
	}
}

// A running stream is not cut; only a hard limit does, with an error event.
func TestRunningStreamIsNotCut(t *testing.T) {
	for _, hard := range []bool{false, true} {
		events := []string{}
		for range 40 {
			events = append(events, token)
		}
		gone := make(chan bool, 1)
		u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(c, sseHead)
			for _, ev := range append(events, finish, done) {
				if _, err := io.WriteString(c, chunk(ev)); err != nil {
					gone <- true
					return false
				}
				time.Sleep(time.Millisecond)
			}
			io.WriteString(c, "0\r\n\r\n")
			return true
		})
		l := hourly(admit.OutputTokens, 10)
		l.Rule.Hard = hard
		m := metered(l)
		f := limited(t, m, u.url)
		res, got := f.chat(streamReq)
		if res.StatusCode != 200 {
			t.Fatal(res.StatusCode)
		}
		if n := strings.Count(got, `"content"`); hard == (n == 40) {
			t.Errorf("hard %v: %d tokens came", hard, n)
		}
		if hard && (!strings.Contains(got, `"code":"rate_limit_exceeded"`) || strings.Contains(got, "finish_reason\":\"stop")) {
			t.Errorf("it ended with %q", got[max(0, len(got)-300):])
		}
		if used := f.used(m); !hard && used["output tokens"] != 40 || hard && used["output tokens"] <= 10 {
			t.Errorf("hard %v: charged %v", hard, used)
		}
		if res, _ := f.chat(streamReq); res.StatusCode != 429 {
			t.Errorf("the next request got %d", res.StatusCode)
		}
		f.settled()
	}
}

// Nothing leaks: engine errors, broken connections, retries and clients that leave
// in any window, all at once; the sum charged is the sum the engine gave out.
func TestReservationsNeverLeak(t *testing.T) {
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return rng.IntN(n) }
	script := func(c net.Conn, _ *http.Request, _ []byte) bool {
		switch draw(6) {
		case 0:
			io.WriteString(c, jsonAnswer(500, `{"error":{"message":"boom"}}`))
		case 1:
			return false
		case 2:
			io.WriteString(c, jsonAnswer(503, `{}`))
		case 3:
			io.WriteString(c, sseHead+chunk(token)+chunk(token))
			return false
		default:
			io.WriteString(c, sseHead)
			for range 30 {
				io.WriteString(c, chunk(token))
				time.Sleep(time.Millisecond)
			}
			io.WriteString(c, chunk(finish)+chunk(done)+"0\r\n\r\n")
		}
		return true
	}
	a, b := scripted(t, script), scripted(t, script)
	m := metered(hourly(admit.OutputTokens, 1e9), hourly(admit.Requests, 1e9), share.Limit{Rule: admit.Rule{Measure: admit.Concurrent, Limit: 50}})
	f := limited(t, m, a.url, b.url)
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(draw(60))*time.Millisecond)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "POST", f.url+"/v1/chat/completions", strings.NewReader(streamReq))
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		})
	}
	wg.Wait()
	f.settled()
	f.used(m)
	for _, b := range m.Stats().Balances {
		if b.Rule.Measure == admit.Concurrent && b.Left != 50 {
			t.Errorf("%d of 50 places are free", b.Left)
		}
	}
}

// Two keys of a tenant share its limit; each has its own where the limit says so.
func TestScopeOfALimit(t *testing.T) {
	one := hourly(admit.Requests, 1)
	one.PerKey = true
	m := metered(one, hourly(admit.Requests, 3))
	ctx := context.Background()
	for i, c := range []struct {
		key string
		ok  bool
	}{{"a", true}, {"a", false}, {"b", true}, {"c", true}, {"d", false}} {
		l, no := m.Reserve(ctx, share.Ask{Tenant: "acme", Key: c.key, Model: "m", Prompt: 1})
		if (no == nil) != c.ok {
			t.Errorf("%d: %+v", i, no)
		}
		l.Settle(admit.Usage{Requests: 1}, true)
	}
	if l, no := m.Reserve(ctx, share.Ask{Tenant: "other", Key: "x"}); l != nil || no != nil {
		t.Error("a tenant without limits got a lease")
	}
}

// Whoever asks for an answer as a whole and leaves just before it comes pays what the
// engine made of it until then, not the prompt only; never more than was reserved.
func TestWhoLeavesBeforeTheAnswerPays(t *testing.T) {
	for name, window := range map[string]string{"before the head": "", "within the body": "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{"} {
		here, over := make(chan struct{}), make(chan struct{})
		u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(c, window)
			close(here)
			c.Read(make([]byte, 1))
			close(over)
			return false
		})
		m := metered(hourly(admit.OutputTokens, 1000), hourly(admit.PromptTokens, 1000))
		f := limited(t, m, u.url)
		c := leave(t, f, strings.TrimSuffix(chatBody, "}")+`,"max_tokens":50}`)
		<-here
		time.Sleep(110 * time.Millisecond) // four tokens at the usual pace
		c.Close()
		<-over
		f.settled()
		used := f.used(m)
		if n := used["output tokens"]; n < 4 || n > 50 {
			t.Errorf("%s: %d output tokens were charged", name, n)
		}
		if used["prompt tokens"] <= 0 || f.metric("reservation_settles_total", "estimated") != 1 {
			t.Errorf("%s: charged %v", name, used)
		}
	}
}

// A request that another model answers costs what that one costs.
func TestFallbackCostsWhatItCosts(t *testing.T) {
	big := version(t, "large", 0, nil)
	budget := share.Limit{Rule: admit.Rule{Measure: admit.Money, Limit: 1e9, Every: admit.Month}}
	m := share.NewMeter(share.Options{
		Policy: &share.Policy{Tenants: map[string]*share.Tenant{"acme": {Name: "acme", Limits: []share.Limit{budget}}},
			Prices: map[string]admit.Price{"m": {Prompt: 1, Cached: 1, Output: 1}, "large": {Prompt: 10, Cached: 10, Output: 1000}}},
		Clock: func() fleet.Time { return fleet.At(time.Now()) },
	})
	f := newFixture(t, setup{options: Options{Auth: everybody{tenant: "acme", key: "k"}, Quotas: m}})
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"big"}},
		more{Pool: Pool{Name: "big", Models: []Model{{Name: "large"}}}, urls: []string{big.url}})
	res, text := f.chat(chatBody)
	if res.StatusCode != 200 {
		t.Fatal(text)
	}
	o := f.outcome(1)
	if want := int64(*o.PromptTokens*10 + *o.OutputTokens*1000); f.used(m)["budget"] != want || want < 1000 {
		t.Errorf("charged %v, want %d", f.used(m), want)
	}
}
