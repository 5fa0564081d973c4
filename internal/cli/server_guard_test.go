// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"github.com/penstock-project/penstock/internal/config"
)

// A certificate is a caller only where its one organisation is a tenant of ours.
func TestCertificateCaller(t *testing.T) {
	known := map[string]bool{"acme": true}
	for _, c := range []struct {
		orgs []string
		cn   string
		ok   bool
	}{
		{[]string{"acme"}, "web", true}, {[]string{"other"}, "web", false}, {[]string{"acme", "other"}, "web", false},
		{nil, "acme", false}, {[]string{"acme"}, "", false},
	} {
		who, ok := callerOf(&x509.Certificate{Subject: pkix.Name{Organization: c.orgs, CommonName: c.cn}}, known)
		if ok != c.ok || ok && (who.Tenant != "acme" || who.Key != "cert:web" || who.Scopes == nil) {
			t.Errorf("%v %q: %+v, %v", c.orgs, c.cn, who, ok)
		}
	}
}

// Only what is guarded may be reached from elsewhere.
func TestBindNeedsAGuard(t *testing.T) {
	open := func(change func(*config.Config)) error {
		c := config.Default()
		c.Pools = []config.Pool{config.DefaultPool("p")}
		c.Listen.HTTP = "0.0.0.0:8080"
		change(c)
		return checkServable(c)
	}
	if open(func(*config.Config) {}) == nil {
		t.Error("an anonymous gateway may be reached from elsewhere")
	}
	if err := open(func(c *config.Config) { c.Auth.KeysFile = "keys.json" }); err != nil {
		t.Error(err)
	}
	if err := open(func(c *config.Config) { c.Auth.JWT = []config.JWT{{Issuer: "https://x", Audience: "y"}} }); err != nil {
		t.Error(err)
	}
	if open(func(c *config.Config) { c.Auth.KeysFile, c.Listen.Admin = "keys.json", "0.0.0.0:9900" }) == nil {
		t.Error("the admin API may be reached from elsewhere")
	}
}

func TestRedisOptions(t *testing.T) {
	for in, want := range map[string][2]any{
		"10.0.0.1:6379": {"10.0.0.1:6379", 0}, "redis://valkey/3": {"valkey:6379", 3}, "redis://valkey:7000": {"valkey:7000", 0},
	} {
		if o := redisOptions(in); o.Addr != want[0] || o.DB != want[1] {
			t.Errorf("%s: %+v", in, o)
		}
	}
	if o := redisOptions("rediss://valkey"); o.TLS == nil || o.TLS.ServerName != "valkey" {
		t.Errorf("%+v", o)
	}
}
