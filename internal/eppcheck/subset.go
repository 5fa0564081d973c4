// SPDX-License-Identifier: Apache-2.0

package eppcheck

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
)

// two returns two members of the pool, which most hints need.
func (p *probe) two() (string, string, error) {
	if len(p.o.Endpoints) < 2 {
		return "", "", skipError{fmt.Sprintf("needs two endpoints of the pool, knows %d; name them with --endpoint", len(p.o.Endpoints))}
	}
	return p.o.Endpoints[0], p.o.Endpoints[len(p.o.Endpoints)-1], nil
}

// inside plays n requests with the hint and says whether every pick lies in it.
func (p *probe) inside(ctx context.Context, n int, get bool, s subset, want ...string) error {
	for i := range n {
		var k *picked
		var err error
		if get {
			k, err = p.request(ctx, headersFrame("GET", "/v1/models", nil, true, s))
		} else {
			k, err = p.post(ctx, p.chat(strings.Repeat(fmt.Sprintf("hint %d ", i), 20)), nil, s)
		}
		if err == nil {
			err = k.valid()
		}
		if err != nil {
			return err
		}
		for _, a := range k.endpoints() {
			if !slices.Contains(want, a) {
				return fmt.Errorf("picked %s, the hint allows only %s", a, strings.Join(want, ", "))
			}
		}
	}
	return nil
}

// refused plays a request that has no eligible endpoint.
func (p *probe) refused(ctx context.Context, get bool, s subset) error {
	var k *picked
	var err error
	if get {
		k, err = p.request(ctx, headersFrame("GET", "/v1/models", nil, true, s))
	} else {
		k, err = p.post(ctx, p.chat("nobody"), nil, s)
	}
	switch {
	case err != nil:
		return err
	case k.immediate == nil:
		return fmt.Errorf("picked %s although the hint allows no endpoint", k.header)
	case k.immediate.GetStatus().GetCode() != 503:
		return fmt.Errorf("answered %d, the protocol says 503", k.immediate.GetStatus().GetCode())
	}
	return nil
}

func subsetChecks() []check {
	hint := func(get bool, shape func(string) subset) func(context.Context, *probe) (string, error) {
		return func(ctx context.Context, p *probe) (string, error) {
			a, b, err := p.two()
			if err != nil {
				return "", err
			}
			for _, one := range []string{a, b} {
				if err := p.inside(ctx, 5, get, shape(one), one); err != nil {
					return "", err
				}
			}
			return "10 picks inside the hint", nil
		}
	}
	asList := func(a string) subset { return list(a) }
	asString := func(a string) subset { return subset{true, a} }
	return []check{
		{"subset-list", hint(false, asList)},
		{"subset-string", hint(false, asString)},
		{"subset-get", hint(true, asList)},
		{"subset-two", checkSubsetTwo},
		{"subset-port-compared", checkSubsetPortCompared},
		{"subset-empty-503", checkSubsetEmpty503},
		{"subset-empty-get-503", checkSubsetEmptyGet503},
		{"subset-outside-503", checkSubsetOutside503},
		{"destination-in-pool", checkDestinationInPool},
	}
}

func errorChecks() []check {
	return []check{
		{"error-400-model-missing", checkError400ModelMissing},
		{"error-400-json-shape", checkError400JsonShape},
		{"error-503-json-shape", checkError503JsonShape},
	}
}

func lifeChecks() []check {
	return []check{
		{"health", checkHealth},
		{"client-leaves-before-pick", checkClientLeavesBeforePick},
		{"half-close", checkHalfClose},
		{"hundred-at-once", checkHundredAtOnce},
		{"latency", checkLatency},
	}
}

func median(d []time.Duration) time.Duration {
	sort.Slice(d, func(i, j int) bool { return d[i] < d[j] })
	return d[len(d)/2]
}

func checkSubsetTwo(ctx context.Context, p *probe) (string, error) {
	a, b, err := p.two()
	if err != nil {
		return "", err
	}
	return "6 picks inside a hint of two", p.inside(ctx, 6, false, list(a, b), a, b)
}

func checkSubsetPortCompared(ctx context.Context, p *probe) (string, error) {
	if len(p.o.Endpoints) == 0 {
		return "", skipError{"no endpoint of the pool is known"}
	}
	ap, err := netip.ParseAddrPort(p.o.Endpoints[0])
	if err != nil {
		return "", err
	}
	other := netip.AddrPortFrom(ap.Addr(), ap.Port()^1|2).String()
	if slices.Contains(p.o.Endpoints, other) {
		other = netip.AddrPortFrom(ap.Addr(), 9).String()
	}
	return "a member's address with another port is no member", p.refused(ctx, false, list(other))
}

func checkSubsetEmpty503(ctx context.Context, p *probe) (string, error) {
	return "503", p.refused(ctx, false, list())
}

func checkSubsetEmptyGet503(ctx context.Context, p *probe) (string, error) {
	return "503", p.refused(ctx, true, list())
}

func checkSubsetOutside503(ctx context.Context, p *probe) (string, error) {
	return "503", p.refused(ctx, false, list("192.0.2.77:8000"))
}

func checkDestinationInPool(ctx context.Context, p *probe) (string, error) {
	if len(p.o.Endpoints) == 0 {
		return "", skipError{"no endpoint of the pool is known"}
	}
	return "8 picks, all members of the pool", p.inside(ctx, 8, false, subset{}, p.o.Endpoints...)
}

