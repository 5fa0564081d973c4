// SPDX-License-Identifier: Apache-2.0

// Package console serves the admin side of a running Penstock: its state, the
// records of its decisions and what an operator may ask of it, as JSON; and the
// metrics of each replica, verbatim.
//
// The admin listener is for operators. It binds loopback by default, checks the
// Host header there (a web page must not reach it through a name of its own) and
// refuses writes that a browser sends for another site.
package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/observe"
	"github.com/penstock-project/penstock/internal/route"
)

// Pool is one live pool.
type Pool struct {
	Name     string
	Models   []string // names of the configuration, aliases left out
	Adapters []string // of the configuration
	Source   string   // where replicas are found, for people
	// Control tells of the control plane that lists the replicas; nil where none does.
	Control func() *ControlPlane
	// KV tells how the KV events of replicas are heard, by replica; nil: they are off.
	KV       func() map[string]*KVState
	Flow     *flow.Flow
	Observer *observe.Observer
}

// Explainer answers where a request would go now, without sending it. It is
// implemented by the gateway, which knows how a body becomes a request. Errors
// with a StatusCode method are the client's.
type Explainer interface {
	Explain(ctx context.Context, surface fleet.Surface, body []byte) (*route.Record, error)
}

// Options of a Server.
type Options struct {
	Pools    func() []Pool // in the order of the configuration
	Journal  *journal.Journal
	Explain  Explainer
	Metrics  http.Handler          // /metrics
	Ready    func() error          // nil: ready; the error says why not
	Config   func() *config.Config // the configuration that runs
	State    func() ConfigState    // of the last reload
	Listen   ListenState           // for the status
	Version  string                // of this program
	Router   string                // name of this router
	SignIn   SignIn                // issuers at which people sign in; nil: keys only
	Loopback bool                  // the listener is on loopback: check the Host header
	Hosts    []string              // names that the Host header may have elsewhere, beside addresses
	// Doorkeeper asks operators for keys; nil: whoever reaches the listener may do all.
	Doorkeeper Doorkeeper
	Audit      *journal.Audit // of changes; nil: nobody keeps them
	Rollouts   Rollouter      // nil: there are none
	Tenants    func() TenantList
	// Desired is the count of replicas that the scaler wants for a pool; nil, or
	// false, where none is known.
	Desired func(pool string) (int, bool)
	Scaling Scaling             // nil: there is none
	Peers   func() *PeersStatus // nil, or nil returned: this router shares with nobody
	Clock   func() fleet.Time   // nil: the wall clock
	Log     *slog.Logger        // nil: discard
	started fleet.Time
}

const (
	maxExplainBody = 32 << 20
	maxDecisions   = 1000
	passTimeout    = 10 * time.Second
)

// Server is the admin API. It implements http.Handler.
type Server struct {
	o        Options
	h        http.Handler
	history  *history
	hub      hub
	sessions sessions
	playing  chan struct{} // held by the simulation that runs
	merging  chan struct{} // held by the federated page that is made
	parts    []string      // optional parts of the API that are there
}

