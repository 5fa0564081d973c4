// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/route"
)

// more is a further pool of a fixture.
type more struct {
	Pool
	urls     []string
	hold     time.Duration
	maxModel int
	models   []string // that its replicas list; nil: those of the pool
}

// grow gives a fixture further pools; own changes its first one.
func (f *fixture) grow(own Pool, pools ...more) {
	f.t.Helper()
	own.Name, own.Flow = "p", f.flow
	all := []Pool{own}
	for i, m := range pools {
		p, err := route.New("round-robin", 1)
		if err != nil {
			f.t.Fatal(err)
		}
		m.Flow = flow.New(flow.Options{Pool: m.Name, Dispatch: dispatch.New(dispatch.Options{Pool: m.Name, Policy: p, HoldFor: m.hold}), Recorder: &f.records})
		f.t.Cleanup(m.Flow.Close)
		m.observe(m.urls...)
		all = append(all, m.Pool)
		pools[i] = m
	}
	cat, err := NewCatalogue(all)
	if err != nil {
		f.t.Fatal(err)
	}
	f.h.SetCatalogue(cat)
}

// observe gives the pool a snapshot with these replicas.
func (m *more) observe(urls ...string) {
	s := &fleet.Snapshot{Pool: m.Name, Version: uint64(time.Now().UnixNano()), At: fleet.At(time.Now())}
	models := m.models
	for _, x := range m.Models {
		if m.models == nil {
			models = append(models, x.Name)
		}
	}
	for i, u := range urls {
		s.Endpoints = append(s.Endpoints, fleet.EndpointState{Endpoint: fleet.Endpoint{
			ID: fmt.Sprintf("%s%d", m.Name, i), URL: u, Phase: fleet.PhaseReady, Models: models, Rank: -1, MaxModelLen: m.maxModel}})
	}
	m.Flow.Observe(s)
}

// version is an engine that streams, and answers in the name of its model.
func version(t *testing.T, model string, wait time.Duration, fails func() bool) *replica {
	return scripted(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		time.Sleep(wait)
		if fails != nil && fails() {
			io.WriteString(c, jsonAnswer(500, `{"error":{"message":"boom"}}`))
			return true
		}
		if !strings.Contains(string(body), `"model":"`+model+`"`) {
			io.WriteString(c, jsonAnswer(404, `{"error":{"message":"no such model"}}`))
			return true
		}
		if !strings.Contains(string(body), `"stream":true`) {
			io.WriteString(c, jsonAnswer(200, strings.Replace(okBody, `"model":"m"`, `"model":"`+model+`"`, 1)))
			return true
		}
		ev := strings.Replace(token, `"id":"c"`, `"id":"c","model":"`+model+`"`, 1)
		io.WriteString(c, stream(ev, ev, finish, done))
		return true
	})
}

const reviewModel = "food-review"

func canary(s rollout.Spec) RolloutOptions {
	s.Name, s.Model = "review", reviewModel
	if s.Steps == nil {
		s.Steps = []float64{.5, 1}
	}
	return RolloutOptions{Spec: s, Arms: [2]ArmPlace{{Model: "m"}, {Model: "v2"}}}
}

func reviewBody(more string) string {
	return `{"model":"` + reviewModel + `","messages":[{"role":"user","content":"hello"}]` + more + `}`
}

