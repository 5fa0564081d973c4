// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

func TestFallback(t *testing.T) {
	own, spare, big := version(t, "m", 0, nil), version(t, "m", 0, nil), version(t, "large", 0, nil)
	who := byKey{"a": {Tenant: "a"}, "b": {Tenant: "b"}}
	f := newFixture(t, setup{options: Options{Auth: who}})
	f.h.SetTenants(map[string]entry.TenantPolicy{"b": {Pools: map[string]bool{"p": true, "big": true}}})
	pools := []more{
		{Pool: Pool{Name: "spare", Models: []Model{{Name: "m"}}, Spare: true, Authorization: "Bearer spare-key"}, urls: []string{spare.url}},
		{Pool: Pool{Name: "big", Models: []Model{{Name: "large"}}}, urls: []string{big.url}},
	}
	f.grow(Pool{Models: []Model{{Name: "m", Adapters: []string{"lora"}}}, Fallback: []string{"spare", "big"}, Authorization: "Bearer own-key"}, pools...)

	// Its own pool has no replica: the first fallback.
	res, text := f.chat(chatBody, "X-Api-Key", "a")
	if res.StatusCode != 200 || spare.seen.Load() != 1 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	f.outcome(1)
	f.waitFor("a record", func() bool { return f.records.last().Pool == "spare" })
	if r := f.records.last(); r.Request.Via != "p: no_replica" {
		t.Errorf("%+v", r.Request)
	}
	// The policy of b rules that pool out: the second one, which has another model. The
	// answer goes by the name that the client used.
	res, text = f.chat(chatBody, "X-Api-Key", "b")
	if res.StatusCode != 200 || big.seen.Load() != 1 || spare.seen.Load() != 1 || strings.Contains(text, "large") || !strings.Contains(text, `"model":"m"`) {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	// An adapter is nothing that another model could stand in for.
	if res, _ = f.chat(strings.Replace(chatBody, `"m"`, `"lora"`, 1), "X-Api-Key", "a"); res.StatusCode != 503 {
		t.Errorf("an adapter got %d", res.StatusCode)
	}
	// With a replica of its own it stays at home.
	f.observe(fleet.PhaseReady, own.url)
	f.chat(chatBody, "X-Api-Key", "a")
	if own.seen.Load() != 1 {
		t.Error("it did not come home")
	}
	// That one is gone and nobody has noticed yet: nothing was sent, so another may.
	own.kill()
	if res, text = f.chat(chatBody, "X-Api-Key", "a"); res.StatusCode != 200 || spare.seen.Load() != 2 {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if n := f.metric("fallbacks_total"); n != 3 {
		t.Errorf("%v fallbacks", n)
	}
	f.settled()
}

// A key of one pool's engines is never sent to another's.
func TestFallbackKeepsCredentialsApart(t *testing.T) {
	e := &lastSeen{}
	u := scripted(t, e.script)
	f := newFixture(t, setup{})
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"spare"}, Authorization: "Bearer own-key"},
		more{Pool: Pool{Name: "spare", Models: []Model{{Name: "m"}}, Spare: true}, urls: []string{u.url}})
	if res, text := f.chat(chatBody); res.StatusCode != 200 {
		t.Fatal(text)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := e.head.Get("Authorization"); a != "" {
		t.Errorf("the other pool got %q", a)
	}
}

// Prompts that are too long go to a pool that can read them: by its length where that
// is known, else by what the engine says.
func TestFallbackByContext(t *testing.T) {
	own := scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		if len(body) > 4000 {
			c.Write([]byte(jsonAnswer(400, `{"object":"error","message":"This model's maximum context length is 1000 tokens.","code":400}`)))
		} else {
			c.Write([]byte(jsonAnswer(200, okBody)))
		}
		return true
	})
	big := version(t, "large", 0, nil)
	f := newFixture(t, setup{}, own.url)
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"big"}},
		more{Pool: Pool{Name: "big", Models: []Model{{Name: "large"}}}, urls: []string{big.url}})
	long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 2000), 1)
	if res, text := f.chat(long); res.StatusCode != 200 || own.seen.Load() != 1 || big.seen.Load() != 1 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	f.waitFor("a record", func() bool { r := f.records.last(); return r != nil && r.Request.Via == "p: context_length" })
	// Now the pool tells how long a prompt it reads: it is not asked at all.
	s := *f.flow.Snapshot()
	s.Version += 100
	s.Endpoints = append([]fleet.EndpointState{}, s.Endpoints...)
	s.Endpoints[0].MaxModelLen = 1000
	f.flow.Observe(&s)
	if res, text := f.chat(long); res.StatusCode != 200 || own.seen.Load() != 1 || big.seen.Load() != 2 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	if res, _ := f.chat(chatBody); res.StatusCode != 200 || own.seen.Load() != 2 {
		t.Error("a short prompt left its pool")
	}
	f.settled()
}