// New returns the admin API.
func New(o Options) *Server {
	if o.Clock == nil {
		o.Clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.started = o.Clock()
	s := &Server{o: o, history: newHistory(), playing: make(chan struct{}, 1), merging: make(chan struct{}, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /api/v1/status", s.status)
	mux.HandleFunc("GET /api/v1/decisions", s.decisions)
	mux.HandleFunc("GET /api/v1/decisions/stream", s.stream)
	mux.HandleFunc("GET /api/v1/decisions/{id}", s.decision)
	mux.HandleFunc("GET /api/v1/decisions/{id}/repick", s.repick)
	mux.HandleFunc("GET /api/v1/peers", s.peers)
	mux.HandleFunc("GET /api/v1/live", s.watch)
	mux.HandleFunc("GET /api/v1/series", s.series)
	mux.HandleFunc("GET /api/v1/findings", s.findings)
	mux.HandleFunc("GET /api/v1/replay", s.replay)
	mux.HandleFunc("POST /api/v1/replay", s.replayJournal)
	mux.HandleFunc("POST /api/v1/whatif", s.whatif)
	mux.HandleFunc("POST /api/v1/explain", s.explain)
	mux.HandleFunc("POST /api/v1/replicas/{id}/drain", s.drain)
	mux.HandleFunc("POST /api/v1/replicas/{id}/undrain", s.drain)
	mux.HandleFunc("GET /api/v1/config", s.config)
	mux.HandleFunc("GET /api/v1/http_sd", s.httpSD)
	mux.HandleFunc("GET /api/v1/audit", s.auditLog)
	s.rolloutRoutes(mux)
	if o.Tenants != nil {
		mux.HandleFunc("GET /api/v1/tenants", s.tenants)
	}
	mux.HandleFunc("GET /federate", s.federate)
	s.scaleRoutes(mux)
	mux.HandleFunc("GET /replicas/{id}/metrics", s.replicaMetrics)
	s.pages(mux)
	mux.HandleFunc("GET /api/v1/me", s.me)
	mux.HandleFunc("GET /login", s.loginForm)
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("GET /login/at/{n}", s.loginAt)
	mux.HandleFunc("GET /login/back", s.loginBack)
	mux.HandleFunc("POST /logout", s.logout)
	if o.Metrics != nil {
		mux.Handle("GET /metrics", o.Metrics)
	}
	mux.HandleFunc("/", s.notFound)
	s.parts = partsOf(mux)
	s.h = s.guard(http.NewCrossOriginProtection().Handler(s.roles(mux)))
	return s
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.h.ServeHTTP(w, r) }

// guard checks the Host header on loopback and sets what every answer carries.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hostAllowed(r.Host) {
			fail(w, http.StatusForbidden, "host_not_allowed",
				fmt.Sprintf("host %q is not this machine; ask for 127.0.0.1 or localhost", clip(r.Host)))
			return
		}
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// localHost reports whether a Host header names this machine by a name that no
// foreign name server can hand out.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if s.o.Ready != nil {
		if err := s.o.Ready(); err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	writeText(w, "ok\n")
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.Status())
}

// Status returns the state at this moment.
func (s *Server) Status() *Status {
	now := s.o.Clock()
	st := &Status{
		Schema: StatusSchema, Time: now.Wall().UTC(), Version: s.o.Version, Router: s.o.Router,
		UptimeS: round3(now.Sub(s.o.started).Seconds()), Ready: true, Listen: s.o.Listen, Pools: []PoolStatus{},
	}
	if s.o.Ready != nil {
		if err := s.o.Ready(); err != nil {
			st.Ready, st.Reason = false, err.Error()
		}
	}
	if s.o.State != nil {
		st.Config = s.o.State()
	}
	if s.o.Journal != nil {
		st.Journal = s.o.Journal.Stats()
	}
	for _, p := range s.o.Pools() {
		st.Pools = append(st.Pools, poolStatus(p, now))
	}
	if s.o.Peers != nil {
		st.Peers = s.o.Peers()
	}
	s.judged(st, now)
	return st
}

// Decisions is a list of records, the newest first.
type Decisions struct {
	Schema    string          `json:"schema"` // penstock/decisions/v1
	Decisions []*route.Record `json:"decisions"`
}

func (s *Server) decisions(w http.ResponseWriter, r *http.Request) {
	f, ok := filterOf(w, r)
	if !ok {
		return
	}
	limit, ok := limitOf(w, r, 50)
	if !ok {
		return
	}
	writeJSON(w, http.StatusOK, Decisions{Schema: "penstock/decisions/v1", Decisions: s.o.Journal.Query(f, limit)})
}

func filterOf(w http.ResponseWriter, r *http.Request) (journal.Filter, bool) {
	f, err := journal.ParseFilter(r.URL.Query().Get("filter"))
	if err != nil {
		fail(w, http.StatusBadRequest, "bad_filter", err.Error())
		return f, false
	}
	return f, true
}

