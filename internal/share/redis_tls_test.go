// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/testinput"
)

// certificate writes a certificate for 127.0.0.1 that signs itself, and its key.
func certificate(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis of a test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool.AppendCertsFromPEM(text)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, b := range map[string][]byte{cert: text, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: kder})} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key, pool
}

// A limit that lives in a server behind TLS with a password is as exact as another one;
// a server that cannot prove who it is, or asks for another password, is taken for one
// that is away.
func TestRedisOverTLS(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server on this machine")
	}
	cert, key, pool := certificate(t, t.TempDir())
	_, _, strange := certificate(t, t.TempDir())
	port := strconv.Itoa(testinput.Port(t))
	addr := "127.0.0.1:" + port
	var said strings.Builder
	cmd := exec.Command("redis-server", "--port", "0", "--tls-port", port, "--bind", "127.0.0.1", "--tls-cert-file", cert, "--tls-key-file", key,
		"--tls-auth-clients", "no", "--requirepass", "of the test", "--save", "", "--appendonly", "no")
	cmd.Stdout = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan bool)
	go func() { cmd.Wait(); close(over) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-over })
	for up := false; !up; {
		select {
		case <-over:
			if strings.Contains(said.String(), "Bad directive") || strings.Contains(said.String(), "BUILD_TLS") {
				t.Skip("this redis-server was built without TLS")
			}
			t.Fatalf("redis-server ended: %s", said.String())
		case <-time.After(10 * time.Millisecond):
		}
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			up = true
		}
	}
	config := func(roots *x509.CertPool) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "127.0.0.1", RootCAs: roots}
	}
	item := []Item{{Account: "a", Rule: admit.Rule{Measure: admit.Requests, Limit: 100, Per: time.Hour}, One: 60, All: 60}}
	ask := func(o RedisOptions) ([]Grant, error) {
		o.Addr = addr
		s := NewRedis(o)
		defer s.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		return s.Exchange(ctx, "g"+o.Password, item)
	}
	g, err := ask(RedisOptions{Password: "of the test", TLS: config(pool)})
	if err != nil || g[0].Lent != 60 || g[0].Left != 40 {
		t.Fatalf("%+v, %v", g, err)
	}
	for name, o := range map[string]RedisOptions{
		"a certificate of a stranger": {Password: "of the test", TLS: config(strange)}, "in plain text": {Password: "of the test"},
		"another password": {Password: "guess", TLS: config(pool)}, "no password": {TLS: config(pool)},
	} {
		if g, err := ask(o); err == nil {
			t.Errorf("%s: %+v", name, g)
		} else if strings.Contains(err.Error(), "of the test") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
	// The refused ones lent nothing.
	item[0].One, item[0].All = 40, 40
	if g, err = ask(RedisOptions{Password: "of the test", TLS: config(pool), Prefix: "penstock"}); err != nil || g[0].Lent != 100 && g[0].Lent != 40 {
		t.Errorf("%+v, %v", g, err)
	}
}
