// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/mem"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/wire"
)

// workspace is the memory of one scan; it is used again.
type workspace struct {
	scan   wire.Scan
	hasher prefix.Hasher
	flat   []byte
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// keptFlat is the most memory that a workspace keeps for the next body, in bytes.
const keptFlat = 4 << 20

// done gives the workspace back without the memory of the rare giant.
func (w *workspace) done() {
	w.scan.Forget()
	if cap(w.flat) > keptFlat {
		w.flat = nil
	}
	workspaces.Put(w)
}

// question is what a pool is asked, and what the answer needs beside the pick.
type question struct {
	req   fleet.Request
	to    entry.Target // where it leads; without a name where only its headers were read
	n     int          // answers that it makes an engine compute
	most  int          // the client's cap on each of them, in tokens; 0: none
	read  bool         // the request was read, as opposed to its headers only
	body  []byte       // what is here of the body with the model's name replaced; nil: as it is
	alias string       // name that the client used, where it is not the engine's
}

// build makes the question for a request of which all is here.
func (ss *session) build() (*question, *wire.Error) {
	q := ss.question()
	if ss.size == 0 && ss.gotBody && ss.surface.Generates() && !ss.opaque {
		return nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body is empty"}
	}
	if ss.size == 0 || ss.opaque {
		if q.to = ss.anyPool(); q.to.Pool == nil {
			return nil, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica, Message: "there is no pool that the request may reach"}
		}
		ss.callers(&q.req)
		return q, nil
	}
	w := workspaces.Get().(*workspace)
	defer w.done()
	if ss.size > keptFlat {
		ss.join()
	}
	text := w.contiguous(ss.body)
	if fault := ss.srv.o.Door.Scan(&w.scan, ss.surface, "", text); fault != nil {
		return nil, fault
	}
	return q, ss.fill(q, w, text, text)
}

// question starts a question with what the headers said.
func (ss *session) question() *question {
	q := &question{n: 1, req: fleet.Request{Surface: ss.surface, PromptTokens: 1, BlockTokens: 1, Arrived: ss.srv.o.Clock()}}
	ss.label(&q.req)
	return q
}

// label puts on a request what the proxy said of it.
func (ss *session) label(r *fleet.Request) {
	ss.srv.o.Door.Hint(r, ss.hint)
	r.ID, r.Subset, r.SubsetOnly, r.Alternatives = ss.id, ss.subset.addrs, ss.subset.present, ss.srv.o.Fallbacks
}

// hint returns the first value of a header that may name a session, as the gateway
// reads it.
func (ss *session) hint(name string) string {
	for _, h := range ss.hints {
		if h.name == name {
			return h.value
		}
	}
	return ""
}

// anyPool returns the pool of a request that names no model: the one that the
// subset hint points into, else the first with a ready endpoint, else the first.
func (ss *session) anyPool() entry.Target {
	first := entry.Target{}
	for _, p := range ss.srv.o.Catalogue.Pools() {
		if !ss.mayReach(&p) {
			continue
		}
		if first.Pool == nil {
			first = p
		}
		snap := p.Pool.Snapshot()
		if snap == nil {
			continue
		}
		for i := range snap.Endpoints {
			e := &snap.Endpoints[i]
			if e.Phase == fleet.PhaseReady && (len(ss.subset.addrs) == 0 || slices.Contains(ss.subset.addrs, fleet.HostPort(e.URL))) {
				return p
			}
		}
	}
	return first
}

// mayReach reports whether the data policy of the caller's tenant lets its prompts
// reach a pool.
func (ss *session) mayReach(p *entry.Target) bool {
	return ss.srv.o.Door.MayReach(ss.terms.who.Tenant, p.PoolName)
}

// fill completes a question from what was scanned in text. here is the text that
// the proxy sent of it.
func (ss *session) fill(q *question, w *workspace, text, here []byte) *wire.Error {
	name := string(w.scan.Model)
	if name == "" {
		return entry.MissingModel()
	}
	to, ok := ss.srv.o.Catalogue.Resolve(ss.rewritten(name))
	if !ok || !ss.terms.who.MayUse(&to.Place) || !ss.mayReach(&to) {
		return entry.UnknownModel(name)
	}
	if to.Rename = to.EngineName() != name; to.Rename {
		q.alias = name
	}
	q.to, q.read, q.n, q.most = to, true, w.scan.Answers(), w.scan.MostTokens
	door := ss.srv.o.Door
	salt := door.Salt(&ss.terms.who, &w.scan)
	r := &q.req
	door.Fill(r, &w.scan, text, &w.hasher, &to.Place, salt, to.Pool.BytesPerToken(to.Model))
	r.Blocks = slices.Clone(r.Blocks)
	ss.label(r)
	ss.callers(r)
	if rules := ss.rules(to.Pool); rules != nil {
		// Naming an objective may make a request less urgent than its key, never more.
		r.Class = max(r.Class, rules.Class(ss.objective))
	}
	if edits := entry.Edits(nil, &ss.terms.who, &w.scan, &to.Place, salt); len(edits) > 0 {
		head, tail := wire.Splice(here, edits)
		q.body = append(head[:len(head):len(head)], tail...)
	}
	return nil
}

