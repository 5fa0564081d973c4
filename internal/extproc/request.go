// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/zeebo/xxh3"
	"google.golang.org/grpc/mem"

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
	pool  *flow.Flow
	read  bool   // the request was read, as opposed to its headers only
	body  []byte // what is here of the body with the model's name replaced; nil: as it is
	alias string // name that the client used, where it is not the engine's
}

// mediaTokens is what an image or sound counts as in a prompt, in tokens, as in the
// gateway: between what engines make of a small picture and of one of a megapixel.
const mediaTokens = 768

// maxNameInMessage bounds a client's model name in our error messages, in bytes.
const maxNameInMessage = 100

// build makes the question for a request of which all is here.
func (ss *session) build() (*question, *wire.Error) {
	q := ss.question()
	if ss.size == 0 && ss.gotBody && generates(ss.surface) && !ss.opaque {
		return nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body is empty"}
	}
	if ss.size == 0 || ss.opaque {
		if q.pool = ss.anyPool(); q.pool == nil {
			return nil, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica, Message: "no pool is configured"}
		}
		return q, nil
	}
	w := workspaces.Get().(*workspace)
	defer w.done()
	if ss.size > keptFlat {
		ss.join()
	}
	text := w.contiguous(ss.body)
	if err := wire.ScanRequest(&w.scan, ss.surface, text, wire.Limits{}); err != nil {
		var bad *wire.BadRequest
		if errors.As(err, &bad) {
			return nil, wire.FromBadRequest(bad)
		}
		return nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body cannot be read"}
	}
	return q, ss.fill(q, w, text, text)
}

// question starts a question with what the headers said.
func (ss *session) question() *question {
	o := &ss.srv.o
	return &question{req: fleet.Request{
		ID: ss.id, Surface: ss.surface, PromptTokens: 1, BlockTokens: 1,
		Arrived: o.Clock(), Subset: ss.subset.addrs, SubsetOnly: ss.subset.present, Alternatives: o.Fallbacks,
	}}
}

// anyPool returns the pool of a request that names no model: the one that the
// subset hint points into, else the first with a ready endpoint, else the first.
func (ss *session) anyPool() *flow.Flow {
	pools := ss.srv.o.Catalogue.Pools()
	for _, p := range pools {
		snap := p.Snapshot()
		if snap == nil {
			continue
		}
		for i := range snap.Endpoints {
			e := &snap.Endpoints[i]
			if e.Phase == fleet.PhaseReady && (len(ss.subset.addrs) == 0 || slices.Contains(ss.subset.addrs, hostPort(e.URL))) {
				return p
			}
		}
	}
	if len(pools) == 0 {
		return nil
	}
	return pools[0]
}

// fill completes a question from what was scanned in text. here is the text that
// the proxy sent of it.
func (ss *session) fill(q *question, w *workspace, text, here []byte) *wire.Error {
	o := &ss.srv.o
	name := string(w.scan.Model)
	if name == "" {
		return &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeMissing, Param: "model", Message: "model is missing"}
	}
	wanted := ss.rewritten(name)
	pool, model, adapter, ok := o.Catalogue.Resolve(wanted)
	if !ok {
		return &wire.Error{Status: http.StatusNotFound, Code: wire.CodeModelNotFound, Param: "model",
			Message: "the model `" + name[:min(len(name), maxNameInMessage)] + "` does not exist or is not served here"}
	}
	q.pool, q.read = pool, true
	r, s := &q.req, &w.scan
	r.Model, r.Adapter, r.Stream, r.MaxTokens, r.Session = model, adapter, s.Stream, s.MaxTokens, s.CacheKey
	if rules := ss.rules(pool); rules != nil {
		r.Class = rules.Class(ss.objective)
	}
	w.hasher.Reset(prefix.Seed(o.HashKey, model, adapter, string(s.CacheSalt)), o.BlockBytes)
	s.Feed(text, &w.hasher)
	r.Blocks = slices.Clone(w.hasher.Blocks())
	ss.measure(r, s, w.hasher.Bytes(), pool.BytesPerToken(model))
	engineName := model
	if adapter != "" {
		engineName = adapter
	}
	if engineName != name {
		q.alias = name
		q.body = wire.SpliceModel(make([]byte, 0, len(here)+len(engineName)), here, s.ModelSpan, engineName)
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
	home, _, _, known := ss.srv.o.Catalogue.Resolve(name)
	for _, p := range ss.srv.o.Catalogue.Pools() {
		rules := ss.rules(p)
		if rules == nil {
			continue
		}
		to, exact, ok := rules.Rewrite(name, key)
		switch {
		case ok && exact:
			return to
		case ok && !found && (!known || p == home):
			general, found = to, true
		}
	}
	return general
}

// measure estimates the prompt's length in tokens from hashed bytes of text.
func (ss *session) measure(r *fleet.Request, s *wire.Scan, hashed int, perToken float64) {
	block := float64(ss.srv.o.BlockBytes)
	if s.TokenIDs == 0 && s.Media == 0 {
		r.PromptBytes = hashed
		r.PromptTokens = max(1, int(float64(hashed)/perToken))
		r.BlockTokens = block / perToken
		return
	}
	// Numbers and media have tokens of their own: PromptBytes stays unknown.
	r.PromptTokens = max(1, int(float64(s.TextBytes)/perToken)+s.TokenIDs+s.Media*mediaTokens)
	r.BlockTokens = float64(r.PromptTokens) * block / max(float64(hashed), block)
}

// buildEarly makes the question on the beginning of a body, which names the model.
// ok is false where it does not say enough, or is at fault: then the whole body
// decides.
func (ss *session) buildEarly() (q *question, ok bool) {
	if ss.opaque {
		q = ss.question()
		q.pool = ss.anyPool()
		return q, q.pool != nil
	}
	cut, closing, ok := ss.track.complete()
	if !ok {
		return nil, false
	}
	w := workspaces.Get().(*workspace)
	defer w.done()
	here := w.contiguous(ss.body)
	text := append(append(make([]byte, 0, cut+len(closing)), here[:cut]...), closing...)
	if wire.ScanRequest(&w.scan, ss.surface, text, wire.Limits{}) != nil || w.scan.ModelSpan.End > cut {
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

func generates(s fleet.Surface) bool {
	switch s {
	case fleet.SurfaceChat, fleet.SurfaceCompletions, fleet.SurfaceResponses, fleet.SurfaceMessages:
		return true
	}
	return false
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
