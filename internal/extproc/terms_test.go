// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/route"
	"github.com/penstock-project/penstock/internal/share"
)

// ring is a set of keys whose text is the name of their tenant.
type ring map[string]*identity.Scopes

func (r ring) Find(text string, _ time.Time) (identity.Caller, bool) {
	s, ok := r[text]
	return identity.Caller{Tenant: text, Key: "k-" + text, Scopes: s}, ok
}

// door lets in tenants by name, with a limit each.
func door(limits map[string]admit.Rule, policies map[string]entry.TenantPolicy) *entry.Door {
	clock := func() fleet.Time { return fleet.At(time.Now()) }
	keys, policy := ring{}, &share.Policy{Tenants: map[string]*share.Tenant{}}
	for name := range policies {
		keys[name] = &identity.Scopes{}
	}
	for name, r := range limits {
		keys[name] = &identity.Scopes{}
		policy.Tenants[name] = &share.Tenant{Name: name, Limits: []share.Limit{{Rule: r}}}
	}
	d := &entry.Door{Auth: &entry.Guard{Keys: keys}, BlockBytes: prefix.DefaultBlockBytes, Clock: clock,
		Quotas: share.NewMeter(share.Options{Policy: policy, Clock: clock})}
	d.SetTenants(policies)
	return d
}

// keyed are request headers with a credential.
func keyed(path, key string, eos bool) *extprocv3.ProcessingRequest {
	h := heads(path, eos, fds, fds)
	if key != "" {
		m := h.GetRequestHeaders().Headers
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: "authorization", RawValue: []byte("Bearer " + key)})
	}
	return h
}

const askBody = `{"model":"m","max_tokens":10,"messages":[{"role":"user","content":"hello"}]}`

// chat asks for a pick and returns the answer to the header.
func chat(t *testing.T, addr, path, key, body string) (*proxy, *extprocv3.ProcessingResponse) {
	t.Helper()
	p := newProxy(t, addr)
	p.send(keyed(path, key, false), reqBody(body, true))
	return p, p.recv()
}

// refusedWith reads an immediate response.
func refusedWith(t *testing.T, r *extprocv3.ProcessingResponse) (status int, h http.Header, body map[string]any) {
	t.Helper()
	im := r.GetImmediateResponse()
	if im == nil {
		t.Fatalf("not refused: %v", r)
	}
	h = http.Header{}
	for _, s := range im.GetHeaders().GetSetHeaders() {
		h.Add(s.GetHeader().GetKey(), string(s.GetHeader().GetRawValue()))
	}
	if err := json.Unmarshal([]byte(im.GetBody()), &body); err != nil {
		t.Fatalf("%q: %v", im.GetBody(), err)
	}
	return int(im.GetStatus().GetCode()), h, body
}

// answer plays a whole answer with usage, to its end.
func (p *proxy) answer() *extprocv3.ProcessingResponse {
	p.t.Helper()
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	p.send(respHeads("application/json"))
	head := p.recv()
	p.send(respBody(`{"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25}}`, true))
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
	p.stream.CloseSend()
	for {
		if _, err := p.stream.Recv(); err != nil {
			return head
		}
	}
}

func TestWhoMayEnter(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Door: door(nil, map[string]entry.TenantPolicy{"acme": {}})})
	for key, want := range map[string]int{"": 401, "nobody": 401} {
		_, r := chat(t, addr, chatPath, key, askBody)
		if status, h, body := refusedWith(t, r); status != want || h.Get("Www-Authenticate") == "" || body["error"] == nil {
			t.Errorf("key %q: %d %v %v", key, status, h, body)
		}
	}
	_, r := chat(t, addr, chatPath, "acme", askBody)
	m := r.GetRequestHeaders().GetResponse().GetHeaderMutation()
	if len(m.GetSetHeaders()) != 1 || strings.Join(m.GetRemoveHeaders(), " ") != "authorization x-api-key api-key" {
		t.Errorf("a key of ours must not reach a replica: %v", r)
	}
	p := newProxy(t, addr)
	h := keyed(chatPath, "acme", false)
	h.GetRequestHeaders().Headers.Headers = append(h.GetRequestHeaders().Headers.Headers, &corev3.HeaderValue{Key: "content-encoding", RawValue: []byte("gzip")})
	p.send(h)
	if status, _, _ := refusedWith(t, p.recv()); status != http.StatusUnsupportedMediaType {
		t.Errorf("a body that cannot be read: %d", status)
	}
}