// limitOf reads how many entries are asked for, usual where the query does not say.
func limitOf(w http.ResponseWriter, r *http.Request, usual int) (int, bool) {
	v := r.URL.Query().Get("limit")
	if v == "" {
		return usual, true
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxDecisions {
		fail(w, http.StatusBadRequest, "bad_limit", fmt.Sprintf("limit must be 1 to %d", maxDecisions))
		return 0, false
	}
	return n, true
}

// decision answers from memory, else from the files.
func (s *Server) decision(w http.ResponseWriter, r *http.Request) {
	if rec, ok := s.record(w, r.PathValue("id")); ok {
		writeJSON(w, http.StatusOK, rec)
	}
}

// stream sends records as they come, as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	f, ok := filterOf(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	fmt.Fprint(w, ": decisions as they end\n\n")
	_ = rc.Flush()
	beat := time.NewTicker(15 * time.Second)
	defer beat.Stop()
	records := s.o.Journal.Subscribe(r.Context(), f)
	for {
		select {
		case rec, ok := <-records:
			if !ok {
				return
			}
			b, err := json.Marshal(rec)
			if err != nil {
				continue
			}
			fmt.Fprintf(w, "event: decision\nid: %s\ndata: %s\n\n", oneLine(rec.ID), b)
		case <-beat.C:
			fmt.Fprint(w, ": still here\n\n")
		}
		if rc.Flush() != nil {
			return
		}
	}
}

// oneLine keeps an id from ending its line of the event.
func oneLine(s string) string { return strings.NewReplacer("\n", "", "\r", "", "\x00", "").Replace(s) }

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxExplainBody))
	if err != nil {
		fail(w, http.StatusRequestEntityTooLarge, "body_too_large", "the request is larger than 32 MiB")
		return
	}
	surface := fleet.SurfaceChat
	if v := r.URL.Query().Get("surface"); v != "" {
		var ok bool
		if surface, ok = fleet.ParseSurface(v); !ok {
			fail(w, http.StatusBadRequest, "bad_surface", fmt.Sprintf("unknown surface %q; use chat, completions, embeddings, messages or responses", clip(v)))
			return
		}
	} else if !bytes.Contains(body, []byte(`"messages"`)) && bytes.Contains(body, []byte(`"prompt"`)) {
		surface = fleet.SurfaceCompletions
	}
	rec, err := s.o.Explain.Explain(r.Context(), surface, body)
	if err != nil {
		status := http.StatusServiceUnavailable
		var coded interface{ StatusCode() int }
		if errors.As(err, &coded) {
			status = coded.StatusCode()
		}
		fail(w, status, "cannot_explain", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, rec)
}

// Drained is the answer to a drain or undrain.
type Drained struct {
	Schema  string        `json:"schema"` // penstock/drain/v1
	Pool    string        `json:"pool"`
	Drained bool          `json:"drained"`
	Replica ReplicaStatus `json:"replica"`
}

func (s *Server) drain(w http.ResponseWriter, r *http.Request) {
	p, ok := s.poolOf(w, r)
	if !ok {
		return
	}
	id, drain := r.PathValue("id"), strings.HasSuffix(r.URL.Path, "/drain")
	var err error
	if drain {
		err = p.Observer.Drain(id, "drained by operator")
	} else {
		err = p.Observer.Undrain(id)
	}
	if err != nil {
		fail(w, http.StatusNotFound, "unknown_replica", err.Error())
		return
	}
	// A moment, so that the answer tells what came of it. A replica that is not ready is
	// not seen to drain.
	for end := time.Now().Add(time.Second); drains(p.Flow.Snapshot(), id) != drain && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	out := Drained{Schema: "penstock/drain/v1", Pool: p.Name, Drained: drain}
	for _, e := range poolStatus(p, s.o.Clock()).Replica {
		if e.ID == id {
			out.Replica = e
		}
	}
	writeJSON(w, http.StatusOK, out)
}

// drains reports whether decisions are made on a replica as one that drains.
func drains(snap *fleet.Snapshot, id string) bool {
	if snap == nil {
		return false
	}
	i := slices.IndexFunc(snap.Endpoints, func(e fleet.EndpointState) bool { return e.ID == id })
	return i >= 0 && snap.Endpoints[i].Phase == fleet.PhaseDraining
}

// poolOf finds the pool of the replica that the path names; ?pool= chooses where
// several pools have one of that name.
func (s *Server) poolOf(w http.ResponseWriter, r *http.Request) (Pool, bool) {
	id, want := r.PathValue("id"), r.URL.Query().Get("pool")
	var found []Pool
	var known []string
	for _, p := range s.o.Pools() {
		snap := p.Observer.Snapshot()
		if snap == nil || want != "" && p.Name != want {
			continue
		}
		for i := range snap.Endpoints {
			known = append(known, snap.Endpoints[i].ID)
			if snap.Endpoints[i].ID == id {
				found = append(found, p)
			}
		}
	}
	switch len(found) {
	case 1:
		return found[0], true
	case 0:
		slices.Sort(known)
		if len(known) > 16 {
			known = append(known[:16], "...")
		}
		fail(w, http.StatusNotFound, "unknown_replica", fmt.Sprintf("no replica %q; known are: %s", clip(id), strings.Join(known, ", ")))
	default:
		fail(w, http.StatusConflict, "ambiguous_replica", fmt.Sprintf("several pools have a replica %q; name the pool", clip(id)))
	}
	return Pool{}, false
}

