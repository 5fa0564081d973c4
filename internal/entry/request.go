// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"cmp"
	"errors"
	"net/http"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/wire"
)

// Place is where a name leads that clients use.
type Place struct {
	Name    string          // that the client used
	Model   string          // as engines know it
	Adapter string          // "" for the model itself
	Rename  bool            // the engine knows another name than the client used
	Tenants map[string]bool // who may use it; empty: everybody
}

// EngineName is the name that the engine must read in the body.
func (p *Place) EngineName() string {
	if p.Adapter != "" {
		return p.Adapter
	}
	return p.Model
}

// Target is a place with the pool behind it.
type Target struct {
	Place
	Pool     *flow.Flow
	PoolName string // by which data policies know it
	// Authorization is what the engines of the pool ask for in the header of that
	// name, in place of the client's; "": the client's stands.
	Authorization string
}

// MediaTokens is what an image or sound counts as in a prompt, in tokens: between
// what engines make of a small picture and of one of a megapixel (256 to 1300).
const MediaTokens = 768

// maxNameInMessage bounds a client's model name in our error messages, in bytes.
const maxNameInMessage = 100

// Scan reads a body into s, or says why it is refused, by the limits that hold
// where nothing else is said.
func Scan(s *wire.Scan, surface fleet.Surface, body []byte) *wire.Error {
	return (&Door{}).Scan(s, surface, "", body)
}

// Scan reads a body into s, or says why it is refused. contentType is that of a
// multipart form; other bodies are JSON whatever they say.
func (d *Door) Scan(s *wire.Scan, surface fleet.Surface, contentType string, body []byte) *wire.Error {
	var err error
	if surface == fleet.SurfaceTranscriptions {
		err = wire.ScanForm(s, surface, contentType, body, d.Limits)
	} else {
		err = wire.ScanRequest(s, surface, body, d.Limits)
	}
	if err == nil {
		lim := d.Limits.WithDefaults()
		if bad := s.Check(body, &lim); bad != nil {
			return wire.FromBadRequest(bad)
		}
		return nil
	}
	if bad, ok := errors.AsType[*wire.BadRequest](err); ok {
		return wire.FromBadRequest(bad)
	}
	return &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeInvalidJSON, Message: "the body cannot be read"}
}

// UnknownModel makes the answer to a name that leads nowhere, or to nowhere for this
// caller: the two look alike.
func UnknownModel(name string) *wire.Error {
	if len(name) > maxNameInMessage {
		name = name[:maxNameInMessage] + "..."
	}
	return &wire.Error{Status: http.StatusNotFound, Code: wire.CodeModelNotFound, Param: "model",
		Message: "the model `" + name + "` does not exist"}
}

// MissingModel makes the answer to a body that names no model where one is needed.
func MissingModel() *wire.Error {
	return &wire.Error{Status: http.StatusBadRequest, Code: wire.CodeMissing, Param: "model", Message: "model is missing"}
}

// Fill makes of what was scanned in text the request that a pool decides on. salt is
// the cache salt that replicas get in place of the client's, "" where that stands;
// perToken is the length of a token in bytes of hashed text. The blocks of req are
// those of hasher: clone them where the hasher is used again before the request ends.
func (d *Door) Fill(req *fleet.Request, s *wire.Scan, text []byte, hasher *prefix.Hasher, p *Place, salt string, perToken float64) {
	hasher.Reset(prefix.Seed(d.HashKey, p.Model, p.Adapter, cmp.Or(salt, string(s.CacheSalt))), d.BlockBytes)
	s.Feed(text, hasher)
	*req = fleet.Request{
		Model: p.Model, Adapter: p.Adapter, Surface: s.Surface, Stream: s.Stream, MaxTokens: s.MaxTokens,
		Blocks: hasher.Blocks(), Session: s.CacheKey, Arrived: d.Clock(),
	}
	d.size(req, s, hasher.Bytes(), perToken)
	d.exact(req, s, text, p, salt)
}

// size estimates the prompt's length in tokens from hashed bytes of text.
func (d *Door) size(req *fleet.Request, s *wire.Scan, hashed int, perToken float64) {
	if s.TokenIDs == 0 && s.Media == 0 {
		req.PromptBytes = hashed
		req.PromptTokens = max(1, int(float64(hashed)/perToken))
		req.BlockTokens = float64(d.BlockBytes) / perToken
		return
	}
	// Numbers and media have tokens of their own; their bytes say nothing about how
	// long a token of text is, so PromptBytes stays unknown.
	req.PromptTokens = max(1, int(float64(s.TextBytes)/perToken)+s.TokenIDs+s.Media*MediaTokens)
	req.BlockTokens = float64(req.PromptTokens) * float64(d.BlockBytes) / float64(max(hashed, d.BlockBytes))
}

// Edits appends to edits what policies want changed in a body that was scanned into
// s, on its way to p: the name that its engine knows, how urgent it is, and salt, the
// cache salt that Salt returned.
func Edits(edits []wire.Edit, who *Identity, s *wire.Scan, p *Place, salt string) []wire.Edit {
	if p.Rename && s.ModelSpan.Len() > 0 {
		edits = append(edits, s.ModelEdit(p.EngineName()))
	}
	if at := s.PrioritySpan; at.Len() > 0 && who.Ours {
		edits = append(edits, wire.Edit{At: at, New: "0"}) // the key says how urgent it is
	}
	if salt != "" {
		edits = append(edits, s.SetSalt(salt))
	}
	return edits
}

// OutputCap is the client's cap on each answer, as limits reserve for it: most, which
// the body says, or 0 for none. For surfaces that generate nothing one token stands
// for the score or the vector.
func OutputCap(surface fleet.Surface, most int) int {
	switch {
	case surface.Generates():
		return most
	case surface == fleet.SurfaceTranscriptions:
		return 0 // as long as the sound is
	}
	return 1
}

// Terms puts on a request what holds for its caller. logging is what Logging
// returned.
func (d *Door) Terms(req *fleet.Request, who *Identity, logging string) {
	req.Tenant, req.Class, req.Private = who.Tenant, who.Class, logging == LoggingNone
	if limit := d.Tenant(who.Tenant).Deadline; limit > 0 {
		req.Deadline = req.Arrived.Add(limit)
	}
}
