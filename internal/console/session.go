// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/rand"
	"encoding/base64"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Sessions of the console: how long one lasts, and how many there are at most.
const (
	sessionCookie = "penstock_session"
	sessionFor    = 12 * time.Hour
	maxSessions   = 1000
)

// session remembers a credential, not what it allowed: a key that is revoked ends
// its sessions at once.
type session struct {
	credential string // value of Authorization
	until      fleet.Time
}

// sessions are those who signed in with a form. They live in memory only.
type sessions struct {
	mu   sync.Mutex
	open map[string]session
}

func (s *sessions) begin(credential string, now fleet.Time) string {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails
	name := base64.RawURLEncoding.EncodeToString(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[string]session{}
	}
	oldest, oldestAt := "", fleet.Never
	for k, v := range s.open {
		if v.until <= now {
			delete(s.open, k)
		} else if v.until < oldestAt {
			oldest, oldestAt = k, v.until
		}
	}
	if len(s.open) >= maxSessions {
		delete(s.open, oldest)
	}
	s.open[name] = session{credential: credential, until: now.Add(sessionFor)}
	return name
}

func (s *sessions) find(name string, now fleet.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.open[name]; ok && v.until > now {
		return v.credential
	}
	return ""
}

func (s *sessions) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, name)
}

// signedIn gives a request of a signed-in browser the credential of its session. A
// credential of its own goes first.
func (s *Server) signedIn(r *http.Request) *http.Request {
	c, err := r.Cookie(sessionCookie)
	if err != nil || r.Header.Get("Authorization") != "" {
		return r
	}
	credential := s.sessions.find(c.Value, s.o.Clock())
	if credential == "" {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", credential)
	r.Header.Del("Cookie")
	return r
}

// toLogin sends a person who opens a page to the form, and reports whether it did.
func toLogin(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || strings.HasPrefix(r.URL.Path, "/api/") || !strings.Contains(r.Header.Get("Accept"), "text/html") {
		return false
	}
	http.Redirect(w, r, "/login", http.StatusSeeOther)
	return true
}

var loginPage = template.Must(template.New("login").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Sign in · Penstock</title><link rel="icon" href="/favicon.svg" type="image/svg+xml">
{{if .Style}}<link rel="stylesheet" href="{{.Style}}">{{end}}</head>
<body><main class="login"><h1>Penstock</h1><p>This console asks for a key with the role read, operate or admin.</p>
{{if .Error}}<p class="lost" role="alert">{{.Error}}</p>{{end}}
<form method="post" action="/login"><label for="key">Key</label>
<input class="field" id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<button class="btn primary">Sign in</button></form>
{{range $i, $name := .Issuers}}<p><a class="btn" href="/login/at/{{$i}}">Sign in at {{$name}}</a></p>
{{end}}<p>Make one with <code>penstock key create --role read</code>.</p></main></body></html>
`))

func (s *Server) showLogin(w http.ResponseWriter, status int, problem string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", contentPolicy)
	w.Header().Set("Referrer-Policy", "same-origin")
	w.WriteHeader(status)
	var issuers []string
	if s.o.SignIn != nil {
		issuers = s.o.SignIn.Names()
	}
	_ = loginPage.Execute(w, struct {
		Style, Error string
		Issuers      []string
	}{styleSheet(), problem, issuers})
}

// loginForm shows the form; where no keys are asked for there is nothing to do.
func (s *Server) loginForm(w http.ResponseWriter, r *http.Request) {
	if s.o.Doorkeeper == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.showLogin(w, http.StatusOK, "")
}

// login checks a key and begins a session. The cookie is for this site only, and no
// script reads it.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if s.o.Doorkeeper == nil {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if s.enter(w, r, "Bearer "+strings.TrimSpace(r.PostFormValue("key"))) {
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// enter begins a session for a credential that has a role, and reports whether it did;
// else it has answered with the form and the reason.
func (s *Server) enter(w http.ResponseWriter, r *http.Request, credential string) bool {
	ask := r.Clone(r.Context())
	ask.Header.Del("Cookie")
	ask.Header.Set("Authorization", credential)
	who, ok, wait := s.o.Doorkeeper.Operator(ask)
	switch {
	case wait > 0:
		s.showLogin(w, http.StatusServiceUnavailable, "The credentials cannot be judged now; try again in a moment.")
	case !ok:
		s.audit(r, Operator{Name: "unknown"}, http.StatusUnauthorized)
		s.showLogin(w, http.StatusUnauthorized, "This key or token is unknown, expired or revoked.")
	case !mayAct(who.Role, ranks[1]):
		s.audit(r, who, http.StatusForbidden)
		s.showLogin(w, http.StatusForbidden, "This key or token has no role here; it is for the gateway.")
	default:
		s.audit(r, who, http.StatusSeeOther)
		http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: s.sessions.begin(credential, s.o.Clock()), Path: "/",
			HttpOnly: true, SameSite: http.SameSiteStrictMode, Secure: r.TLS != nil, MaxAge: int(sessionFor / time.Second)})
		return true
	}
	return false
}

func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if c, err := r.Cookie(sessionCookie); err == nil {
		s.sessions.end(c.Value)
	}
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode, MaxAge: -1})
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// me says who asks, so that a page offers only what it may do.
func (s *Server) me(w http.ResponseWriter, r *http.Request) {
	who := local
	if o, ok := r.Context().Value(operatorKey{}).(Operator); ok {
		who = o
	}
	_, err := r.Cookie(sessionCookie)
	writeJSON(w, http.StatusOK, struct {
		Schema  string `json:"schema"` // penstock/me/v1
		Name    string `json:"name"`
		Role    string `json:"role"`
		Operate bool   `json:"operate"` // may change what runs
		Session bool   `json:"session"` // signed in with the form
	}{"penstock/me/v1", who.Name, who.Role, mayAct(who.Role, "operate"), err == nil})
}
