// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strconv"
	"time"
)

// SignIn lets people sign in at an issuer that knows them.
type SignIn interface {
	// Names are those of the issuers, for buttons.
	Names() []string
	// Begin returns where the browser goes to, and the state that it keeps meanwhile.
	Begin(ctx context.Context, issuer int, callback string) (to, state string, err error)
	// Finish returns the token of who signed in.
	Finish(ctx context.Context, state, code string) (token string, err error)
}

// The cookie that binds a sign-in to the browser that began it. The issuer sends the browser
// back from another site, where a strict cookie would stay behind.
const (
	stateCookie = "penstock_login"
	stateFor    = 10 * time.Minute
)

// loginAt sends a person to an issuer.
func (s *Server) loginAt(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.PathValue("n"))
	if s.o.Doorkeeper == nil || s.o.SignIn == nil || err != nil {
		s.notFound(w, r)
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	// The Host header was checked: it names this server.
	to, state, err := s.o.SignIn.Begin(r.Context(), n, scheme+"://"+r.Host+"/login/back")
	if err != nil {
		s.showLogin(w, http.StatusBadGateway, "Nobody can sign in there now: "+err.Error()+".")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: stateCookie, Value: state, Path: "/login", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil, MaxAge: int(stateFor / time.Second)})
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// loginBack takes a person back from the issuer. The session's credential is the token, so
// that it ends with it, and is judged anew with each request.
func (s *Server) loginBack(w http.ResponseWriter, r *http.Request) {
	if s.o.Doorkeeper == nil || s.o.SignIn == nil {
		s.notFound(w, r)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: stateCookie, Path: "/login", HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: -1})
	q := r.URL.Query()
	kept, err := r.Cookie(stateCookie)
	if err != nil || subtle.ConstantTimeCompare([]byte(kept.Value), []byte(q.Get("state"))) != 1 {
		s.showLogin(w, http.StatusForbidden, "This sign-in was not begun in this browser, or too long ago.")
		return
	}
	token, err := s.o.SignIn.Finish(r.Context(), q.Get("state"), q.Get("code"))
	if err != nil {
		s.audit(r, Operator{Name: "unknown"}, http.StatusUnauthorized)
		s.showLogin(w, http.StatusUnauthorized, "It did not work: "+err.Error()+".")
		return
	}
	if !s.enter(w, r, "Bearer "+token) {
		return
	}
	// A redirect would still count as coming from the issuer's site, and the browser would
	// leave the strict cookie behind; a page of ours that goes on does not.
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", contentPolicy)
	w.Header().Set("Referrer-Policy", "no-referrer") // the address holds the code
	_, _ = w.Write([]byte(`<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/"><title>Penstock</title><p><a href="/">Go on</a></p></html>`))
}
