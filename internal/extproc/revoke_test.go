// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
)

// watching is a door that ends requests with their key. Those of tenant x have the
// key k-x.
func watching(tenants ...string) *entry.Door {
	policies := map[string]entry.TenantPolicy{}
	for _, name := range tenants {
		policies[name] = entry.TenantPolicy{}
	}
	d := door(nil, policies)
	d.Watches = &entry.Watches{}
	return d
}

// without says that all keys open but one.
func without(closed string) func(string) bool { return func(id string) bool { return id != closed } }

func requestPart(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() }

// turnedOut reads the answer that a closed key gets.
func (p *proxy) turnedOut(message string) {
	p.t.Helper()
	status, h, body := refusedWith(p.t, p.recv())
	e, _ := body["error"].(map[string]any)
	text, _ := e["message"].(string)
	if status != 401 || h.Get("Www-Authenticate") != "Bearer" || h.Get("Content-Type") != "application/json" ||
		h.Get("X-Penstock-Dropped-Reason") != "invalid_api_key" || e["code"] != "invalid_api_key" || !strings.Contains(text, message) {
		p.t.Errorf("%d %v %v", status, h, body)
	}
	p.stream.CloseSend() // as a proxy does that has an answer
}

// Whoever waits in the queue when the key is closed gets what a new request gets; who
// waits with another key goes on waiting, and is served.
func TestClosedKeyLeavesTheQueue(t *testing.T) {
	f, d := loading(t), watching("acme", "other")
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, Door: d})
	ask := func(key string) *proxy {
		p := newProxy(t, addr)
		p.send(keyed(chatPath, key, false), reqBody(askBody, true))
		return p
	}
	closed, other := ask("acme"), ask("other")
	waitFor(t, func() bool { return f.Stats().Totals.Held == 2 })
	if n := d.Watches.End(func(string) bool { return true }); n != 0 {
		t.Fatalf("%d ended with open keys", n)
	}
	if n := d.Watches.End(without("k-acme")); n != 1 {
		t.Fatalf("%d ended", n)
	}
	closed.turnedOut("not valid")
	waitFor(t, func() bool { return f.Stats().Totals.Held == 1 && s.Stats.Open.Load() == 1 })
	if n := d.Watches.End(without("k-acme")); n != 0 {
		t.Errorf("%d ended once more", n)
	}
	snap := *f.Snapshot()
	snap.Version, snap.Endpoints = 2, append([]fleet.EndpointState(nil), snap.Endpoints...)
	snap.Endpoints[0].Phase, snap.Endpoints[0].Rank = fleet.PhaseReady, -1
	f.Observe(&snap)
	if r := other.recv(); destinationOf(r) == "" {
		t.Errorf("the other one got %v", r)
	}
	other.answer()
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
	if got := s.Stats.Refused[refusalIndex("invalid_api_key")].Load(); got != 1 || s.Stats.ClientGone[0].Load() != 0 {
		t.Errorf("%d refusals counted", got)
	}
}

// phases in which a closed key meets a request, and how the request goes on where its
// key is open.
var phases = []struct {
	name    string
	begin   func(*proxy, string)
	goOn    func(*proxy)
	message string // to a client whose key was closed
}{
	{"its body comes", func(p *proxy, key string) {
		p.send(keyed(chatPath, key, false), reqBody(askBody[:20], false))
	}, func(p *proxy) {
		p.send(reqBody(askBody[20:], true))
		p.recv()
		p.answer()
	}, "not valid"},
	{"the replica computes", func(p *proxy, key string) {
		p.send(keyed(chatPath, key, false), reqBody(askBody, true))
		p.recv()
		p.body(requestPart)
	}, func(p *proxy) {
		p.send(respHeads("application/json"))
		p.recv()
	}, "not valid"},
	{"the body is buffered", func(p *proxy, key string) {
		h := keyed(chatPath, key, false)
		h.ProtocolConfig.RequestBodyMode = buffered
		p.send(h)
		p.recv()
		p.send(reqBody(askBody, true))
		p.recv()
	}, func(p *proxy) {
		p.send(respHeads("application/json"))
		p.recv()
	}, "not valid"},
	{"a stream has begun", func(p *proxy, key string) {
		p.send(keyed(chatPath, key, false), reqBody(askBody, true))
		p.recv()
		p.body(requestPart)
		p.send(respHeads("text/event-stream"))
		p.recv()
		p.send(respBody(event, false))
		p.recv()
	}, func(p *proxy) {
		p.send(respBody("data: [DONE]\n\n", true))
		p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
	}, "closed within this answer"},
	{"a stream has begun whose body is not shown", func(p *proxy, key string) {
		h := keyed(chatPath, key, false)
		h.ProtocolConfig.ResponseBodyMode = none
		p.send(h, reqBody(askBody, true))
		p.recv()
		p.body(requestPart)
		p.send(respHeads("text/event-stream"))
		p.recv()
	}, func(p *proxy) {
		p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{}}})
		if r := p.recv(); r.GetResponseTrailers() == nil {
			p.t.Errorf("trailers were answered with %v", r)
		}
	}, "closed within this answer"},
}