// Only where nothing has reached the client: a stream that breaks is not served again.
func TestNoFallbackAfterTheFirstByte(t *testing.T) {
	own := says(t, sseHead+chunk(token)+"CLOSE")
	spare := version(t, "m", 0, nil)
	f := newFixture(t, setup{}, own.url)
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"spare"}}, more{Pool: Pool{Name: "spare", Models: []Model{{Name: "m"}}, Spare: true}, urls: []string{spare.url}})
	_, text := f.chat(streamReq)
	if !strings.Contains(text, "stream_truncated") || spare.seen.Load() != 0 {
		t.Errorf("%d, %s", spare.seen.Load(), text)
	}
}

// What is predicted to wait too long goes elsewhere; where nobody is sooner, it waits.
func TestFallbackByWait(t *testing.T) {
	own, spare := version(t, "m", 0, nil), version(t, "m", 0, nil)
	policy, err := route.New("penstock", 1)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, setup{dispatch: dispatch.Options{Policy: policy, Profile: engine.Profiles()[0]}}, own.url)
	pools := []more{{Pool: Pool{Name: "spare", Models: []Model{{Name: "m"}}, Spare: true}, urls: []string{spare.url}}}
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"spare"}, FallbackWait: 300 * time.Millisecond}, pools...)
	long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 100000), 1)
	if res, text := f.chat(long); res.StatusCode != 200 || spare.seen.Load() != 1 {
		t.Fatalf("%d %s", res.StatusCode, text)
	}
	f.waitFor("a record", func() bool { r := f.records.last(); return r != nil && r.Request.Via == "p: predicted_wait" })
	if res, _ := f.chat(chatBody); res.StatusCode != 200 || own.seen.Load() != 1 {
		t.Error("a short prompt left its pool")
	}
	pools[0].observe()
	if res, text := f.chat(long); res.StatusCode != 200 || own.seen.Load() != 2 {
		t.Errorf("nobody is sooner, and it got %d %s", res.StatusCode, text)
	}
	f.settled()
}

// A pool that serves instead sees the same request, and one that comes back to its own
// pool is as it was.
func TestFallbackKeepsTheRequest(t *testing.T) {
	f := newFixture(t, setup{})
	f.h.door.SessionHeaders = []string{"x-session-id"}
	spare := more{Pool: Pool{Name: "spare", Models: []Model{{Name: "m"}}, Spare: true}, urls: []string{"http://127.0.0.1:1"}}
	f.grow(Pool{Models: []Model{{Name: "m"}}, Fallback: []string{"spare"}}, spare)
	c := newCall(f.h)
	long := strings.Replace(chatBody, "hello", strings.Repeat("hello ", 500), 1)
	r := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(long))
	r.Header.Set("X-Session-Id", "s-1")
	c.w, c.r, c.route, c.ctx = httptest.NewRecorder(), r, routes["/v1/chat/completions"], t.Context()
	if err := c.prepare(); err != nil {
		t.Fatal(err)
	}
	was := c.req
	was.Blocks = slices.Clone(was.Blocks)
	if was.Session == 0 || len(was.Blocks) == 0 {
		t.Fatalf("%+v", was)
	}
	g := c.elsewhere(t.Context(), viaNoReplica)
	if g == nil || c.target.pool.Name != "spare" || c.req.Session != was.Session {
		t.Errorf("at the other pool: %+v", c.req)
	}
	g.Done(fleet.Outcome{Kind: fleet.OutcomeRefused})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	c.target, c.req, c.fallen.tried = f.h.catalogue.Load().find([]byte("m")), was, nil
	if c.elsewhere(gone, viaNoReplica) != nil || !reflect.DeepEqual(c.req, was) {
		t.Errorf("back home: %+v, it was %+v", c.req, was)
	}
}