func TestOptionalCredential(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Optional: true,
		Door: door(nil, map[string]entry.TenantPolicy{"acme": {}})})
	if _, r := chat(t, addr, chatPath, "", askBody); destinationOf(r) == "" {
		t.Errorf("without a credential: %v", r)
	}
	_, r := chat(t, addr, chatPath, "nobody", askBody)
	if status, _, _ := refusedWith(t, r); status != 401 {
		t.Errorf("with one that is not valid: %d", status)
	}
}

func TestQuotaBehindAProxy(t *testing.T) {
	s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Door: door(map[string]admit.Rule{
		"few":    {Measure: admit.Requests, Limit: 1, Per: time.Hour},
		"tokens": {Measure: admit.TotalTokens, Limit: 40, Per: time.Hour},
	}, nil)})
	p, r := chat(t, addr, chatPath, "few", askBody)
	if destinationOf(r) == "" {
		t.Fatalf("the first one: %v", r)
	}
	told := http.Header{}
	for _, h := range p.answer().GetResponseHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		told.Add(h.GetHeader().GetKey(), string(h.GetHeader().GetRawValue()))
	}
	if told.Get("X-Ratelimit-Limit-Requests") != "1" || told.Get("X-Ratelimit-Remaining-Requests") != "0" {
		t.Errorf("the answer tells of its limits: %v", told)
	}
	_, r = chat(t, addr, chatPath, "few", askBody)
	status, h, body := refusedWith(t, r)
	if status != 429 || h.Get("Retry-After") == "" || h.Get("X-Ratelimit-Remaining-Requests") != "0" ||
		h.Get("X-Penstock-Dropped-Reason") != "rate_limit_exceeded" || h.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-saturated" {
		t.Errorf("the second one: %d %v", status, h)
	}
	if e, _ := body["error"].(map[string]any); e["code"] != "rate_limit_exceeded" {
		t.Errorf("OpenAI's shape: %v", body)
	}
	_, r = chat(t, addr, "/v1/messages", "few", askBody)
	if status, _, body := refusedWith(t, r); status != 429 || body["type"] != "error" {
		t.Errorf("Anthropic's shape: %d %v", status, body)
	}
	// 25 of 40 tokens are used by the answer, so that what was reserved came back.
	p, _ = chat(t, addr, chatPath, "tokens", askBody)
	p.answer()
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
	p, r = chat(t, addr, chatPath, "tokens", askBody)
	if destinationOf(r) == "" {
		t.Fatalf("15 tokens are left: %v", r)
	}
	p.answer()
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
	_, r = chat(t, addr, chatPath, "tokens", askBody)
	if status, _, _ := refusedWith(t, r); status != 429 {
		t.Errorf("in debt: %d", status)
	}
	if got := s.Stats.Refused[refusalIndex("rate_limit_exceeded")].Load(); got != 3 {
		t.Errorf("%d refusals counted", got)
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatal("it never came")
		}
		time.Sleep(time.Millisecond)
	}
}

// loading is a pool whose only replica is not ready; requests wait for it.
func loading(t *testing.T) *flow.Flow {
	f := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{HoldFor: time.Minute})})
	t.Cleanup(f.Close)
	f.Observe(&fleet.Snapshot{Pool: "p", Version: 1, At: fleet.At(time.Now()), Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{
		ID: "r", URL: "http://127.10.0.1:8000", Phase: fleet.PhaseLoading, Models: []string{"m"}}}}})
	return f
}

