// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

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

// build makes the request that the pool decides on. body is the new body where
// the model's name had to be replaced, else nil.
func (ss *session) build() (*fleet.Request, *flow.Flow, []byte, *wire.Error) {
	o := &ss.srv.o
	req := &fleet.Request{
		ID: ss.id, Surface: ss.surface, PromptTokens: 1, BlockTokens: 1,
		Arrived: o.Clock(), Subset: ss.subset.addrs, SubsetOnly: ss.subset.present, Alternatives: o.Fallbacks,
	}
	if ss.size == 0 {
		pool, model, adapter, ok := o.Catalogue.Resolve("")
		if ss.gotBody && generates(ss.surface) {
			return nil, nil, nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body is empty"}
		}
		if !ok {
			return nil, nil, nil, &wire.Error{Status: http.StatusServiceUnavailable, Code: wire.CodeNoReplica, Message: "no pool is configured"}
		}
		_, _ = model, adapter // a request without a body asks for no model
		ss.srv.Stats.BlindPicks.Add(1)
		return req, pool, nil, nil
	}
	w := workspaces.Get().(*workspace)
	defer workspaces.Put(w)
	text := w.contiguous(ss.body)
	if err := wire.ScanRequest(&w.scan, ss.surface, text, wire.Limits{}); err != nil {
		var bad *wire.BadRequest
		if errors.As(err, &bad) {
			return nil, nil, nil, wire.FromBadRequest(bad)
		}
		return nil, nil, nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body cannot be read"}
	}
	name := string(w.scan.Model)
	if name == "" {
		return nil, nil, nil, &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeMissing, Param: "model", Message: "model is missing"}
	}
	pool, model, adapter, ok := o.Catalogue.Resolve(name)
	if !ok {
		return nil, nil, nil, &wire.Error{Status: http.StatusNotFound, Code: wire.CodeModelNotFound, Param: "model",
			Message: "the model does not exist or is not served here"}
	}
	req.Model, req.Adapter, req.Stream, req.MaxTokens = model, adapter, w.scan.Stream, w.scan.MaxTokens
	req.Session = w.scan.CacheKey
	w.hasher.Reset(prefix.Seed(o.HashKey, model, adapter, string(w.scan.CacheSalt)), o.BlockBytes)
	w.scan.Feed(text, &w.hasher)
	req.Blocks = append([]uint64(nil), w.hasher.Blocks()...)
	req.PromptBytes = w.hasher.Bytes()
	perToken := pool.BytesPerToken(model)
	req.BlockTokens = float64(o.BlockBytes) / perToken
	req.PromptTokens = max(1, int(float64(req.PromptBytes)/perToken)+w.scan.TokenIDs)
	engineName := model
	if adapter != "" {
		engineName = adapter
	}
	var body []byte
	if engineName != name {
		ss.alias = name
		body = wire.SpliceModel(make([]byte, 0, len(text)+len(engineName)), text, w.scan.ModelSpan, engineName)
	}
	return req, pool, body, nil
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
	if n > 4<<20 { // do not keep the memory of the rare giant
		flat := w.flat
		w.flat = nil
		return flat
	}
	return w.flat
}

// bufferedReply answers the body in BUFFERED mode: the pick, and the new body
// where the model's name was replaced, with the length that the proxy checks.
func bufferedReply(set []header, body []byte, dest string) *reply {
	if body != nil {
		set = append(set, header{"content-length", strconv.Itoa(len(body))})
	}
	var common []byte
	common = appendMessage(common, 2, headerMutation(set, nil))
	if body != nil {
		common = appendMessage(common, 3, appendMessage(nil, 1, body))
	}
	common = appendVarint(common, 5, 1)
	return &reply{
		field: respRequestBody, head: appendMessage(nil, 1, common),
		meta: appendMessage(nil, protowire.Number(respDynamicMetadata), destinationStruct(dest)),
	}
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
func surfaceOf(path string) fleet.Surface {
	path, _, _ = strings.Cut(path, "?")
	switch path {
	case "/tokenize":
		return fleet.SurfaceTokenize
	case "/detokenize":
		return fleet.SurfaceDetokenize
	}
	if _, rest, ok := strings.Cut(path, "/v1"); ok {
		if s, ok := surfaces[rest]; ok {
			return s
		}
		if strings.HasPrefix(rest, "/models/") {
			return fleet.SurfaceModels
		}
	}
	return fleet.SurfaceCompletions
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
