// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/journal"
)

// adminKeys is the value of auth.admin that asks operators for keys.
const adminKeys = "keys"

// checkAdmin refuses an admin API without a lock where others reach it, and a lock
// without keys.
func checkAdmin(c *config.Config) error {
	asks := c.Auth.Admin == adminKeys
	if asks && !guarded(c) {
		return usagef("make keys with `penstock key create --role operate` and name the file in auth.keysFile", "auth.admin: keys needs auth.keysFile or auth.jwt")
	}
	for i := range c.Auth.JWT {
		if j := &c.Auth.JWT[i]; j.Login && (!asks || j.RoleClaim == "") {
			return usagef("set auth.admin: keys, and roleClaim to the claim that names read, operate or admin",
				"auth.jwt[%d].login: people who sign in would have no role", i)
		}
	}
	if c.Listen.Admin != "" && !config.IsLoopback(c.Listen.Admin) && !asks {
		return usagef("set auth.admin: keys, or bind 127.0.0.1 and reach it through a tunnel or a proxy",
			"refusing to open the admin API on %s without roles: anyone who reaches it could drain replicas", c.Listen.Admin)
	}
	return nil
}

// adminDoor finds out who an operator is.
type adminDoor struct {
	keys     *identity.Keys   // nil: no keys
	tokens   *identity.Tokens // nil: no issuers
	failures *identity.Failures
}

// Operator implements console.Doorkeeper.
func (d *adminDoor) Operator(r *http.Request) (console.Operator, bool, time.Duration) {
	now := time.Now()
	if wait := d.failures.Blocked(r.RemoteAddr, now); wait > 0 {
		return console.Operator{}, false, wait
	}
	text, err := identity.Credential(r.Header)
	if _, password, ok := r.BasicAuth(); ok && len(r.Header["Authorization"]) == 1 {
		text, err = password, nil // a browser: the key is the password
	}
	if err != nil {
		if !errors.Is(err, identity.ErrNone) {
			d.failures.Note(r.RemoteAddr, now)
		}
		return console.Operator{}, false, 0
	}
	var who identity.Caller
	known := false
	switch {
	case identity.IsKey(text) && d.keys != nil:
		who, known = d.keys.Find(text, now)
	case d.tokens != nil && !identity.IsKey(text):
		if who, err = d.tokens.Verify(r.Context(), text); err != nil && !errors.Is(err, identity.ErrToken) {
			return console.Operator{}, false, 5 * time.Second // nobody can say now
		}
		known = err == nil
	}
	if !known {
		d.failures.Note(r.RemoteAddr, now)
		return console.Operator{}, false, 0
	}
	o := console.Operator{Name: who.Key}
	if who.Scopes != nil {
		o.Role = who.Scopes.Role
	}
	return o, true, 0
}

// secured adds to the options of the admin API what keeps it.
func (s *server) secured(o console.Options) console.Options {
	o.Loopback, o.Hosts = config.IsLoopback(s.cfg.Listen.Admin), s.cfg.Listen.AdminHosts
	o.Audit, o.Rollouts = s.audit, rollouter{s.front.h.Rollouts()}
	o.Tenants = s.tenantList
	if s.cfg.Auth.Admin == adminKeys {
		o.Doorkeeper = &adminDoor{keys: s.guard.keys, tokens: s.guard.tokens, failures: &identity.Failures{}}
		if s.guard.logins != nil {
			o.SignIn = s.guard.logins
		}
	}
	return o
}

// sealAdmin puts the admin listener behind TLS where others reach it and there is a
// certificate. Operators show keys, so no client certificate is asked for.
func (s *server) sealAdmin(l net.Listener) net.Listener {
	if config.IsLoopback(s.cfg.Listen.Admin) {
		return l
	}
	if s.tls == nil {
		s.log.Warn("the admin API speaks plaintext with the network: keys pass through it; set tls.cert and tls.key", "admin", s.cfg.Listen.Admin)
		return l
	}
	t := s.tls.Clone()
	t.ClientAuth, t.ClientCAs, t.NextProtos = tls.NoClientCert, nil, []string{"http/1.1"}
	s.adminTLS = true
	return tls.NewListener(l, t)
}

// auditKeys notes what a reload of the file of keys changed.
func (s *server) auditKeys(before, after map[string]string) {
	ids := slices.Sorted(maps.Keys(before))
	for id := range after {
		if _, ok := before[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		was, is := before[id], after[id]
		if was == is {
			continue
		}
		action := "key.change"
		switch {
		case was == "":
			action = "key.create"
		case is == "":
			action = "key.remove"
		}
		s.audit.Note(journal.AuditEntry{Who: "file", Action: action, Target: id, Detail: orDash(was) + " -> " + orDash(is), OK: true})
	}
}

// auditReload notes a reload of the configuration.
func (s *server) auditReload(file, detail string, err error) {
	e := journal.AuditEntry{Who: "file", Action: "config.reload", Target: file, Detail: detail, OK: err == nil}
	if err != nil {
		e.Error = err.Error()
	}
	s.audit.Note(e)
}
