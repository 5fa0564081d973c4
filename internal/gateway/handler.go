// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/promptlog"
	"github.com/penstock-project/penstock/internal/relay"
	"github.com/penstock-project/penstock/internal/share"
	"github.com/penstock-project/penstock/internal/wire"
)

// Options of a Handler.
type Options struct {
	Catalogue *Catalogue
	Relay     *relay.Client
	Auth      entry.Authenticator // nil: Anonymous without debug scope
	// Quotas are the limits of tenants; nil: there are none.
	Quotas *share.Meter
	// Router is the name of this router; it stands in every request id.
	Router string
	// HashKey keys the hashes of prompts; the same in routers that share an index.
	HashKey    uint64
	BlockBytes int // text in a block of the index, in bytes; 0: prefix.DefaultBlockBytes
	// MaxBody bounds one request body in bytes; 0: 32 MiB. MaxBodies bounds all
	// bodies that are here at a time; 0: 1 GiB.
	MaxBody, MaxBodies int64
	// Limits bound what a body may ask for; the zero value: the defaults.
	Limits wire.Limits
	// Conns bound connections and streams; the zero value: nothing does.
	Conns ConnLimits
	// Tracer takes spans; nil: there are none.
	Tracer *Tracer
	// Prompts records prompts and answers where a policy says so; nil: nobody does.
	Prompts *promptlog.Log
	// Registerer takes the metrics; nil: they are counted and not shown.
	Registerer prometheus.Registerer
	// EndStreams makes requests end when their key does: those that wait with 401,
	// streams with an error event. See Door.Watches.
	EndStreams bool
	// Clock is that of the pools; nil: the wall clock.
	Clock func() fleet.Time
	Log   *slog.Logger // nil: discard
	// Lifeless is how long a replica must show no sign of life before a request that
	// waits there for its first byte goes elsewhere; 0: 4 s. Probes come every
	// second, and a busy engine answers one of them, a scrape, or another request in
	// this time.
	Lifeless time.Duration
	// Ready says whether a replica can be picked, for /readyz; nil: ask the pools.
	Ready func() error
}

// Handler serves the APIs of the fleet. It is an http.Handler.
type Handler struct {
	o         Options
	catalogue atomic.Pointer[Catalogue]
	door      *entry.Door
	ids       *ids
	bodies    bodies
	metrics   *metrics
	calls     sync.Pool
	inFlight  atomic.Int64
	draining  atomic.Bool
	lines     lineBudget
	conns     connections
	rollouts  *Rollouts
	refusals  refusals
}