const event = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"

// Whatever a request is doing when its key is closed, it ends; one with another key
// goes on.
func TestClosedKeyEndsRequests(t *testing.T) {
	for _, c := range phases {
		t.Run(c.name, func(t *testing.T) {
			f, d := newPool(t, 2), watching("acme", "other")
			s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, Door: d})
			closed, other := newProxy(t, addr), newProxy(t, addr)
			c.begin(closed, "acme")
			c.begin(other, "other")
			waitFor(t, func() bool { return s.Stats.Open.Load() == 2 })
			waitFor(t, func() bool { return d.Watches.End(without("k-acme")) == 1 })
			closed.turnedOut(c.message)
			waitFor(t, func() bool { return s.Stats.Open.Load() == 1 })
			c.goOn(other)
			other.stream.CloseSend()
			waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
			if got := s.Stats.Refused[refusalIndex("invalid_api_key")].Load(); got != 1 {
				t.Errorf("%d refusals counted", got)
			}
			if n := d.Watches.End(func(string) bool { return false }); n != 0 {
				t.Errorf("%d requests are watched that are over", n)
			}
			for _, e := range f.Stats().Endpoints {
				if e.Failed != 0 {
					t.Errorf("it counts against the replica: %+v", e)
				}
			}
		})
	}
}

// Without the switch what runs finishes, and nothing is watched.
func TestClosedKeyWithoutTheSwitch(t *testing.T) {
	d := watching("acme")
	d.Watches = nil
	s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 1), model: "m"}, Door: d})
	p, _ := chat(t, addr, chatPath, "acme", askBody)
	if n := d.Watches.End(func(string) bool { return false }); n != 0 {
		t.Errorf("%d ended", n)
	}
	p.answer()
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
	if s.Stats.Completed.Load() != 1 {
		t.Error("the answer is not complete")
	}
}

// Who has the whole answer hears nothing of a key that is closed afterwards, however
// long the proxy keeps the stream.
func TestClosedKeyAfterTheAnswer(t *testing.T) {
	d := watching("acme")
	s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 1), model: "m"}, Door: d})
	p, _ := chat(t, addr, chatPath, "acme", askBody)
	p.body(requestPart)
	p.send(respHeads("application/json"))
	p.recv()
	p.send(respBody(`{"usage":{"prompt_tokens":20,"completion_tokens":5,"total_tokens":25}}`, true))
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
	if n := d.Watches.End(without("k-acme")); n != 1 {
		t.Errorf("%d ended", n)
	}
	p.stream.CloseSend()
	if r, err := p.stream.Recv(); err == nil {
		t.Errorf("after the answer came %v", r)
	}
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
	if s.Stats.Completed.Load() != 1 || s.Stats.Refused[refusalIndex("invalid_api_key")].Load() != 0 {
		t.Error("it does not count as complete")
	}
}