func checkError400ModelMissing(ctx context.Context, p *probe) (string, error) {
	k, err := p.post(ctx, []byte(`{"messages":[{"role":"user","content":"x"}]}`), nil, subset{})
	if err != nil {
		return "", err
	}
	if k.immediate == nil || k.immediate.GetStatus().GetCode() != 400 {
		return "", fmt.Errorf("want an immediate 400, got %v", k.immediate.GetStatus())
	}
	return "400", nil
}

func checkError400JsonShape(ctx context.Context, p *probe) (string, error) {
	k, err := p.post(ctx, []byte(`{"model":`), nil, subset{})
	if err != nil {
		return "", err
	}
	if k.immediate == nil || k.immediate.GetStatus().GetCode() != 400 {
		return "", fmt.Errorf("want an immediate 400, got %v", k.immediate.GetStatus())
	}
	return "OpenAI-shaped JSON", jsonError(k)
}

func checkError503JsonShape(ctx context.Context, p *probe) (string, error) {
	k, err := p.post(ctx, p.chat("x"), nil, list("192.0.2.77:8000"))
	if err != nil {
		return "", err
	}
	if k.immediate == nil {
		return "", errors.New("want an immediate 503")
	}
	return "OpenAI-shaped JSON", jsonError(k)
}

func checkHealth(ctx context.Context, p *probe) (string, error) {
	h := grpc_health_v1.NewHealthClient(p.conn)
	var ok, bad []string
	for _, name := range []string{"envoy.service.ext_proc.v3.ExternalProcessor", "inference-extension", "liveness", "readiness", ""} {
		r, err := h.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
		if err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			ok = append(ok, fmt.Sprintf("%q", name))
		} else {
			bad = append(bad, fmt.Sprintf("%q", name))
		}
	}
	if len(ok) == 0 {
		return "", errors.New("no gRPC health service answers SERVING on this port: a proxy cannot tell a dead picker from a live one")
	}
	detail := "serving " + strings.Join(ok, ", ")
	if len(bad) > 0 {
		detail += "; not " + strings.Join(bad, ", ")
	}
	return detail, nil
}

func checkClientLeavesBeforePick(ctx context.Context, p *probe) (string, error) {
	for range 20 {
		c, err := p.open(ctx)
		if err != nil {
			return "", err
		}
		_ = c.send(headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), bodyFrame([]byte(`{"model":"`), false))
		c.close()
	}
	b := p.chat("still there?")
	_, err := p.good(ctx, b, bodyFrame(b, true))
	return "20 aborted requests, the next one is picked", err
}

func checkHalfClose(ctx context.Context, p *probe) (string, error) {
	c, err := p.open(ctx)
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := c.send(headersFrame("POST", "/v1/chat/completions", nil, false, subset{}), bodyFrame([]byte(`{"mo`), false)); err != nil {
		return "", err
	}
	_ = c.stream.CloseSend()
	for {
		if _, err := c.stream.Recv(); err != nil {
			if ctx.Err() != nil || strings.Contains(err.Error(), "DeadlineExceeded") {
				return "", errors.New("the picker keeps the stream open after the proxy ended it")
			}
			return "the stream ends when the proxy ends it", nil
		}
	}
}

func checkHundredAtOnce(ctx context.Context, p *probe) (string, error) {
	type res struct {
		k   *picked
		err error
	}
	out := make(chan res, 100)
	for i := range 100 {
		go func() {
			b := p.chat(fmt.Sprintf("request %d of many", i))
			k, err := p.good(ctx, b, bodyFrame(b, false), bodyFrame(nil, true))
			out <- res{k, err}
		}()
	}
	for range 100 {
		if r := <-out; r.err != nil {
			return "", r.err
		}
	}
	return "100 concurrent requests picked, bodies intact", nil
}

func checkLatency(ctx context.Context, p *probe) (string, error) {
	var d []time.Duration
	b := p.chat(strings.Repeat("measure ", 250))
	for range 60 {
		t := time.Now()
		if _, err := p.good(ctx, b, bodyFrame(b, true)); err != nil {
			return "", err
		}
		d = append(d, time.Since(t))
	}
	h := grpc_health_v1.NewHealthClient(p.conn)
	var f []time.Duration
	for range 60 {
		t := time.Now()
		_, _ = h.Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		f = append(f, time.Since(t))
	}
	pick, floor := median(d), median(f)
	if pick > time.Second {
		return "", fmt.Errorf("a pick of a 2 KiB request takes %v at the median", pick)
	}
	return fmt.Sprintf("2 KiB pick %.2f ms at the median, an empty gRPC call here %.2f ms",
		float64(pick.Microseconds())/1e3, float64(floor.Microseconds())/1e3), nil
}

// jsonError says whether a refusal has a body and a type that SDKs understand.
func jsonError(k *picked) error {
	var e struct {
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(k.immediate.GetBody(), &e); err != nil || len(e.Error) == 0 {
		return fmt.Errorf("the error body is no JSON error that an SDK understands: %.80q", k.immediate.GetBody())
	}
	for _, h := range k.immediate.GetHeaders().GetSetHeaders() {
		if strings.EqualFold(h.GetHeader().GetKey(), "content-type") && strings.HasPrefix(value(h.GetHeader()), "application/json") {
			return nil
		}
	}
	return errors.New("the error has no content-type application/json: a proxy then says text/plain")
}