func (s *Server) config(w http.ResponseWriter, r *http.Request) {
	c := s.o.Config()
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		writeJSON(w, http.StatusOK, c)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	_ = c.WriteYAML(w)
}

// replicaMetrics passes the exposition of one replica through as it is. When the
// replica does not answer, the error says so and how old our own copy is.
func (s *Server) replicaMetrics(w http.ResponseWriter, r *http.Request) {
	p, ok := s.poolOf(w, r)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), passTimeout)
	defer cancel()
	res, err := p.Observer.Metrics(ctx, r.PathValue("id"))
	if err != nil {
		status := http.StatusBadGateway
		var netErr net.Error
		if errors.As(err, &netErr) && netErr.Timeout() || errors.Is(err, context.DeadlineExceeded) {
			status = http.StatusGatewayTimeout
		}
		fail(w, status, "replica_unreachable", "the replica does not answer"+s.lastScrape(p, r.PathValue("id")))
		return
	}
	defer res.Body.Close()
	h := w.Header()
	h.Set("Content-Type", expositionType(res.Header.Get("Content-Type")))
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
	if v := res.Header.Get("Content-Length"); v != "" {
		h.Set("Content-Length", v)
	}
	if res.StatusCode < 200 || res.StatusCode > 599 {
		res.StatusCode = http.StatusBadGateway
	}
	w.WriteHeader(res.StatusCode)
	_, _ = io.Copy(w, res.Body)
}

// expositionType returns the type that a replica gives its metrics, text where that is
// no type of metrics: a page of a replica's would run its scripts in the name of whoever
// is signed in here.
func expositionType(t string) string {
	switch media, _, err := mime.ParseMediaType(t); {
	case err != nil:
	case media == "text/plain", media == "application/openmetrics-text", media == "application/vnd.google.protobuf":
		return t
	}
	return "text/plain; charset=utf-8"
}

func (s *Server) lastScrape(p Pool, id string) string {
	snap := p.Observer.Snapshot()
	if snap == nil {
		return ""
	}
	for i := range snap.Endpoints {
		if e := &snap.Endpoints[i]; e.ID == id && e.ScrapedAt != 0 {
			return fmt.Sprintf("; its last scrape is %s old", s.o.Clock().Sub(e.ScrapedAt).Round(100*time.Millisecond))
		}
	}
	return "; it was never scraped"
}

// sdGroup is one entry of Prometheus' HTTP service discovery.
type sdGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// httpSD lists the replicas themselves, so that a Prometheus can scrape them
// around us.
func (s *Server) httpSD(w http.ResponseWriter, _ *http.Request) {
	out := []sdGroup{}
	for _, p := range s.o.Pools() {
		snap := p.Observer.Snapshot()
		if snap == nil {
			continue
		}
		for i := range snap.Endpoints {
			e := &snap.Endpoints[i]
			scheme, rest, _ := strings.Cut(e.URL, "://")
			host, path, _ := strings.Cut(rest, "/")
			if path != "" {
				path = "/" + strings.TrimSuffix(path, "/")
			}
			out = append(out, sdGroup{Targets: []string{host}, Labels: map[string]string{
				"__scheme__": scheme, "__metrics_path__": path + "/metrics", "pool": p.Name, "replica": e.ID, "engine": e.Engine,
			}})
		}
	}
	writeJSON(w, http.StatusOK, out)
}

func (s *Server) notFound(w http.ResponseWriter, r *http.Request) {
	fail(w, http.StatusNotFound, "not_found", fmt.Sprintf("there is no %s %s; try /api/v1/status", r.Method, clip(r.URL.Path)))
}

// APIError is the body of an error of the admin API.
type APIError struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func fail(w http.ResponseWriter, status int, code, msg string) {
	var e APIError
	e.Error.Code, e.Error.Message = code, msg
	writeJSON(w, status, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		http.Error(w, "cannot encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

func writeText(w http.ResponseWriter, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, s)
}