func TestQueueCapBehindAProxy(t *testing.T) {
	f := loading(t)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, Door: door(nil, map[string]entry.TenantPolicy{"acme": {QueueCap: 1}})})
	p := newProxy(t, addr)
	p.send(keyed(chatPath, "acme", false), reqBody(askBody, true))
	waitFor(t, func() bool { return f.Stats().Totals.Held == 1 })
	_, r := chat(t, addr, chatPath, "acme", askBody)
	if status, h, _ := refusedWith(t, r); status != 429 || h.Get("Retry-After") != "1" {
		t.Errorf("a second one that waits: %d %v", status, h)
	}
}

// slow is a pool in which a prompt takes longer than any deadline.
func slow(t *testing.T) *flow.Flow {
	policy, err := route.New("penstock", 1)
	if err != nil {
		t.Fatal(err)
	}
	f := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Policy: policy, Profile: engine.Profiles()[0], Queue: true})})
	t.Cleanup(f.Close)
	f.Observe(&fleet.Snapshot{Pool: "p", Version: 1, At: fleet.At(time.Now()), Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{
		ID: "r", URL: "http://127.10.0.1:8000", Phase: fleet.PhaseReady, Rank: -1, Models: []string{"m"}}}}})
	return f
}

func TestDeadlineBehindAProxy(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: slow(t), model: "m"}, Door: door(nil, map[string]entry.TenantPolicy{"acme": {Deadline: time.Microsecond}})})
	_, r := chat(t, addr, chatPath, "acme", askBody)
	if status, h, _ := refusedWith(t, r); status != 429 || h.Get("Retry-After") == "" ||
		h.Get("X-Penstock-Dropped-Reason") != "deadline_exceeded" || h.Get("X-Llm-D-Request-Dropped-Reason") != "rejected-ttl-expired" {
		t.Errorf("what would be late: %d %v", status, h)
	}
}

// What waits too long is 503 where there is no endpoint and 429 where they are busy.
func TestPickTimeoutStatus(t *testing.T) {
	if e := refusal(context.DeadlineExceeded, loading(t)); e.Status != 503 {
		t.Errorf("no endpoint: %d", e.Status)
	}
	if e := refusal(context.DeadlineExceeded, newPool(t, 1)); e.Status != 429 {
		t.Errorf("busy: %d", e.Status)
	}
}

// A tenant that shares no cache gets a salt, also in the place of its own.
func TestSaltBehindAProxy(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, EarlyBody: 64,
		Door: door(nil, map[string]entry.TenantPolicy{"acme": {CacheSalt: "tenant"}})})
	p := newProxy(t, addr)
	long := strings.Repeat("x", 200)
	p.send(keyed(chatPath, "acme", false), reqBody(`{"model":"m","messages":[{"role":"user","content":"`+long, false),
		reqBody(`"}],"cache_salt":"mine"}`, true))
	p.recv()
	got := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	var body struct {
		Salt string `json:"cache_salt"`
	}
	if err := json.Unmarshal(got, &body); err != nil || len(body.Salt) != 32 || strings.Contains(string(got), "mine") {
		t.Errorf("%v: %s", err, got)
	}
}

// A hard limit cuts an answer that goes over it.
func TestHardLimitBehindAProxy(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Door: door(map[string]admit.Rule{
		"hard": {Measure: admit.OutputTokens, Limit: 5, Per: time.Hour, Hard: true}}, nil)})
	p, r := chat(t, addr, chatPath, "hard", `{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
	if destinationOf(r) == "" {
		t.Fatalf("%v", r)
	}
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	p.send(respHeads("text/event-stream"))
	p.recv()
	for range 20 {
		if p.stream.Send(respBody(`data: {"choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n", false)) != nil {
			break
		}
		r, err := p.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if im := r.GetImmediateResponse(); im != nil {
			if im.GetStatus().GetCode() != 429 {
				t.Errorf("%v", im)
			}
			return
		}
	}
	t.Error("20 tokens passed a limit of 5")
}