func (ss *session) rules(pool *flow.Flow) Rules {
	if ss.srv.o.Rules == nil {
		return nil
	}
	return ss.srv.o.Rules(pool)
}

// rewritten returns the name that a pool's rules put in place of the client's: a rule
// that names it wherever there is one, else one for any model of the pool that the
// name leads to, else of any pool.
func (ss *session) rewritten(name string) string {
	if ss.srv.o.Rules == nil {
		return name
	}
	key := xxh3.HashString(ss.id)
	general, found := name, false
	home, known := ss.srv.o.Catalogue.Resolve(name)
	for _, p := range ss.srv.o.Catalogue.Pools() {
		rules := ss.rules(p.Pool)
		if rules == nil {
			continue
		}
		to, exact, ok := rules.Rewrite(name, key)
		switch {
		case ok && exact:
			return to
		case ok && !found && (!known || p.Pool == home.Pool):
			general, found = to, true
		}
	}
	return general
}

// buildEarly makes the question on the beginning of a body, which names the model.
// ok is false where it does not say enough, or is at fault: then the whole body
// decides.
func (ss *session) buildEarly() (q *question, ok bool) {
	if ss.opaque {
		q = ss.question()
		q.to = ss.anyPool()
		ss.callers(&q.req)
		return q, q.to.Pool != nil
	}
	cut, closing, ok := ss.track.complete()
	if !ok {
		return nil, false
	}
	w := workspaces.Get().(*workspace)
	defer w.done()
	here := w.contiguous(ss.body)
	text := append(append(make([]byte, 0, cut+len(closing)), here[:cut]...), closing...)
	if ss.srv.o.Door.Scan(&w.scan, ss.surface, "", text) != nil || w.scan.ModelSpan.End > cut {
		return nil, false
	}
	q = ss.question()
	if ss.fill(q, w, text, here) != nil {
		return nil, false
	}
	// What is not here yet is prompt like the beginning; what one prompt of unknown
	// length says about the length of a token is nothing.
	if r := &q.req; ss.length > ss.size {
		r.PromptTokens = int(float64(r.PromptTokens) * float64(ss.length) / float64(ss.size))
	}
	q.req.PromptBytes = 0
	return q, true
}

// join makes one slice of a large body and lets go of its parts while it does, so
// that it is there only once.
func (ss *session) join() {
	flat := make([]byte, 0, ss.size)
	for i, b := range ss.body {
		flat = append(flat, b.ReadOnlyData()...)
		b.Free()
		ss.body[i] = nil
	}
	ss.body = append(ss.body[:0:0], mem.SliceBuffer(flat))
}

// contiguous returns the body as one slice: the buffer itself where there is only
// one, else a copy in memory that is used again.
func (w *workspace) contiguous(body mem.BufferSlice) []byte {
	if len(body) == 1 {
		return body[0].ReadOnlyData()
	}
	n := body.Len()
	if cap(w.flat) < n {
		w.flat = make([]byte, n)
	}
	w.flat = w.flat[:n]
	body.CopyTo(w.flat)
	return w.flat
}

// surfaces by the path behind an optional prefix that ends in /v1.
var surfaces = map[string]fleet.Surface{
	"/chat/completions": fleet.SurfaceChat, "/completions": fleet.SurfaceCompletions,
	"/models": fleet.SurfaceModels, "/embeddings": fleet.SurfaceEmbeddings,
	"/responses": fleet.SurfaceResponses, "/messages": fleet.SurfaceMessages,
	"/messages/count_tokens": fleet.SurfaceCountTokens,
	"/rerank":                fleet.SurfaceRerank, "/score": fleet.SurfaceScore,
	"/audio/transcriptions": fleet.SurfaceTranscriptions,
}

// surfaceOf guesses the API from the path. A path that is not known is treated as
// completions: the proxy's route decides what reaches an engine, not the picker.
func surfaceOf(path string) (s fleet.Surface, known bool) {
	path, _, _ = strings.Cut(path, "?")
	switch path {
	case "/tokenize":
		return fleet.SurfaceTokenize, true
	case "/detokenize":
		return fleet.SurfaceDetokenize, true
	}
	if _, rest, ok := strings.Cut(path, "/v1"); ok {
		if s, ok := surfaces[rest]; ok {
			return s, true
		}
		if strings.HasPrefix(rest, "/models/") {
			return fleet.SurfaceModels, true
		}
	}
	return fleet.SurfaceCompletions, false
}

// validID accepts an id that a proxy or client made: it goes into logs and
// records as it is.
func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}
