// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/route"
)

func requestBodyOf(r *extprocv3.ProcessingResponse) *extprocv3.StreamedBodyResponse {
	return r.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
}

// TestLargeBodyIsPickedEarly: with the model in the beginning the pick comes before
// the end of the body, and nothing is held.
func TestLargeBodyIsPickedEarly(t *testing.T) {
	for _, alias := range []string{"m", "an-alias"} {
		f := newPool(t, 2)
		s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m", alias: "an-alias"}, EarlyBody: 10_000})
		p := newProxy(t, addr)
		text := strings.Repeat("all work and no play. ", 3000)
		in := `{"model": "` + alias + `", "messages":[{"role":"user","content":"` + text + `"}],"n":1}`
		want := strings.Replace(in, `"`+alias+`"`, `"m"`, 1)
		var got []byte
		read := func(n int) (eos bool) {
			for len(got) < n && !eos {
				sr := requestBodyOf(p.recv())
				got, eos = append(got, sr.GetBody()...), sr.GetEndOfStream()
			}
			return eos
		}
		p.send(heads(chatPath, false, fds, fds), reqBody(in[:8000], false), reqBody(in[8000:12000], false))
		if destinationOf(p.recv()) == "" {
			t.Fatal("no pick")
		}
		read(12000 - len(alias) + 1)
		for i := 12000; i < len(in); i += 7000 { // each part comes back before the next is sent
			part := in[i:min(i+7000, len(in))]
			p.send(reqBody(part, false))
			read(i + len(part) - len(alias) + 1)
		}
		if n := s.Stats.Held.Load(); n != 0 {
			t.Errorf("%d bytes are held behind the pick", n)
		}
		p.send(reqBody("", true), reqBody("", true))
		if !read(1 << 30) {
			t.Error("the body has no end")
		}
		if string(got) != want {
			t.Errorf("alias %s: the body came back changed (%d bytes, want %d)", alias, len(got), len(want))
		}
		p.send(respHeads("application/json"))
		if p.recv().GetResponseHeaders() == nil {
			t.Error("the end of the body that came twice was answered twice")
		}
		if s.Stats.Early.Load() != 1 || s.Stats.Picks() != 1 {
			t.Errorf("%d early of %d picks", s.Stats.Early.Load(), s.Stats.Picks())
		}
	}
}

// TestModelAtTheEndWaitsForTheBody: clients that write the model last are waited
// for, and trailers may end such a body.
func TestModelAtTheEndWaitsForTheBody(t *testing.T) {
	f := newPool(t, 2)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, EarlyBody: 5000})
	p := newProxy(t, addr)
	in := chatBody("m", strings.Repeat("all work and no play. ", 3000))
	p.send(heads(chatPath, false, fds, fds))
	for i := 0; i < len(in); i += 9000 {
		p.send(reqBody(in[i:min(i+9000, len(in))], false))
	}
	p.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: &corev3.HeaderMap{}}}})
	if destinationOf(p.recv()) == "" {
		t.Fatal("no pick")
	}
	var got []byte
	for len(got) < len(in) {
		sr := requestBodyOf(p.recv())
		if got = append(got, sr.GetBody()...); sr.GetEndOfStream() {
			t.Fatal("a part ends the body although trailers follow")
		}
	}
	if string(got) != in || p.recv().GetRequestTrailers() == nil {
		t.Error("body or trailers are not answered as they came")
	}
	if s.Stats.Early.Load() != 0 || s.Stats.Held.Load() != 0 {
		t.Errorf("early %d, held %d", s.Stats.Early.Load(), s.Stats.Held.Load())
	}
}

// TestSecondModelBehindTheBeginning: a name that the picker did not see must not
// reach an engine that goes by the last one.
func TestSecondModelBehindTheBeginning(t *testing.T) {
	f := newPool(t, 1)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, EarlyBody: 1000})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, fds, fds), reqBody(`{"model":"m","messages":[{"role":"user","content":"`+strings.Repeat("x", 2000), false))
	if destinationOf(p.recv()) == "" {
		t.Fatal("no pick")
	}
	requestBodyOf(p.recv())
	p.send(reqBody(`"}],"mod`, false))
	requestBodyOf(p.recv())
	p.send(reqBody(`el":"/etc/other"}`, true))
	if c := p.recv().GetImmediateResponse().GetStatus().GetCode(); c != 400 {
		t.Errorf("answered %v, want 400", c)
	}
	for f.Stats().Totals.InFlight != 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestHeldBodiesAreBounded(t *testing.T) {
	f := newPool(t, 1)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, MaxHeld: 100_000})
	first := newProxy(t, addr)
	first.send(heads(chatPath, false, fds, fds), reqBody(`{"messages":"`+strings.Repeat("x", 60_000), false))
	for s.Stats.Held.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	second := newProxy(t, addr)
	second.send(heads(chatPath, false, fds, fds), reqBody(`{"messages":"`+strings.Repeat("x", 60_000), false))
	im := second.recv().GetImmediateResponse()
	if im.GetStatus().GetCode() != 503 || !bytes.Contains(im.GetBody(), []byte("overloaded")) {
		t.Errorf("%v", im)
	}
	first.cancel()
	for s.Stats.Held.Load() != 0 || s.Stats.Open.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestBodiesThatAreNoJSON: a form with a sound in it is picked for by its headers.
