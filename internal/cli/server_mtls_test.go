// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/identity"
)

// authority signs certificates of clients.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, key: k, file: filepath.Join(t.TempDir(), "ca.pem")}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// client returns a client with a certificate of an organisation.
func (a *authority) client(roots *x509.CertPool, org, cn string, usage x509.ExtKeyUsage, until time.Duration) *http.Client {
	a.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{Organization: []string{org}, CommonName: cn},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(until), ExtKeyUsage: []x509.ExtKeyUsage{usage}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k}}}}}
	a.t.Cleanup(c.CloseIdleConnections)
	return c
}

// A certificate is judged by the handshake, then by whose it is: no header, and no
// certificate of somebody else, makes a tenant.
func TestMutualTLS(t *testing.T) {
	cert, key, roots := selfSigned(t, t.TempDir())
	ours, foreign := newAuthority(t, "ours"), newAuthority(t, "foreign")
	keys := filepath.Join(t.TempDir(), "keys.json")
	f := identity.File{Schema: identity.Schema}
	if err := f.Save(keys); err != nil {
		t.Fatal(err)
	}
	s, _ := runServer(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA = cert, key, ours.file
		c.Auth.KeysFile = keys
		c.Tenants = []config.Tenant{{Name: "acme", Weight: 1}}
	}, newEngine(t).URL)
	hour, client := time.Hour, x509.ExtKeyUsageClientAuth
	plain := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer plain.CloseIdleConnections()
	for _, c := range []struct {
		name   string
		client *http.Client
		status int // 0: the handshake fails
	}{
		{"a tenant's", ours.client(roots, "acme", "web", client, hour), 200},
		{"of nobody we know", ours.client(roots, "stranger", "web", client, hour), 401},
		{"without a name", ours.client(roots, "acme", "", client, hour), 401},
		{"of another authority", foreign.client(roots, "acme", "web", client, hour), 0},
		{"that is over", ours.client(roots, "acme", "web", client, -time.Minute), 0},
		{"for servers", ours.client(roots, "acme", "web", x509.ExtKeyUsageServerAuth, hour), 0},
		{"none", plain, 0},
	} {
		req, err := http.NewRequest("POST", s.GatewayURL()+"/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Tenant", "acme")
		res, err := c.client.Do(req)
		if err == nil {
			res.Body.Close()
		}
		switch {
		case c.status == 0 && err == nil:
			t.Errorf("a certificate %s got %d", c.name, res.StatusCode)
		case c.status != 0 && (err != nil || res.StatusCode != c.status):
			t.Errorf("a certificate %s: %v, %+v; want %d", c.name, err, res, c.status)
		}
	}
}

// Beyond loopback the admin API opens only with roles, speaks TLS, and asks for keys.
func TestAdminBeyondLoopback(t *testing.T) {
	cert, key, roots := selfSigned(t, t.TempDir())
	keys := filepath.Join(t.TempDir(), "keys.json")
	f := identity.File{Schema: identity.Schema}
	_, reader, err := f.Create(identity.Key{Tenant: "ops", Scopes: identity.Scopes{Role: identity.RoleRead}}, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, client, err := f.Create(identity.Key{Tenant: "acme"}, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Save(keys); err != nil {
		t.Fatal(err)
	}
	s, _ := runServer(t, func(c *config.Config) {
		c.TLS.Cert, c.TLS.Key = cert, key
		c.Listen.Admin = "0.0.0.0:0"
		c.Auth.KeysFile, c.Auth.Admin = keys, adminKeys
	}, newEngine(t).URL)
	_, port, _ := strings.Cut(strings.TrimPrefix(s.AdminURL(), "https://[::]"), ":")
	if port == "" {
		port = s.AdminURL()[strings.LastIndex(s.AdminURL(), ":")+1:]
	}
	url := "https://127.0.0.1:" + port
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer c.CloseIdleConnections()
	for _, x := range []struct {
		name, path string
		change     func(*http.Request)
		status     int
	}{
		{"nobody", "/api/v1/status", func(*http.Request) {}, 401},
		{"nobody, health", "/healthz", func(*http.Request) {}, 200},
		{"a client's key", "/api/v1/status", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+client) }, 403},
		{"a reader", "/api/v1/status", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+reader) }, 200},
		{"a reader with a browser", "/api/v1/tenants", func(r *http.Request) { r.SetBasicAuth("ann", reader) }, 200},
		{"a foreign name", "/api/v1/status", func(r *http.Request) {
			r.Host = "evil.example"
			r.Header.Set("Authorization", "Bearer "+reader)
		}, 403},
	} {
		req, err := http.NewRequest("GET", url+x.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		x.change(req)
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		res.Body.Close()
		if res.StatusCode != x.status {
			t.Errorf("%s: %d, want %d", x.name, res.StatusCode, x.status)
		}
	}
}
