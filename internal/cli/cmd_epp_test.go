// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/eppcheck"
	"github.com/penstock-project/penstock/internal/extproc"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/route"
)

// onlyEPP turns a server into what `penstock epp` runs.
func onlyEPP(c *config.Config) { c.Listen.HTTP, c.Listen.EPP = "", "127.0.0.1:0" }

// TestEPPOfAServer: the listener passes the whole black-box suite, its picks stand
// in the journal, and its series on the admin listener.
func TestEPPOfAServer(t *testing.T) {
	s, stop := runServer(t, onlyEPP, newEngine(t).URL, newEngine(t).URL, newEngine(t).URL)
	rep, err := eppcheck.Run(t.Context(), eppcheck.Options{Address: s.EPPAddr(), Model: "m", Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range rep.Checks {
		if c.Result != eppcheck.Pass {
			t.Errorf("%s: %s: %s", c.Name, c.Result, c.Detail)
		}
	}
	for _, name := range []string{"", "nobody-serves-this"} {
		var model *eppcheck.ModelError
		if _, err := eppcheck.Run(t.Context(), eppcheck.Options{Address: s.EPPAddr(), Model: name, Timeout: time.Minute}); !errors.As(err, &model) || model.Model != name {
			t.Errorf("model %q: %v, want one error that names it instead of a page of failures", name, err)
		}
	}
	if s.GatewayURL() != "" {
		t.Error("a gateway listens, too")
	}
	res, err := http.Get(s.AdminURL() + "/api/v1/decisions/9a1f7e6e-0000-4000-8000-000000000000")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var rec route.Record
	if err := json.NewDecoder(res.Body).Decode(&rec); err != nil || len(rec.Candidates) != 3 {
		t.Errorf("explain by x-request-id: %+v, %v", rec, err)
	}
	m, err := http.Get(s.AdminURL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Body.Close()
	text, _ := io.ReadAll(m.Body)
	for _, want := range []string{`penstock_epp_picks_total{basis="signals"} `, `penstock_epp_ready 1`, `penstock_epp_refused_total{reason="no_replica"} `} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in the metrics", want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func health(t *testing.T, addr string, creds credentials.TransportCredentials) grpc_health_v1.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return grpc_health_v1.NewHealthClient(conn)
}

// TestEPPHealthFollowsTheReplicas: SERVING once one can be picked, NOT_SERVING when
// the last one is gone, and first of all when the server stops.
func TestEPPHealthFollowsTheReplicas(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, onlyEPP, e.URL)
	w, err := health(t, s.EPPAddr(), insecure.NewCredentials()).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: extproc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	until := func(want grpc_health_v1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for {
			r, err := w.Recv()
			if err != nil {
				t.Fatalf("waiting for %v: %v", want, err)
			}
			if r.GetStatus() == want {
				return
			}
		}
	}
	until(grpc_health_v1.HealthCheckResponse_SERVING)
	_, ob := s.Pool("chat")
	id := ob.Snapshot().Endpoints[0].ID
	if err := ob.Drain(id, "test"); err != nil {
		t.Fatal(err)
	}
	until(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if err := ob.Undrain(id); err != nil {
		t.Fatal(err)
	}
	until(grpc_health_v1.HealthCheckResponse_SERVING)
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	until(grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestEPPSpeaksTLS with the certificate of the server, and the suite finds that out.
func TestEPPSpeaksTLS(t *testing.T) {
	cert, key, pool := selfSigned(t, t.TempDir())
	s, _ := runServer(t, func(c *config.Config) { onlyEPP(c); c.TLS.Cert, c.TLS.Key = cert, key }, newEngine(t).URL)
	h := health(t, s.EPPAddr(), credentials.NewTLS(&tls.Config{RootCAs: pool}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r, err := h.Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil || r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", r, err)
	}
}

// TestEPPEndsRequestsWithTheirKey: beside a gateway and alone, a key that is revoked in
// its file ends what came through a proxy.
func TestEPPEndsRequestsWithTheirKey(t *testing.T) {
	for name, kind := range map[string]func(*config.Config){"epp": onlyEPP, "serve": func(c *config.Config) { c.Listen.EPP = "127.0.0.1:0" }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, path := identity.File{Schema: identity.Schema}, filepath.Join(t.TempDir(), "keys.json")
			key, text, err := file.Create(identity.Key{Tenant: "acme"}, 0, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := file.Save(path); err != nil {
				t.Fatal(err)
			}
			s, _ := runServer(t, func(c *config.Config) { kind(c); c.Auth.KeysFile, c.Auth.EndStreams = path, true }, newEngine(t).URL)
			conn, err := grpc.NewClient("passthrough:///"+s.EPPAddr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			p, err := extprocv3.NewExternalProcessorClient(conn).Process(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range askFrames(text) {
				if err := p.Send(f); err != nil {
					t.Fatal(err)
				}
			}
			if r, err := p.Recv(); err != nil || r.GetRequestHeaders() == nil {
				t.Fatalf("%v, %v", r, err)
			}
			if err := file.Revoke(key.ID); err != nil {
				t.Fatal(err)
			}
			if err := file.Save(path); err != nil {
				t.Fatal(err)
			}
			for {
				r, err := p.Recv()
				if err != nil {
					t.Fatal(err)
				}
				if im := r.GetImmediateResponse(); im != nil {
					if im.GetStatus().GetCode() != 401 {
						t.Errorf("it ended with %v", im)
					}
					break
				}
			}
			p.CloseSend()
		})
	}
}

// askFrames are what a proxy sends of a request that has a key.
func askFrames(key string) []*extprocv3.ProcessingRequest {
	return []*extprocv3.ProcessingRequest{
		{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
				{Key: ":path", RawValue: []byte("/v1/chat/completions")}, {Key: "authorization", RawValue: []byte("Bearer " + key)}}}}},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{
			Body: []byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`), EndOfStream: true}}},
	}
}