func TestBodiesThatAreNoJSON(t *testing.T) {
	f := newPool(t, 1)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, EarlyBody: 100})
	p := newProxy(t, addr)
	h := heads("/v1/audio/transcriptions", false, fds, fds)
	hs := h.GetRequestHeaders().GetHeaders()
	hs.Headers = append(hs.Headers, &corev3.HeaderValue{Key: "content-type", RawValue: []byte("multipart/form-data; boundary=x")})
	p.send(h, reqBody("--x\r\n{{{\x00", false), reqBody(strings.Repeat("y", 500), false), reqBody("", true))
	if destinationOf(p.recv()) == "" {
		t.Fatal("no pick")
	}
	got := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	if want := "--x\r\n{{{\x00" + strings.Repeat("y", 500); string(got) != want {
		t.Errorf("%q", got)
	}
	if s.Stats.Picked[HeadersOnly].Load() != 1 {
		t.Error("not counted as a pick by headers")
	}
}

// twoPools is a catalogue of two pools.
type twoPools struct{ a, b *flow.Flow }

func (c twoPools) Pools() []entry.Target { return []entry.Target{{Pool: c.a}, {Pool: c.b}} }

func (c twoPools) Resolve(name string) (entry.Target, bool) {
	to := entry.Target{Place: entry.Place{Name: name, Model: name}}
	switch name {
	case "m":
		to.Pool = c.a
	case "n":
		to.Pool = c.b
	}
	return to, to.Pool != nil
}

func TestRequestsThatNameNoModelFindTheirPool(t *testing.T) {
	a, b := newPool(t, 1), newPool(t, 0)
	now := fleet.At(time.Now())
	b.Observe(&fleet.Snapshot{Pool: "b", Version: 2, At: now, Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{
		ID: "n0", URL: "http://127.10.1.1:8000", Phase: fleet.PhaseReady, Rank: -1, Models: []string{"n"}}}}})
	s, addr := start(t, Options{Catalogue: twoPools{a, b}})
	ask := func(subset string) string {
		p := newProxy(t, addr)
		h := heads("/v1/models", true, fds, fds)
		if subset != "" {
			h.MetadataContext = hintMetadata(t, subset)
		}
		p.send(h)
		r := p.recv()
		if r.GetImmediateResponse() != nil {
			return "refused"
		}
		return destinationOf(r)
	}
	if d := ask(""); d != "127.10.0.1:8000" {
		t.Errorf("without a hint: %s", d)
	}
	if d := ask("127.10.1.1:8000"); d != "127.10.1.1:8000" {
		t.Errorf("with a hint into the second pool: %s", d)
	}
	if d := ask("127.10.9.9:8000"); d != "refused" {
		t.Errorf("with a hint out of both: %s", d)
	}
	a.Observe(&fleet.Snapshot{Pool: "a", Version: 3, At: now})
	if d := ask(""); d != "127.10.1.1:8000" {
		t.Errorf("with the first pool empty: %s", d)
	}
	if n := s.Stats.Picked[HeadersOnly].Load(); n != 3 {
		t.Errorf("%d picks by headers, want 3", n)
	}
}

