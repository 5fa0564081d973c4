// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/journal"
)

// oneKey lets in who carries the key.
type oneKey struct{ key, role string }

func (o *oneKey) Operator(r *http.Request) (Operator, bool, time.Duration) {
	if o.key == "" || r.Header.Get("Authorization") != "Bearer "+o.key {
		return Operator{}, false, 0
	}
	return Operator{Name: "k1", Role: o.role}, true, 0
}

func TestSession(t *testing.T) {
	j, err := journal.New(journal.Options{Memory: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	door := &oneKey{key: "s3cret", role: "read"}
	cfg := config.Default()
	s := New(Options{Pools: func() []Pool { return nil }, Journal: j, Config: func() *config.Config { return cfg }, Doorkeeper: door, Loopback: true})
	do := func(method, path, body string, head ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://127.0.0.1:9900"+path, strings.NewReader(body))
		for i := 0; i+1 < len(head); i += 2 {
			r.Header.Set(head[i], head[i+1])
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	form := "application/x-www-form-urlencoded"
	if w := do("GET", "/", "", "Accept", "text/html"); w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/login" {
		t.Errorf("a page without a session: %d to %s", w.Code, w.Header().Get("Location"))
	}
	if w := do("GET", "/api/v1/live", "", "Accept", "text/event-stream", "Sec-Fetch-Mode", "cors"); w.Code != 401 || strings.Contains(strings.Join(w.Header()["Www-Authenticate"], " "), "Basic") {
		t.Errorf("a script without a session: %d %v: a browser would ask for a password", w.Code, w.Header())
	}
	if w := do("GET", "/login", ""); w.Code != 200 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the form: %d", w.Code)
	}
	if w := do("POST", "/login", "key=wrong", "Content-Type", form); w.Code != 401 || len(w.Result().Cookies()) != 0 {
		t.Errorf("a wrong key: %d", w.Code)
	}
	if w := do("POST", "/login", url.Values{"key": {"s3cret"}}.Encode(), "Content-Type", form, "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"); w.Code != 403 {
		t.Errorf("a form on another site: %d", w.Code)
	}
	w := do("POST", "/login", "key=s3cret", "Content-Type", form)
	if w.Code != http.StatusSeeOther || len(w.Result().Cookies()) != 1 {
		t.Fatalf("sign in: %d %s", w.Code, w.Body)
	}
	c := w.Result().Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || len(c.Value) < 40 || strings.Contains(c.Value, "s3cret") {
		t.Errorf("cookie %+v", c)
	}
	cookie := c.Name + "=" + c.Value
	if w := do("GET", "/api/v1/me", "", "Cookie", cookie); w.Code != 200 || !strings.Contains(w.Body.String(), `"role":"read","operate":false,"session":true`) {
		t.Errorf("me: %d %s", w.Code, w.Body)
	}
	if w := do("POST", "/api/v1/replicas/r0/drain", "{}", "Cookie", cookie); w.Code != 403 {
		t.Errorf("a reader drains: %d", w.Code)
	}
	door.key = "" // revoked
	if w := do("GET", "/api/v1/me", "", "Cookie", cookie); w.Code != 401 {
		t.Errorf("after the key was revoked: %d", w.Code)
	}
	door.key = "s3cret"
	if w := do("POST", "/logout", "", "Cookie", cookie); w.Code != http.StatusSeeOther {
		t.Errorf("sign out: %d", w.Code)
	}
	if w := do("GET", "/api/v1/me", "", "Cookie", cookie); w.Code != 401 {
		t.Errorf("after signing out: %d", w.Code)
	}
	door.role = ""
	if w := do("POST", "/login", "key=s3cret", "Content-Type", form); w.Code != 403 {
		t.Errorf("a key without a role: %d", w.Code)
	}
}

// fakeIssuer signs everybody in who brings the code.
type fakeIssuer struct{ callback string }

func (*fakeIssuer) Names() []string { return []string{"id.example"} }

func (f *fakeIssuer) Begin(_ context.Context, n int, callback string) (string, string, error) {
	if f.callback = callback; n != 0 {
		return "", "", errors.New("no such issuer")
	}
	return "https://id.example/auth", "st4te", nil
}

func (*fakeIssuer) Finish(_ context.Context, state, code string) (string, error) {
	if state != "st4te" || code != "c0de" {
		return "", errors.New("the sign-in does not hold")
	}
	return "t0ken", nil
}

func TestSignInAtAnIssuer(t *testing.T) {
	j, err := journal.New(journal.Options{Memory: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	door, issuer, cfg := &oneKey{key: "t0ken", role: "read"}, &fakeIssuer{}, config.Default()
	s := New(Options{Pools: func() []Pool { return nil }, Journal: j, Config: func() *config.Config { return cfg }, Doorkeeper: door, SignIn: issuer, Loopback: true})
	do := func(path, cookie string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "http://127.0.0.1:9900"+path, nil)
		r.Header.Set("Accept", "text/html")
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		if cookie != "" {
			r.Header.Set("Cookie", cookie)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	if w := do("/login", ""); !strings.Contains(w.Body.String(), `href="/login/at/0">Sign in at id.example<`) {
		t.Errorf("the form offers no issuer: %s", w.Body)
	}
	w := do("/login/at/0", "")
	set := w.Result().Cookies()
	if w.Code != 303 || w.Header().Get("Location") != "https://id.example/auth" || issuer.callback != "http://127.0.0.1:9900/login/back" ||
		len(set) != 1 || set[0].SameSite != http.SameSiteLaxMode || !set[0].HttpOnly {
		t.Fatalf("%d %v %q", w.Code, w.Header(), issuer.callback)
	}
	if w := do("/login/at/7", ""); w.Code != 502 {
		t.Errorf("an issuer that is not there: %d", w.Code)
	}
	for path, cookie := range map[string]string{
		"/login/back?state=st4te&code=c0de": "", "/login/back?state=other&code=c0de": "penstock_login=st4te",
		"/login/back?code=c0de": "penstock_login=st4te", "/login/back?state=st4te&code=bad": "penstock_login=st4te",
	} {
		if w := do(path, cookie); w.Code != 403 && w.Code != 401 || strings.Contains(w.Header().Get("Set-Cookie"), sessionCookie) {
			t.Errorf("%s with %q: %d", path, cookie, w.Code)
		}
	}
	w = do("/login/back?state=st4te&code=c0de", "penstock_login=st4te")
	in := ""
	for _, c := range w.Result().Cookies() {
		if c.Name == sessionCookie && c.SameSite == http.SameSiteStrictMode && c.HttpOnly {
			in = c.Name + "=" + c.Value
		}
	}
	if w.Code != 200 || in == "" || strings.Contains(w.Body.String(), "t0ken") || w.Header().Get("Referrer-Policy") != "no-referrer" {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := do("/", in); w.Code != 200 {
		t.Errorf("with the session: %d", w.Code)
	}
	door.key = "" // the token ran out
	if w := do("/", in); w.Code != 303 || w.Header().Get("Location") != "/login" {
		t.Errorf("after the token: %d", w.Code)
	}
	s.o.SignIn = nil
	if w := do("/login/at/0", ""); w.Code != 404 {
		t.Errorf("without issuers: %d", w.Code)
	}
}