// Two versions behind one name: shares, the name in the answer, sessions that stay,
// records and metrics of each.
func TestCanary(t *testing.T) {
	one, two := version(t, "m", 0, nil), version(t, "v2", 0, nil)
	f := newFixture(t, setup{}, one.url)
	pools := []more{{Pool: Pool{Name: "next", Models: []Model{{Name: "v2"}}}, urls: []string{two.url}}}
	f.grow(Pool{Models: []Model{{Name: "m"}}}, pools...)
	if err := f.h.Rollouts().Set([]RolloutOptions{canary(rollout.Spec{Sticky: rollout.StickyUser})}); err != nil {
		t.Fatal(err)
	}
	const n = 200
	for i := range n {
		stream := ""
		if i%2 == 0 {
			stream = `,"stream":true`
		}
		res, text := f.chat(reviewBody(fmt.Sprintf(`,"user":"u%d"`+stream, i)))
		if res.StatusCode != 200 || strings.Contains(text, `"m"`) || strings.Contains(text, `"v2"`) || !strings.Contains(text, `"model":"`+reviewModel+`"`) && i%2 == 1 {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
	}
	f.settled()
	if got := two.seen.Load(); got < n*35/100 || got > n*65/100 {
		t.Errorf("the canary got %d of %d", got, n)
	}
	st := f.h.Rollouts().States()[0]
	if int64(st.Totals[rollout.Canary].Requests) != two.seen.Load() || int64(st.Totals[rollout.Baseline].Requests) != one.seen.Load() {
		t.Errorf("%+v", st.Totals)
	}
	if e := st.Evidence[0]; e.Name != "ttft" || e.N[rollout.Canary] == 0 || !(e.Canary > 0) {
		t.Errorf("%+v", e)
	}
	arms := map[string]int{}
	f.records.mu.Lock()
	for _, r := range f.records.all {
		arms[r.Request.Arm+" "+r.Request.Model]++
	}
	f.records.mu.Unlock()
	if arms["review/canary v2"] == 0 || arms["review/baseline m"] == 0 || len(arms) != 2 {
		t.Errorf("records: %v", arms)
	}
	// A session keeps its version when the weight changes, until one is withdrawn.
	where := func(s string) bool {
		before := two.seen.Load()
		f.chat(reviewBody(`,"prompt_cache_key":"` + s + `"`))
		return two.seen.Load() > before
	}
	began := map[string]bool{}
	for i := range 20 {
		s := fmt.Sprint("s", i)
		began[s] = where(s)
	}
	if _, err := f.h.Rollouts().Act("review", "abort", "op"); err != nil {
		t.Fatal(err)
	}
	for s := range began {
		if where(s) {
			t.Error("a withdrawn version got a session")
		}
	}
	if res, _ := http.Get(f.url + "/v1/models/" + reviewModel); res.StatusCode != 200 {
		t.Errorf("the name is not offered: %d", res.StatusCode)
	}
}

// A canary without a replica: its share goes to the baseline, and nothing fails.
func TestCanaryBlocked(t *testing.T) {
	one := version(t, "m", 0, nil)
	f := newFixture(t, setup{}, one.url)
	f.grow(Pool{Models: []Model{{Name: "m"}}}, more{Pool: Pool{Name: "next", Models: []Model{{Name: "v2"}}}})
	f.h.Rollouts().Set([]RolloutOptions{canary(rollout.Spec{Sticky: rollout.StickyUser})})
	for i := range 50 {
		if res, text := f.chat(reviewBody(fmt.Sprintf(`,"user":"u%d"`, i))); res.StatusCode != 200 {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
	}
	f.h.Rollouts().Tick()
	if st := f.h.Rollouts().States()[0]; !st.Blocked || st.Totals[rollout.Baseline].Requests != 50 {
		t.Errorf("%+v", st)
	}
}

// A canary that fails is rolled back by itself, with evidence; one error of three is
// no reason.
func TestCanaryRollsBack(t *testing.T) {
	n := 0
	one := version(t, "m", 0, nil)
	two := version(t, "v2", 0, func() bool { n++; return n > 3 || n == 2 })
	f := newFixture(t, setup{}, one.url)
	f.grow(Pool{Models: []Model{{Name: "m"}}}, more{Pool: Pool{Name: "next", Models: []Model{{Name: "v2"}}}, urls: []string{two.url}})
	var steps []*RolloutState
	f.h.Rollouts().Changed = func(r *RolloutState) { steps = append(steps, r) }
	f.h.Rollouts().Set([]RolloutOptions{canary(rollout.Spec{Sticky: rollout.StickyUser, Guard: rollout.Guard{Samples: 30}})})
	for i := 0; i < 400 && len(steps) == 0; i++ {
		f.chat(reviewBody(fmt.Sprintf(`,"user":"u%d"`, i)))
		f.h.Rollouts().Tick()
		if st := f.h.Rollouts().States()[0]; st.Totals[rollout.Canary].Requests == 3 && st.State != rollout.Running {
			t.Error("rolled back for one error of three")
		}
	}
	if len(steps) != 1 || steps[0].State != rollout.RolledBack {
		t.Fatalf("%+v", steps)
	}
	last := steps[0].Steps[len(steps[0].Steps)-1]
	if !strings.Contains(last.Why, "errors of the canary are worse") || last.Evidence[2].Verdict != rollout.Worse || last.To != 0 {
		t.Errorf("%+v", last)
	}
	before := two.seen.Load()
	for i := range 30 {
		f.chat(reviewBody(fmt.Sprintf(`,"user":"u%d"`, i)))
	}
	if two.seen.Load() != before {
		t.Error("the canary still gets requests")
	}
	if f.metric("requests_total") == 0 {
		t.Error("no metrics")
	}
}

// Shadow traffic: clients see the baseline only, the budget bounds what it costs, and
// no prompt of a tenant whose policy forbids it is copied.
func TestShadow(t *testing.T) {
	one, two := version(t, "m", 0, nil), version(t, "v2", 0, nil)
	who := byKey{"a": {Tenant: "a"}, "b": {Tenant: "b"}}
	f := newFixture(t, setup{options: Options{Auth: who}}, one.url)
	f.h.SetTenants(map[string]entry.TenantPolicy{"b": {Pools: map[string]bool{"p": true}}})
	f.grow(Pool{Models: []Model{{Name: "m"}}}, more{Pool: Pool{Name: "next", Models: []Model{{Name: "v2"}}}, urls: []string{two.url}})
	o := canary(rollout.Spec{Steps: []float64{.000001}})
	o.Shadow = ShadowOptions{Share: 1, TokensPerHour: 1000}
	f.h.Rollouts().Set([]RolloutOptions{o})
	for i := range 20 {
		key := "b"
		if i%2 == 0 {
			key = "a"
		}
		if res, text := f.chat(reviewBody(`,"max_tokens":100,"stream":true`), "X-Api-Key", key); res.StatusCode != 200 || strings.Contains(text, "v2") {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
		f.waitFor("the shadow", func() bool { return f.h.Rollouts().States()[0].Shadow.Running == 0 })
	}
	st := f.h.Rollouts().States()[0]
	if st.Shadow.Sent != 10 || two.seen.Load() != 10 || one.seen.Load() != 20 {
		t.Errorf("%+v, %d at the canary", st.Shadow, two.seen.Load())
	}
	for range 200 {
		f.chat(reviewBody(`,"max_tokens":900`), "X-Api-Key", "a")
	}
	f.waitFor("the shadows", func() bool { return f.h.Rollouts().States()[0].Shadow.Running == 0 })
	st = f.h.Rollouts().States()[0]
	if st.Shadow.Skipped < 100 || st.Shadow.Tokens > 1000 {
		t.Errorf("the budget did not bind: %+v", st.Shadow)
	}
	if st.Totals[rollout.Canary].Requests == 0 || st.Totals[rollout.Canary].Failed != 0 {
		t.Errorf("%+v", st.Totals)
	}
}