// TestPicksSayWhatTheyWereMadeOn: fresh signals, or only own accounting.
// A header that names a session keeps prompts together that are too short to be known
// by their text, as at the gateway.
func TestSessionHeaderBehindAProxy(t *testing.T) {
	f := newPool(t, 4)
	_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}, Door: &entry.Door{
		Auth: entry.Anonymous{}, BlockBytes: 512, Clock: func() fleet.Time { return fleet.At(time.Now()) }, SessionHeaders: []string{"x-session-id", "x-other"}}})
	ask := func(headers ...string) string {
		h := heads(chatPath, false, fds, fds)
		m := h.GetRequestHeaders().Headers
		for i := 0; i < len(headers); i += 2 {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: headers[i], RawValue: []byte(headers[i+1])})
		}
		p := newProxy(t, addr)
		p.send(h, reqBody(chatBody("m", "x"), true))
		d := destinationOf(p.recv())
		p.cancel()
		for f.Stats().Totals.InFlight > 0 {
			time.Sleep(time.Millisecond)
		}
		return d
	}
	places := map[string]bool{}
	for i := range 16 {
		id := fmt.Sprint("session ", i)
		first := ask("x-session-id", id)
		places[first] = true
		for _, again := range [][]string{{"x-session-id", id}, {"x-other", "z", "x-session-id", id}, {"x-session-id", id, "x-session-id", "z"}} {
			if got := ask(again...); got != first {
				t.Errorf("%v went to %s, before to %s", again, got, first)
			}
		}
	}
	if len(places) < 3 {
		t.Errorf("sixteen sessions, all at %v", places)
	}
}

func TestPicksSayWhatTheyWereMadeOn(t *testing.T) {
	f := newPool(t, 1)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	ask := func() {
		p := newProxy(t, addr)
		p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true))
		p.recv()
		p.cancel()
	}
	observe := func(age time.Duration) {
		now := time.Now()
		f.Observe(&fleet.Snapshot{Pool: "p", Version: 2, At: fleet.At(now), Endpoints: []fleet.EndpointState{{
			Endpoint: fleet.Endpoint{ID: "r0", URL: "http://127.10.0.1:8000", Phase: fleet.PhaseReady, Rank: -1, Models: []string{"m"}},
			Signals:  fleet.Signals{ScrapedAt: fleet.At(now.Add(-age))},
		}}})
	}
	ask() // never scraped
	observe(time.Second)
	ask()
	observe(time.Minute)
	ask()
	if got := [3]int64{s.Stats.Picked[0].Load(), s.Stats.Picked[1].Load(), s.Stats.Picked[2].Load()}; got != [3]int64{1, 2, 0} {
		t.Errorf("picks by basis %v, want 1 informed and 2 by own accounting", got)
	}
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.GetName() == "penstock_epp_picks_total" && len(m.GetMetric()) == 4 {
			return
		}
	}
	t.Error("no penstock_epp_picks_total by basis")
}

// TestServedByTheNextOfTheList: what the proxy reports moves the request in the
// ledger, and the endpoint that failed gets nothing for a while.
func TestServedByTheNextOfTheList(t *testing.T) {
	f := newPool(t, 3)
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	p := newProxy(t, addr)
	p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true))
	list := strings.Split(destinationOf(p.recv()), ",")
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
	st, err := structpb.NewStruct(map[string]any{servedKey: list[2]})
	if err != nil {
		t.Fatal(err)
	}
	h := respHeads("text/event-stream")
	h.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{destinationNamespace: st}}
	p.send(h)
	p.recv()
	snap := f.Snapshot()
	for i, e := range f.Stats().Endpoints {
		hp := fleet.HostPort(snap.Endpoints[i].URL)
		if want := map[bool]int{true: 1, false: 0}[hp == list[2]]; e.InFlight != want {
			t.Errorf("%s has %d in flight, want %d", hp, e.InFlight, want)
		}
		if failed := e.Failed > 0; failed == (hp == list[2]) {
			t.Errorf("%s failed: %v", hp, failed)
		}
	}
	if s.Stats.Fallbacks.Load() != 1 {
		t.Error("not counted as a fallback")
	}
	p.send(respBody("data: [DONE]\n\n", true))
	p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
	p.cancel()
	for f.Stats().Totals.InFlight != 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestStatusOfTheEngineCounts: an error of the engine, which Envoy names in :status, counts
// against the replica that gave it, and nothing of the request stays behind.
func TestStatusOfTheEngineCounts(t *testing.T) {
	fault := `{"error":{"message":"x"}}`
	for _, c := range []struct {
		status, body string
		failed       bool
	}{{"200", `{"choices":[]}`, false}, {"404", fault, false}, {"500", fault, true}, {"503", fault, true}} {
		f := newPool(t, 1)
		_, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
		p := newProxy(t, addr)
		p.send(heads(chatPath, false, fds, fds), reqBody(chatBody("m", "x"), true))
		p.recv()
		p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
		p.send(respStatus(c.status, "application/json"))
		p.recv()
		p.send(respBody(c.body, true))
		p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
		p.cancel()
		for f.Stats().Totals.InFlight != 0 {
			time.Sleep(time.Millisecond)
		}
		if n := f.Stats().Endpoints[0].Failed; n > 0 != c.failed {
			t.Errorf("after %s the replica has %d failures", c.status, n)
		}
	}
}