// A key that expires ends its requests as one that is revoked or removed does. One that
// is rotated goes on.
func TestKeysOfAFileEndRequests(t *testing.T) {
	now := time.Now()
	file, path := identity.File{Schema: identity.Schema}, filepath.Join(t.TempDir(), "keys.json")
	texts, ids := map[string]string{}, map[string]string{}
	for name, life := range map[string]time.Duration{"expires": time.Hour, "revoked": 0, "rotated": 0, "stays": 0} {
		key, text, err := file.Create(identity.Key{Tenant: name}, life, now)
		if err != nil {
			t.Fatal(err)
		}
		texts[name], ids[name] = text, key.ID
	}
	if err := file.Save(path); err != nil {
		t.Fatal(err)
	}
	keys, err := identity.LoadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	d := watching()
	d.Auth = &entry.Guard{Keys: keys}
	s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 2), model: "m"}, Door: d})
	proxies := map[string]*proxy{}
	for name, text := range texts {
		proxies[name] = newProxy(t, addr)
		phases[3].begin(proxies[name], text)
	}
	at := now
	look := func() int { return d.Watches.End(func(id string) bool { return keys.Open(id, at) }) }
	if n := look(); n != 0 {
		t.Fatalf("%d ended with open keys", n)
	}
	if err := file.Revoke(ids["revoked"]); err != nil {
		t.Fatal(err)
	}
	if _, _, err := file.Rotate(ids["rotated"], 24*time.Hour, now); err != nil {
		t.Fatal(err)
	}
	if err := file.Save(path); err != nil {
		t.Fatal(err)
	}
	if err := keys.Reload(); err != nil {
		t.Fatal(err)
	}
	if n := look(); n != 1 {
		t.Fatalf("%d ended", n)
	}
	proxies["revoked"].turnedOut("closed within this answer")
	at = now.Add(2 * time.Hour)
	if n := look(); n != 1 {
		t.Fatalf("%d ended with the key that expires", n)
	}
	proxies["expires"].turnedOut("closed within this answer")
	waitFor(t, func() bool { return s.Stats.Open.Load() == 2 })
	for _, name := range []string{"rotated", "stays"} {
		phases[3].goOn(proxies[name])
	}
}

// What was produced until the key was closed is charged, also of an answer that comes
// as a whole.
func TestClosedKeyPaysWhatWasProduced(t *testing.T) {
	var clock atomic.Int64
	for name, want := range map[string]struct {
		phase  int
		tokens int64
	}{"whole": {1, 10}, "stream": {3, 1}} {
		t.Run(name, func(t *testing.T) {
			d := door(map[string]admit.Rule{"acme": {Measure: admit.OutputTokens, Limit: 1000, Per: time.Hour}}, nil)
			d.Watches = &entry.Watches{}
			s, addr := start(t, Options{Catalogue: onePool{flow: newPool(t, 1), model: "m"}, Door: d,
				Clock: func() fleet.Time { return fleet.Time(clock.Load()) }})
			p := newProxy(t, addr)
			phases[want.phase].begin(p, "acme")
			clock.Add(int64(time.Second))
			waitFor(t, func() bool { return d.Watches.End(without("k-acme")) == 1 })
			p.turnedOut(phases[want.phase].message)
			waitFor(t, func() bool { return s.Stats.Open.Load() == 0 })
			b := d.Quotas.Stats().Balances[0]
			if b.Charged != want.tokens {
				t.Errorf("charged %+v, want %d tokens", b, want.tokens)
			}
		})
	}
}

// Keys are closed while frames pass: each request ends with one last word, or has its
// whole answer.
func TestClosedKeysAmongFrames(t *testing.T) {
	const clients, rounds = 8, 30
	names := make([]string, clients)
	for i := range names {
		names[i] = fmt.Sprintf("t%d", i)
	}
	f, d := newPool(t, 2), watching(names...)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, Door: d})
	done := make(chan struct{})
	var enders, wg sync.WaitGroup
	enders.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				d.Watches.End(without("k-" + names[i%clients]))
			}
		}
	})
	var cut, whole atomic.Int64
	for _, name := range names {
		conn := extprocv3.NewExternalProcessorClient(connect(t, addr))
		wg.Go(func() {
			for range rounds {
				st, err := conn.Process(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				frames := []*extprocv3.ProcessingRequest{keyed(chatPath, name, false), reqBody(askBody, true), respHeads("text/event-stream")}
				for range 20 {
					frames = append(frames, respBody(event, false))
				}
				for _, f := range append(frames, respBody("data: [DONE]\n\n", true)) {
					_ = st.Send(f)
				}
				st.CloseSend()
				last, over := 0, false
				for {
					r, err := st.Recv()
					if err != nil {
						break
					}
					if r.GetImmediateResponse() != nil {
						last++
					}
					over = over || r.GetResponseBody().GetResponse().GetBodyMutation().GetStreamedResponse().GetEndOfStream()
				}
				if last > 1 || (last == 1) == over {
					t.Errorf("%d last words, the whole answer %v", last, over)
				}
				if over {
					whole.Add(1)
				} else {
					cut.Add(1)
				}
			}
		})
	}
	wg.Wait()
	close(done)
	enders.Wait()
	waitFor(t, func() bool { return s.Stats.Open.Load() == 0 && f.Stats().Totals.InFlight == 0 })
	if got := s.Stats.Refused[refusalIndex("invalid_api_key")].Load(); got != cut.Load() || cut.Load()+whole.Load() != clients*rounds {
		t.Errorf("%d refusals counted, %d requests cut, %d whole", got, cut.Load(), whole.Load())
	}
}
