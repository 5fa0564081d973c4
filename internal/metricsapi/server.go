// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// RequestHeader says which client speaks for others, and in which headers, as the
// API server publishes it in kube-system/extension-apiserver-authentication.
type RequestHeader struct {
	CA           *x509.CertPool // nil: nobody is believed
	AllowedNames []string       // common names; empty: any that the CA signed
	User         []string       // header names
	Group        []string
	ExtraPrefix  []string
}

// Options of a Server.
type Options struct {
	// Pools lists what can be read now.
	Pools func() []Pool
	Judge Judge
	// Pods names the pods of a namespace that a label selector matches.
	Pods func(ctx context.Context, namespace, selector string) ([]string, error)
	// Header returns who is believed; it may change while the server runs.
	Header func() RequestHeader
	// MaxAge is the age from which a reading is unknown; 0: 60 s.
	MaxAge time.Duration
	Log    *slog.Logger     // nil: discard
	Now    func() time.Time // nil: the wall clock
}

// Server answers the API server. It implements http.Handler and must be served
// over TLS with client certificates requested; see TLS. Safe for concurrent use.
type Server struct {
	o Options

	mu      sync.Mutex
	allowed map[string]verdict
	asked   time.Time // of the last reading
	by      string
}

// verdict is remembered for verdictFor, so that an HPA that asks every second does
// not make two requests of one.
type verdict struct {
	until time.Time
	ok    bool
	why   string
}

const verdictFor = 10 * time.Second

// New returns the server of the two groups.
func New(o Options) *Server {
	o.MaxAge = cmp.Or(o.MaxAge, time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Server{o: o, allowed: map[string]verdict{}}
}

// TLS returns the TLS configuration: any client may connect and is asked for a
// certificate. Who signed it is judged with each request, since whom to believe may
// change while the server runs.
func (s *Server) TLS(cert func() (*tls.Certificate, error)) *tls.Config {
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert() }
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, GetCertificate: get}
}

// LastAsked says when a reading was last asked for, and by whom; zero: never.
func (s *Server) LastAsked() (at time.Time, by string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.by
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p := r.URL.Path; p == "/healthz" || p == "/readyz" || p == "/livez" {
		fmt.Fprintln(w, "ok")
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "metrics are read with GET")
		return
	}
	who, why := s.authenticate(r)
	if why != "" {
		refuse(w, http.StatusUnauthorized, "Unauthorized", why)
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case parts[0] == "openapi":
		s.openAPI(w, r)
	case parts[0] == "apis" && len(parts) <= 3:
		discover(w, r, parts[1:])
	case len(parts) == 6 && parts[0] == "apis" && parts[3] == "namespaces" && parts[1] == GroupExternal && parts[2] == "v1beta1":
		s.external(w, r, who, parts[4], parts[5])
	case len(parts) == 8 && parts[0] == "apis" && parts[3] == "namespaces" && parts[1] == GroupCustom && (parts[2] == "v1beta1" || parts[2] == "v1beta2"):
		s.custom(w, r, who, parts[2], object{parts[4], parts[5], parts[6]}, parts[7])
	default:
		refuse(w, http.StatusNotFound, "NotFound", "there is nothing at "+r.URL.Path)
	}
}

// authenticate says who asks, or why nobody knows.
func (s *Server) authenticate(r *http.Request) (Subject, string) {
	h := s.o.Header()
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || h.CA == nil {
		return Subject{}, "ask through the API server: only its client certificate vouches for a user here"
	}
	leaf := r.TLS.PeerCertificates[0]
	inter := x509.NewCertPool()
	for _, c := range r.TLS.PeerCertificates[1:] {
		inter.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: h.CA, Intermediates: inter, CurrentTime: s.o.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return Subject{}, "the client certificate is not signed by the request-header CA: " + err.Error()
	}
	if len(h.AllowedNames) > 0 && !slices.Contains(h.AllowedNames, leaf.Subject.CommonName) {
		return Subject{}, fmt.Sprintf("the client certificate is of %q, which may not speak for others", leaf.Subject.CommonName)
	}
	who := Subject{Extra: map[string][]string{}}
	for _, name := range h.User {
		if v := r.Header.Get(name); v != "" {
			who.User = v
			break
		}
	}
	for _, name := range h.Group {
		who.Groups = append(who.Groups, r.Header.Values(name)...)
	}
	for _, prefix := range h.ExtraPrefix {
		for name, values := range r.Header {
			if rest, ok := strings.CutPrefix(strings.ToLower(name), strings.ToLower(prefix)); ok {
				if key, err := url.PathUnescape(rest); err == nil {
					who.Extra[key] = append(who.Extra[key], values...)
				}
			}
		}
	}
	if who.User == "" {
		return Subject{}, "the API server did not say who asks"
	}
	return who, ""
}

// authorize asks the judge, with a short memory. It answers the request where the
// subject may not.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request, who Subject, q Question) bool {
	groups := slices.Sorted(slices.Values(who.Groups))
	extra, _ := json.Marshal(who.Extra) // keys come out in order
	key := strings.Join([]string{who.User, strings.Join(groups, ","), string(extra), q.Verb, q.Group, q.Resource, q.Namespace}, "\x00")
	now := s.o.Now()
	s.mu.Lock()
	v, ok := s.allowed[key]
	s.mu.Unlock()
	if !ok || now.After(v.until) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		defer cancel()
		allowed, why, err := s.o.Judge.Allowed(ctx, who, q)
		if err != nil {
			refuse(w, http.StatusInternalServerError, "InternalError", "cannot ask whether this is allowed: "+err.Error())
			return false
		}
		v = verdict{until: now.Add(verdictFor), ok: allowed, why: why}
		s.mu.Lock()
		if len(s.allowed) > 1000 {
			clear(s.allowed)
		}
		s.allowed[key] = v
		s.mu.Unlock()
	}
	if !v.ok {
		refuse(w, http.StatusForbidden, "Forbidden", strings.TrimSpace(fmt.Sprintf("user %q cannot %s %s.%s in namespace %q. %s", who.User, q.Verb, q.Resource, q.Group, q.Namespace, v.why)))
		return false
	}
	s.mu.Lock()
	s.asked, s.by = now, who.User
	s.mu.Unlock()
	return true
}

// status is the form of errors in the Kubernetes API.
type status struct {
	Kind       string         `json:"kind"`
	APIVersion string         `json:"apiVersion"`
	Metadata   map[string]any `json:"metadata"`
	Status     string         `json:"status"`
	Message    string         `json:"message"`
	Reason     string         `json:"reason"`
	Code       int            `json:"code"`
}

func refuse(w http.ResponseWriter, code int, reason, message string) {
	answer(w, code, status{"Status", "v1", map[string]any{}, "Failure", message, reason, code})
}

func answer(w http.ResponseWriter, code int, v any) {
	answerAs(w, code, "application/json", v)
}

func answerAs(w http.ResponseWriter, code int, kind string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(b)
}