// faulty is a policy with a bug.
type faulty struct{}

func (faulty) Name() string                       { return "faulty" }
func (faulty) Pick(*route.Input, *route.Decision) { panic("a bug") }

// TestFaultBecomesABlindPick: a bug in the decision costs the request its good place,
// not its answer, and the next request is not stuck behind it.
func TestFaultBecomesABlindPick(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	f := flow.New(flow.Options{Pool: "p", Dispatch: dispatch.New(dispatch.Options{Policy: faulty{}, Profile: p})})
	t.Cleanup(f.Close)
	good := newPool(t, 2)
	f.Observe(good.Snapshot())
	s, addr := start(t, Options{Catalogue: onePool{flow: f, model: "m"}})
	for range 3 {
		p := newProxy(t, addr)
		in := chatBody("m", "x")
		p.send(heads(chatPath, false, fds, fds), reqBody(in, true))
		if d := destinationOf(p.recv()); !strings.HasPrefix(d, "127.10.0.") {
			t.Fatalf("destination %q", d)
		}
		if got := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() }); string(got) != in {
			t.Errorf("body %q", got)
		}
		p.send(respHeads("application/json"))
		if p.recv().GetResponseHeaders() == nil {
			t.Error("the exchange does not go on")
		}
		p.cancel()
	}
	if s.Stats.Faults.Load() != 3 || s.Stats.Picked[Blind].Load() != 3 {
		t.Errorf("%d faults, %d blind picks", s.Stats.Faults.Load(), s.Stats.Picked[Blind].Load())
	}
}

// rules are an operator's words on one pool.
type rules struct{}

func (rules) Class(objective string) uint8 { return uint8(len(objective)) }

func (rules) Rewrite(model string, _ uint64) (string, bool, bool) {
	switch model {
	case "public":
		return "m", true, true
	case "m", "n":
		return "", false, false
	}
	return "n", false, true
}

// TestRulesOfAPool: a rewrite changes the name both ways, one for any model takes
// what nobody knows, and an objective says how urgent a request is.
func TestRulesOfAPool(t *testing.T) {
	a, b := newPool(t, 1), newPool(t, 0)
	b.Observe(&fleet.Snapshot{Pool: "b", Version: 2, At: fleet.At(time.Now()), Endpoints: []fleet.EndpointState{{Endpoint: fleet.Endpoint{
		ID: "n0", URL: "http://127.10.1.1:8000", Phase: fleet.PhaseReady, Rank: -1, Models: []string{"n"}}}}})
	_, addr := start(t, Options{Catalogue: twoPools{a, b}, Rules: func(f *flow.Flow) Rules {
		if f == a {
			return rules{}
		}
		return nil
	}})
	for asked, want := range map[string]struct{ model, at string }{
		"public":  {"m", "127.10.0.1:8000"},
		"m":       {"m", "127.10.0.1:8000"},
		"n":       {"n", "127.10.1.1:8000"},
		"unknown": {"n", "127.10.1.1:8000"},
	} {
		p := newProxy(t, addr)
		h := heads(chatPath, false, fds, fds)
		hs := h.GetRequestHeaders().GetHeaders()
		hs.Headers = append(hs.Headers, &corev3.HeaderValue{Key: objectiveHeaderOld, RawValue: []byte("abc")})
		p.send(h, reqBody(chatBody(asked, "x"), true))
		if d := destinationOf(p.recv()); d != want.at {
			t.Errorf("%s: went to %q, want %q", asked, d, want.at)
		}
		got := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetRequestBody() })
		if string(got) != chatBody(want.model, "x") {
			t.Errorf("%s: body %s", asked, got)
		}
		p.send(respHeads("application/json"))
		p.recv()
		p.send(respBody(`{"model":"`+want.model+`"}`, true))
		back := p.body(func(r *extprocv3.ProcessingResponse) *extprocv3.BodyResponse { return r.GetResponseBody() })
		if string(back) != `{"model":"`+asked+`"}` {
			t.Errorf("%s: the answer says %s", asked, back)
		}
	}
	ss := &session{srv: New(Options{Catalogue: onePool{flow: a, model: "m"}, Rules: func(*flow.Flow) Rules { return rules{} }}), objective: "abc", surface: fleet.SurfaceChat, length: -1}
	ss.body = split([]byte(chatBody("m", "x")), 1000)
	ss.size = ss.body.Len()
	q, e := ss.build()
	if e != nil || q.req.Class != 3 {
		t.Errorf("class %+v, %v", q, e)
	}
}
