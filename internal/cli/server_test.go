// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
)

// engineFake is a model server that can hold an answer back.
type engineFake struct {
	*httptest.Server
	hits atomic.Int64
	gate chan struct{} // a streamed answer goes on when it is closed
}

func newEngine(t *testing.T) *engineFake {
	t.Helper()
	e := &engineFake{gate: make(chan struct{})}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m","owned_by":"vllm"}]}`)
		case "/metrics":
			fmt.Fprint(w, "vllm:num_requests_running{engine=\"0\"} 0\n")
		default:
			e.hits.Add(1)
			body, _ := io.ReadAll(r.Body)
			if strings.Contains(string(body), `"stream":true`) {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n")
				w.(http.Flusher).Flush()
				select {
				case <-e.gate:
				case <-r.Context().Done():
					return
				}
				fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

// runServer builds and runs a server over one pool with the replicas.
func runServer(t *testing.T, change func(*config.Config), urls ...string) (s *server, stop func() error) {
	t.Helper()
	c := config.Default()
	c.Listen.HTTP, c.Listen.Admin = "127.0.0.1:0", "127.0.0.1:0"
	p := config.DefaultPool("chat")
	p.Models = []config.Model{{Name: "m"}}
	p.Replicas.Static = urls
	c.Pools = []config.Pool{p}
	if change != nil {
		change(c)
	}
	s, err := buildServer(serverOptions{Config: c, Interval: 50 * time.Millisecond, DrainTimeout: 10 * time.Second, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	var out error
	stop = func() error {
		once.Do(func() { cancel(); out = <-done })
		return out
	}
	t.Cleanup(func() { stop() })
	for ; ; time.Sleep(5 * time.Millisecond) {
		if snap := s.pools[0].taken.Load(); snap != nil && snap.Count(4) == len(urls) {
			return s, stop
		}
	}
}

func ask(c *http.Client, base string, stream bool) (*http.Response, error) {
	return c.Post(base+"/v1/chat/completions", "application/json",
		strings.NewReader(fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"x"}],"stream":%v}`, stream)))
}

// TestPolicySwitchLosesNothing reloads the policy again and again while clients
// ask: every request is answered, and nothing is left in flight.
func TestPolicySwitchLosesNothing(t *testing.T) {
	a, b := newEngine(t), newEngine(t)
	s, stop := runServer(t, nil, a.URL, b.URL)
	quit := make(chan struct{})
	var asked, bad atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				asked.Add(1)
				res, err := ask(http.DefaultClient, s.GatewayURL(), false)
				if err != nil {
					bad.Add(1)
					continue
				}
				if io.Copy(io.Discard, res.Body); res.StatusCode != 200 {
					bad.Add(1)
				}
				res.Body.Close()
			}
		})
	}
	for i, n := 0, int64(0); i < 12; i++ {
		next := *s.Config()
		next.Pools = append([]config.Pool(nil), next.Pools...)
		next.Pools[0].Route.Policy = []string{"random", "round-robin", "penstock", "power-of-two"}[i%4]
		if err := s.Reload(&next); err != nil {
			t.Fatal(err)
		}
		for n += 20; asked.Load() < n; {
			time.Sleep(time.Millisecond)
		}
	}
	close(quit)
	wg.Wait()
	f, _ := s.Pool("chat")
	if p := f.Stats().Totals.Policy; p != "power-of-two" {
		t.Errorf("policy %s", p)
	}
	for f.Stats().Totals.InFlight != 0 {
		time.Sleep(time.Millisecond) // the last account is written after the answer
	}
	if bad.Load() != 0 || a.hits.Load() == 0 || b.hits.Load() == 0 {
		t.Errorf("%d of %d failed; %d and %d at the replicas", bad.Load(), asked.Load(), a.hits.Load(), b.hits.Load())
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestDrainLetsStreamsFinish: a server that stops says so first, takes no new
// connection, and waits for the stream that runs.
func TestDrainLetsStreamsFinish(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, nil, e.URL)
	res, err := ask(http.DefaultClient, s.GatewayURL(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewReader(res.Body)
	if l, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(l, "data: ") {
		t.Fatalf("%q, %v", l, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	for s.Ready() == nil {
		time.Sleep(time.Millisecond)
	}
	for {
		c, err := net.Dial("tcp", s.gatewayLn.Addr().String())
		if err != nil {
			break
		}
		c.Close()
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-ended:
		t.Fatalf("it ended under a running stream: %v", err)
	default:
	}
	close(e.gate)
	rest, err := io.ReadAll(lines)
	if err != nil || !strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream was cut: %q, %v", rest, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if r, ok := s.journal.Get(res.Header.Get("X-Request-Id")); !ok || r.Outcome == nil || r.Outcome.Kind != "ok" {
		t.Errorf("the record: %+v", r)
	}
}

// TestDrainHasALimit: a stream that never ends does not keep a server for ever.
func TestDrainHasALimit(t *testing.T) {
	e := newEngine(t)
	s, stop := runServer(t, nil, e.URL)
	s.o.DrainTimeout = 50 * time.Millisecond
	res, err := ask(http.DefaultClient, s.GatewayURL(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(res.Body); err == nil {
		t.Error("the stream that was cut looks whole")
	}
}

// selfSigned writes a certificate for 127.0.0.1 and returns its files.
func selfSigned(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cp := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, b := range map[string][]byte{cert: cp, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kb})} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(cp)
	return cert, key, pool
}

func TestTLS(t *testing.T) {
	cert, key, pool := selfSigned(t, t.TempDir())
	s, _ := runServer(t, func(c *config.Config) { c.TLS.Cert, c.TLS.Key = cert, key }, newEngine(t).URL)
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	defer c.CloseIdleConnections()
	res, err := ask(c, s.GatewayURL(), false)
	if err != nil || res.StatusCode != 200 || res.ProtoMajor != 2 {
		t.Fatalf("%+v, %v", res, err)
	}
	res.Body.Close()
}

func TestCertificateFollowsItsFile(t *testing.T) {
	dir := t.TempDir()
	cert, key, _ := selfSigned(t, dir)
	c := &certFile{cert: cert, key: key}
	first, err := c.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	selfSigned(t, dir)
	later := time.Now().Add(time.Minute)
	if err := os.Chtimes(cert, later, later); err != nil {
		t.Fatal(err)
	}
	c.looked = time.Time{}
	second, err := c.get(nil)
	if err != nil || string(first.Certificate[0]) == string(second.Certificate[0]) {
		t.Errorf("the old certificate goes on: %v", err)
	}
	if err := os.WriteFile(cert, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.looked = time.Time{}
	if got, err := c.get(nil); err != nil || string(got.Certificate[0]) != string(second.Certificate[0]) {
		t.Errorf("a half-written file: %v", err)
	}
}

func TestPortInUseIsNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen("the gateway", "--listen", l.Addr().String())
	var f *Fault
	if !errors.As(err, &f) || !strings.Contains(err.Error(), "in use") || !strings.Contains(f.Hint, "--listen") {
		t.Errorf("error %v", err)
	}
	if _, noProc := os.Stat("/proc/self/fd"); noProc == nil && !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("error %v does not name this process", err)
	}
}