// New returns a Handler.
func New(o Options) *Handler {
	if o.Auth == nil {
		o.Auth = entry.Anonymous{}
	}
	if o.BlockBytes <= 0 {
		o.BlockBytes = prefix.DefaultBlockBytes
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 32 << 20
	}
	if o.MaxBodies <= 0 {
		o.MaxBodies = 1 << 30
	}
	if o.Lifeless <= 0 {
		o.Lifeless = 4 * time.Second
	}
	if o.Clock == nil {
		o.Clock = func() fleet.Time { return fleet.At(time.Now()) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	h := &Handler{o: o, ids: newIDs(o.Router), bodies: bodies{most: o.MaxBody, mostHeld: max(o.MaxBodies, o.MaxBody)}}
	h.door = &entry.Door{Auth: o.Auth, Quotas: o.Quotas, HashKey: o.HashKey, BlockBytes: o.BlockBytes, Limits: o.Limits, Clock: o.Clock}
	if o.EndStreams {
		h.door.Watches = &entry.Watches{}
	}
	h.conns.most = o.Conns
	h.catalogue.Store(o.Catalogue)
	h.calls.New = func() any { return newCall(h) }
	h.metrics = newMetrics(h, o.Registerer)
	h.rollouts = newRollouts(h, o.Registerer)
	return h
}

// SetCatalogue replaces the catalogue. Requests under way finish with the old one.
func (h *Handler) SetCatalogue(c *Catalogue) { h.catalogue.Store(c) }

// Drain makes /readyz fail, so that whoever balances over routers looks elsewhere.
// Requests are still served.
func (h *Handler) Drain() { h.draining.Store(true) }

// Stats is the state of the gateway for status pages.
type Stats struct {
	InFlight  int64 // requests under way
	BodyBytes int64 // memory of request bodies, in bytes
	Relay     relay.Stats
}

// Stats returns the state at this moment.
func (h *Handler) Stats() Stats {
	return Stats{InFlight: h.inFlight.Load(), BodyBytes: h.bodies.held.Load(), Relay: h.o.Relay.Stats()}
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/healthz":
		answerProbe(w, nil)
		return
	case "/readyz", "/health": // an engine answers /health once it can serve, and tools ask for that
		answerProbe(w, h.ready())
		return
	}
	if rt := routes[r.URL.Path]; rt != nil {
		h.inFlight.Add(1)
		c := h.calls.Get().(*call)
		detached := false
		defer func() {
			if !detached {
				h.finish(c, recover())
			}
		}()
		c.serve(w, r, rt)
		if detached = c.rest != nil; detached {
			rest, done := c.detach()
			go h.stream(c, rest, done)
		}
		return
	}
	h.serveOther(w, r)
}

// stream does what is left of a request whose connection was taken from its server.
func (h *Handler) stream(c *call, rest, done func()) {
	defer done()
	defer func() {
		// The connection is closed already where it must not go on.
		defer func() { _ = recover() }()
		h.finish(c, recover())
	}()
	rest()
}

// finish is the end of every forwarded request, also of one that panicked, with what
// it panicked with.
func (h *Handler) finish(c *call, failure any) {
	if failure != nil && failure != http.ErrAbortHandler {
		h.o.Log.Error("a request made the gateway panic", "id", c.id, "path", c.route.path,
			"panic", panicText(failure), "stack", string(debug.Stack()))
		h.metrics.panics.Inc()
		c.outcome.Kind = fleet.OutcomeRefused
		if !c.began {
			c.refuse(&wire.Error{Status: http.StatusInternalServerError, Code: wire.CodeInternal, Message: "the gateway failed on this request"})
			failure = nil
		} else {
			failure = http.ErrAbortHandler
		}
	}
	c.account()
	c.reset()
	h.calls.Put(c)
	h.inFlight.Add(-1)
	if failure != nil {
		panic(failure)
	}
}

// panicText describes a panic without the values that a message may hold: the
// text of errors of the runtime only.
func panicText(v any) string {
	if err, ok := v.(interface {
		error
		RuntimeError()
	}); ok {
		return err.Error()
	}
	return fmt.Sprintf("%T", v)
}

// serveOther serves what is not forwarded.
func (h *Handler) serveOther(w http.ResponseWriter, r *http.Request) {
	id := h.ids.next()
	family := familyOf(r)
	who, fault := h.o.Auth.Authenticate(r)
	switch {
	case fault != nil:
	case r.URL.Path == modelsPath || strings.HasPrefix(r.URL.Path, modelPrefix):
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			fault = methodFault(w, "GET, HEAD")
			break
		}
		fault = h.serveModels(w, r, id, &who)
	default:
		fault = &wire.Error{Status: http.StatusNotFound, Code: wire.CodeNotFound, Message: "this path is not served here"}
	}
	label := routeOther
	if r.URL.Path == modelsPath {
		label = modelsPath
	} else if strings.HasPrefix(r.URL.Path, modelPrefix) {
		label = modelPrefix + "{id}"
	}
	status := http.StatusOK
	if fault != nil {
		status = fault.Status
		challenge(w, fault)
		fault.Write(w, family, id)
	}
	h.metrics.requests.WithLabelValues("", label, statusLabel(status)).Inc()
}

func methodFault(w http.ResponseWriter, allow string) *wire.Error {
	w.Header().Set("Allow", allow)
	return &wire.Error{Status: http.StatusMethodNotAllowed, Code: wire.CodeMethod, Message: "this path takes " + allow + " only"}
}

func answerProbe(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}

var errDraining = errors.New("draining")

// ready returns why no request can be served; nil where a replica can be picked.
func (h *Handler) ready() error {
	if h.draining.Load() {
		return errDraining
	}
	if h.o.Ready != nil {
		return h.o.Ready()
	}
	for _, p := range h.catalogue.Load().pools {
		if p.Flow == nil {
			continue
		}
		if s := p.Flow.Snapshot(); s != nil && s.Count(fleet.PhaseReady) > 0 {
			return nil
		}
	}
	return errors.New("no replica is ready")
}

// Pools returns the names of the pools, in order.
func (h *Handler) Pools() []string {
	var out []string
	for _, p := range h.catalogue.Load().pools {
		out = append(out, p.Name)
	}
	return slices.Clip(out)
}
