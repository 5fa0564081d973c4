// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// proxy is a CA for request headers and a client certificate of it.
type proxy struct {
	pool *x509.CertPool
	cert *x509.Certificate
}

func newProxy(t *testing.T, name string) proxy {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	make := func(of *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, of, ca, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	pool := x509.NewCertPool()
	pool.AddCert(make(ca))
	return proxy{pool, make(leaf)}
}

type judgeFunc func(Subject, Question) (bool, error)

func (f judgeFunc) Allowed(_ context.Context, who Subject, q Question) (bool, string, error) {
	ok, err := f(who, q)
	return ok, "by the test", err
}

type rig struct {
	s     *Server
	p     proxy
	now   time.Time
	pools []Pool
	asked []Question
	deny  bool
	fail  error
}

func newRig(t *testing.T) *rig {
	r := &rig{p: newProxy(t, "front-proxy-client"), now: time.Now()}
	at := r.now.Add(-time.Second)
	r.pools = []Pool{
		{Name: "chat", Namespace: "models", Labels: PoolLabels("chat", []string{"org/llama:8b"}), Object: "deployments.apps/llm",
			Metrics: map[string]Reading{WantedReplicas: {3, at}, "penstock_held_requests": {0, at}, "penstock_queue_seconds": {0.25, at.Add(-time.Hour)}},
			Pods:    []Pod{{Name: "llm-0", Metrics: map[string]Reading{"penstock_running_requests": {7, at}}}, {Name: "llm-1", Metrics: map[string]Reading{}}}},
		{Name: "code", Namespace: "models", Labels: PoolLabels("code", nil), Metrics: map[string]Reading{WantedReplicas: {5, at}, "penstock_held_requests": {2.0004, at}}},
		{Name: "far", Namespace: "elsewhere", Labels: PoolLabels("far", nil), Metrics: map[string]Reading{}},
	}
	r.s = New(Options{Pools: func() []Pool { return r.pools }, Now: func() time.Time { return r.now },
		Header: func() RequestHeader {
			return RequestHeader{CA: r.p.pool, AllowedNames: []string{"front-proxy-client"}, User: []string{"X-Remote-User"}, Group: []string{"X-Remote-Group"}, ExtraPrefix: []string{"X-Remote-Extra-"}}
		},
		Pods: func(context.Context, string, string) ([]string, error) { return []string{"llm-0", "llm-1"}, nil },
		Judge: judgeFunc(func(_ Subject, q Question) (bool, error) {
			r.asked = append(r.asked, q)
			return !r.deny, r.fail
		})})
	return r
}

func (r *rig) get(path string, change ...func(*http.Request)) (int, map[string]any) {
	req := httptest.NewRequest("GET", path, nil)
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{r.p.cert}}
	req.Header.Set("X-Remote-User", "system:serviceaccount:kube-system:horizontal-pod-autoscaler")
	req.Header.Set("X-Remote-Group", "system:authenticated")
	for _, f := range change {
		f(req)
	}
	w := httptest.NewRecorder()
	r.s.ServeHTTP(w, req)
	var out map[string]any
	_ = json.Unmarshal(w.Body.Bytes(), &out)
	return w.Code, out
}

const external = "/apis/external.metrics.k8s.io/v1beta1/namespaces/models/"

func values(t *testing.T, body map[string]any) []string {
	t.Helper()
	items, ok := body["items"].([]any)
	if !ok {
		t.Fatalf("items is no list: %v", body)
	}
	out := []string{}
	for _, x := range items {
		out = append(out, x.(map[string]any)["value"].(string))
	}
	return out
}

func TestExternal(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		path string
		code int
		want string // values, or a part of the message
	}{
		{external + WantedReplicas + "?labelSelector=pool%3Dchat", 200, "3"},
		{external + WantedReplicas + "?labelSelector=model%3Dorg_llama_8b", 200, "3"},
		{external + WantedReplicas, 400, "add up those of chat, code"},
		{external + "penstock_held_requests", 200, "0 2001m"},
		{external + "penstock_queue_seconds?labelSelector=pool%3Dchat", 200, ""},       // too old
		{external + "penstock_kv_used_share?labelSelector=pool%3Dchat", 200, ""},       // never known
		{external + WantedReplicas + "?labelSelector=pool%3Dtypo", 404, "models/chat"}, // nothing matches: say what there is
		{external + "vllm_queue", 404, "penstock_wanted_replicas"},
		{external + WantedReplicas + "?labelSelector=!!", 400, "labelSelector"},
		{"/apis/external.metrics.k8s.io/v1/namespaces/models/x", 404, "nothing at"},
	} {
		code, body := r.get(c.path)
		if code != c.code {
			t.Errorf("%s: %d, want %d: %v", c.path, code, c.code, body)
			continue
		}
		if code == 200 {
			if got := strings.Join(values(t, body), " "); got != c.want {
				t.Errorf("%s: %q, want %q", c.path, got, c.want)
			}
		} else if msg, _ := body["message"].(string); !strings.Contains(msg, c.want) || strings.Contains(msg, "elsewhere") || body["kind"] != "Status" {
			t.Errorf("%s: %v, want %q", c.path, body, c.want)
		}
	}
}

