// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/identity"
	"github.com/penstock-project/penstock/internal/journal"
)

// Operator is who asks the admin API.
type Operator struct {
	Name string // id of a key or subject of a token; never a secret
	Role string // identity.RoleRead, RoleOperate or RoleAdmin
}

// Doorkeeper says who an operator is.
type Doorkeeper interface {
	// Operator returns false where nobody may enter with what r carries. wait says
	// that the same credentials may be judged later: the issuer is away, or too many
	// wrong ones came from the address.
	Operator(r *http.Request) (who Operator, ok bool, wait time.Duration)
}

// local is whoever reaches a listener on loopback that asks for no keys.
var local = Operator{Name: "local", Role: identity.RoleAdmin}

type operatorKey struct{}

// operator returns the name of who asks, for records.
func (s *Server) operator(r *http.Request) string {
	if o, ok := r.Context().Value(operatorKey{}).(Operator); ok {
		return o.Name
	}
	return local.Name
}

// ranks of roles: each may do what those before it may.
var ranks = []string{identity.RoleNone, identity.RoleRead, identity.RoleOperate, identity.RoleAdmin}

// mayAct reports whether a role includes another one. An unknown role includes
// nothing.
func mayAct(role, wanted string) bool {
	have := slices.Index(ranks, role)
	return have > 0 && have >= slices.Index(ranks, wanted)
}

// open are paths that tell nothing of the fleet.
func open(path string) bool {
	switch path {
	case "/healthz", "/readyz", "/login", "/logout", "/favicon.svg":
		return true
	}
	return strings.HasPrefix(path, "/assets/") || strings.HasPrefix(path, "/login/")
}

// roleFor is what a request needs: reading, and asking what would be, needs read;
// changes of the configuration and of keys need admin; other changes operate.
func roleFor(r *http.Request) string {
	switch {
	case r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions:
		return identity.RoleRead
	case r.URL.Path == "/api/v1/explain" || r.URL.Path == "/api/v1/whatif" || r.URL.Path == "/api/v1/replay",
		strings.HasPrefix(r.URL.Path, "/api/v1/scale/") && strings.HasSuffix(r.URL.Path, "/ask"):
		return identity.RoleRead
	case strings.HasPrefix(r.URL.Path, "/api/v1/config") || strings.HasPrefix(r.URL.Path, "/api/v1/keys"):
		return identity.RoleAdmin
	}
	return identity.RoleOperate
}

// roles lets in who has the role that a request needs, and notes every change.
func (s *Server) roles(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.o.Doorkeeper != nil && open(r.URL.Path) {
			// Nobody said who asks, and nothing of the fleet changes: no entry in the
			// audit log, which strangers could fill. Login makes its own.
			next.ServeHTTP(w, r)
			return
		}
		who := local
		if s.o.Doorkeeper != nil {
			var ok bool
			var wait time.Duration
			if who, ok, wait = s.o.Doorkeeper.Operator(s.signedIn(r)); !ok {
				s.keepOut(w, r, wait)
				return
			}
		}
		wanted := roleFor(r)
		changes := wanted != identity.RoleRead
		if !open(r.URL.Path) && !mayAct(who.Role, wanted) {
			if changes {
				s.audit(r, who, http.StatusForbidden)
			}
			fail(w, http.StatusForbidden, "role_missing", fmt.Sprintf("this needs the role %s; yours is %s", wanted, orNothing(who.Role)))
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), operatorKey{}, who))
		if !changes {
			next.ServeHTTP(w, r)
			return
		}
		sw := &statusWriter{ResponseWriter: w}
		defer func() { s.audit(r, who, sw.status) }()
		next.ServeHTTP(sw, r)
	})
}

func orNothing(role string) string {
	if role == "" {
		return "none"
	}
	return role
}

func (s *Server) keepOut(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(max(wait, time.Second)/time.Second)))
		fail(w, http.StatusServiceUnavailable, "try_later", "the credentials cannot be judged now")
		return
	}
	if toLogin(w, r) {
		return
	}
	// Tools that know only passwords get in, too: the key is the password, the name is
	// free. A script of a page must not make the browser ask for one.
	w.Header()["Www-Authenticate"] = []string{"Bearer", `Basic realm="penstock", charset="UTF-8"`}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" && mode != "navigate" {
		w.Header()["Www-Authenticate"] = []string{"Bearer"}
	}
	fail(w, http.StatusUnauthorized, "key_missing", "a key or token with a role is needed")
}

// audit notes one request that changes something, or was to.
func (s *Server) audit(r *http.Request, who Operator, status int) {
	from, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		from = r.RemoteAddr
	}
	action, target := actionOf(r.URL.Path)
	if q := r.URL.Query().Get("pool"); q != "" && target != "" {
		target = q + "/" + target
	}
	s.o.Audit.Note(journal.AuditEntry{
		Who: who.Name, Role: who.Role, From: from, Action: action, Target: clip(target), Status: status, OK: status > 0 && status < 400,
	})
}

// actionOf names a change: /api/v1/replicas/r1/drain is replicas.drain of r1.
func actionOf(path string) (action, target string) {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(path, "/api/v1"), "/"), "/")
	switch len(parts) {
	case 1:
		return clip(parts[0]), ""
	case 2:
		return clip(parts[0]), parts[1]
	}
	return clip(parts[0] + "." + parts[len(parts)-1]), strings.Join(parts[1:len(parts)-1], "/")
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(code int) {
	w.status = code
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *statusWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// AuditList is the answer of /api/v1/audit.
type AuditList struct {
	Schema  string               `json:"schema"` // penstock/audit/v1
	Entries []journal.AuditEntry `json:"entries"`
}

func (s *Server) auditLog(w http.ResponseWriter, r *http.Request) {
	limit, ok := limitOf(w, r, 100)
	if !ok {
		return
	}
	out := AuditList{Schema: journal.AuditSchema, Entries: s.o.Audit.Last(limit)}
	if out.Entries == nil {
		out.Entries = []journal.AuditEntry{}
	}
	writeJSON(w, http.StatusOK, out)
}

// hostAllowed reports whether a Host header names this server: on loopback only names
// of this machine, elsewhere an address, or a name that the configuration lists.
func (s *Server) hostAllowed(host string) bool {
	if localHost(host) {
		return true
	}
	if s.o.Loopback {
		return false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return net.ParseIP(strings.Trim(host, "[]")) != nil || slices.ContainsFunc(s.o.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}