// What a tenant's policy says of pools holds for a name, for a request that names no
// model, and after a fault.
func TestDataPolicyBehindAProxy(t *testing.T) {
	cat := namedPools{{Pool: newPool(t, 1), PoolName: "far"}, {Pool: newPool(t, 2), PoolName: "near"}}
	d := door(nil, map[string]entry.TenantPolicy{"near": {Pools: map[string]bool{"near": true}}, "nowhere": {Pools: map[string]bool{"x": true}}, "any": {}})
	s, addr := start(t, Options{Catalogue: cat, Door: d})
	for _, c := range []struct {
		key, model string
		want       int
	}{
		{"any", "far", 0}, {"near", "near", 0}, {"near", "far", 404}, {"nowhere", "near", 404},
	} {
		_, r := chat(t, addr, chatPath, c.key, strings.Replace(askBody, `"m"`, `"`+c.model+`"`, 1))
		got := 0
		if r.GetImmediateResponse() != nil {
			got, _, _ = refusedWith(t, r)
		}
		if got != c.want {
			t.Errorf("%s asks for %s: %d", c.key, c.model, got)
		}
	}
	for key, want := range map[string]string{"near": "near", "any": "far", "nowhere": ""} {
		ss := &session{srv: s, terms: terms{who: entry.Identity{Tenant: key}}}
		if p := ss.anyPool(); p.PoolName != want {
			t.Errorf("a request of %s without a model goes to %q", key, p.PoolName)
		}
		if got := ss.anyEndpoint(); (got == "") != (want == "") {
			t.Errorf("a blind pick for %s: %q", key, got)
		}
	}
}

// namedPools is a catalogue of pools whose only model has the name of its pool.
type namedPools []entry.Target

func (c namedPools) Pools() []entry.Target { return c }

func (c namedPools) Resolve(name string) (entry.Target, bool) {
	for _, p := range c {
		if p.PoolName == name {
			p.Place = entry.Place{Name: name, Model: "m", Rename: true}
			return p, true
		}
	}
	return entry.Target{}, false
}

// What a body makes an engine compute is reserved, under whatever name it asks for it,
// and a key alone says how urgent a request is.
func TestBodyBehindAProxyCountsAsAtTheGateway(t *testing.T) {
	_, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Door: door(map[string]admit.Rule{
		"small": {Measure: admit.OutputTokens, Limit: 50, Per: time.Hour}}, nil)})
	for body, want := range map[string]int{
		`{"model":"m","prompt":"hello","max_tokens":10,"priority":-5}`:                  0,
		`{"model":"m","prompt":"hello","max_tokens":10,"best_of":20}`:                   429,
		`{"model":"m","prompt":["a","b","c","d","e","f"],"max_tokens":10}`:              429,
		`{"model":"m","prompt":"hello","max_tokens":10,"n_predict":1000}`:               429,
		`{"model":"m","prompt":"hello","max_completion_tokens":10,"max_tokens":100000}`: 429,
	} {
		p, r := chat(t, addr, "/v1/completions", "small", body)
		got := 0
		if r.GetImmediateResponse() != nil {
			got, _, _ = refusedWith(t, r)
		} else if sent := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() }); !strings.Contains(string(sent), `"priority":0`) {
			t.Errorf("%s: an engine gets %s", body, sent)
		}
		p.stream.CloseSend()
		if got != want {
			t.Errorf("%s: %d", body, got)
		}
	}
}

// Whoever leaves before an answer that comes as a whole pays what the engine made of it
// until then.
func TestWhoLeavesBeforeTheAnswerPaysBehindAProxy(t *testing.T) {
	d := door(map[string]admit.Rule{"acme": {Measure: admit.OutputTokens, Limit: 1000, Per: time.Hour}}, nil)
	s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 1), model: "m"}, Door: d})
	for _, stream := range []bool{false, true} {
		before := d.Quotas.Stats().Balances
		body := askBody
		if stream {
			body = strings.TrimSuffix(askBody, "}") + `,"stream":true}`
		}
		p, _ := chat(t, addr, chatPath, "acme", body)
		time.Sleep(60 * time.Millisecond) // two tokens at the usual pace
		p.stream.CloseSend()
		waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
		got := d.Quotas.Stats().Balances[0].Charged
		if len(before) > 0 {
			got -= before[0].Charged
		}
		if stream && got != 0 || !stream && (got < 2 || got > 10) {
			t.Errorf("stream %v: %d tokens were charged", stream, got)
		}
	}
}