func TestCustom(t *testing.T) {
	r := newRig(t)
	code, body := r.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/models/pods/*/penstock_running_requests?labelSelector=app%3Dllm")
	// The pod whose engine does not tell is absent, not idle.
	if code != 200 || strings.Join(values(t, body), " ") != "7" {
		t.Errorf("%d %v", code, body)
	}
	item := body["items"].([]any)[0].(map[string]any)
	if item["metric"].(map[string]any)["name"] != "penstock_running_requests" || item["describedObject"].(map[string]any)["name"] != "llm-0" {
		t.Errorf("%v", item)
	}
	code, body = r.get("/apis/custom.metrics.k8s.io/v1beta1/namespaces/models/deployments.apps/llm/" + WantedReplicas)
	if code != 200 || strings.Join(values(t, body), " ") != "3" || body["items"].([]any)[0].(map[string]any)["metricName"] != WantedReplicas {
		t.Errorf("%d %v", code, body)
	}
	for _, path := range []string{"pods/llm-9/penstock_running_requests", "pods/llm-0/penstock_ttft_seconds", "deployments.apps/other/" + WantedReplicas} {
		if code, body = r.get("/apis/custom.metrics.k8s.io/v1beta2/namespaces/models/" + path); code != 404 {
			t.Errorf("%s: %d %v", path, code, body)
		}
	}
	if q := r.asked[0]; q != (Question{"get", GroupCustom, "pods/penstock_running_requests", "models"}) {
		t.Errorf("asked %v", q)
	}
}

func TestWhoMayAsk(t *testing.T) {
	r := newRig(t)
	path := external + WantedReplicas + "?labelSelector=pool%3Dchat"
	stranger := newProxy(t, "front-proxy-client")
	other := newProxy(t, "somebody")
	for name, change := range map[string]func(*http.Request){
		"no TLS":         func(q *http.Request) { q.TLS = nil },
		"no certificate": func(q *http.Request) { q.TLS = &tls.ConnectionState{} },
		"another CA":     func(q *http.Request) { q.TLS.PeerCertificates = []*x509.Certificate{stranger.cert} },
		"no user":        func(q *http.Request) { q.Header.Del("X-Remote-User") },
	} {
		if code, body := r.get(path, change); code != 401 {
			t.Errorf("%s: %d %v", name, code, body)
		}
	}
	r.p.pool = other.pool
	if code, _ := r.get(path, func(q *http.Request) { q.TLS.PeerCertificates = []*x509.Certificate{other.cert} }); code != 401 {
		t.Errorf("a certificate of another name: %d", code)
	}
	if len(r.asked) > 0 {
		t.Errorf("asked the judge for strangers: %v", r.asked)
	}
	r = newRig(t)
	r.deny = true
	if code, body := r.get(path); code != 403 || !strings.Contains(body["message"].(string), "by the test") {
		t.Errorf("%d %v", code, body)
	}
	r.deny = false
	if code, _ := r.get(path); code != 403 || len(r.asked) != 1 {
		t.Errorf("the verdict is not remembered: %d, asked %d times", code, len(r.asked))
	}
	r.now = r.now.Add(verdictFor + time.Second)
	if code, _ := r.get(path); code != 200 {
		t.Errorf("the verdict is remembered for ever: %d", code)
	}
	r.now = r.now.Add(verdictFor + time.Second)
	r.fail = errors.New("away")
	if code, _ := r.get(path); code != 500 {
		t.Errorf("nobody knows: %d, want 500", code)
	}
	req := httptest.NewRequest("POST", path, nil)
	w := httptest.NewRecorder()
	if r.s.ServeHTTP(w, req); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestDiscovery(t *testing.T) {
	r := newRig(t)
	for _, path := range []string{"/apis", "/apis/external.metrics.k8s.io", "/apis/external.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta2",
		"/openapi/v2", "/openapi/v3", "/openapi/v3/apis/external.metrics.k8s.io/v1beta1"} {
		if code, body := r.get(path); code != 200 {
			t.Errorf("%s: %d %v", path, code, body)
		}
	}
	for _, path := range []string{"/", "/apis/other", "/apis/custom.metrics.k8s.io/v1", "/openapi/v3/apis/other/v1", "/api/v1"} {
		if code, body := r.get(path); code != 404 {
			t.Errorf("%s: %d %v", path, code, body)
		}
	}
	_, body := r.get("/apis", func(q *http.Request) {
		q.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json")
	})
	if body["kind"] != "APIGroupDiscoveryList" || body["apiVersion"] != "apidiscovery.k8s.io/v2" || len(body["items"].([]any)) != 2 {
		t.Errorf("%v", body)
	}
	w := httptest.NewRecorder()
	r.s.ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	if w.Code != 200 {
		t.Errorf("/healthz: %d", w.Code)
	}
}

func TestQuantity(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 3: "3", 2.5: "2500m", 0.0001: "1m", 12345678: "12345678", 1e15: "1000000000000000", 0.3: "300m", -1.5: "-1500m"} {
		if got := quantity(v); got != want {
			t.Errorf("quantity(%v) = %q, want %q", v, got, want)
		}
	}
}
