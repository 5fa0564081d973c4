// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strings"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/wire"
)

// routePattern is one path that is forwarded.
type routePattern struct {
	path    string // also the label of metrics
	surface fleet.Surface
	family  wire.Family
	// generates says that an event stream must come to its own end: without a
	// finish reason it is truncated.
	generates bool
}

// routes is the allow-list. Engines serve far more, much of it unguarded control
// endpoints; nothing else is forwarded.
var routes = func() map[string]*routePattern {
	m := map[string]*routePattern{}
	for _, r := range []struct {
		path    string
		surface fleet.Surface
	}{
		{"/v1/chat/completions", fleet.SurfaceChat},
		{"/v1/completions", fleet.SurfaceCompletions},
		{"/v1/embeddings", fleet.SurfaceEmbeddings},
		{"/v1/responses", fleet.SurfaceResponses},
		{"/v1/messages", fleet.SurfaceMessages},
		{"/v1/messages/count_tokens", fleet.SurfaceCountTokens},
		{"/v1/rerank", fleet.SurfaceRerank},
		{"/v2/rerank", fleet.SurfaceRerank},
		{"/rerank", fleet.SurfaceRerank},
		{"/v1/score", fleet.SurfaceScore},
		{"/score", fleet.SurfaceScore},
		{"/v1/audio/transcriptions", fleet.SurfaceTranscriptions},
		{"/v1/audio/translations", fleet.SurfaceTranscriptions},
		{"/tokenize", fleet.SurfaceTokenize},
		{"/detokenize", fleet.SurfaceDetokenize},
	} {
		m[r.path] = &routePattern{path: r.path, surface: r.surface, family: wire.FamilyOf(r.surface), generates: r.surface.Generates()}
	}
	return m
}()

// routeOther is the label of requests that no route matches.
const routeOther = "other"

const (
	modelsPath  = "/v1/models"
	modelPrefix = "/v1/models/"
)

// familyOf guesses the family of a path that is not served, and of requests that
// have no body, so that the error has the shape that the client's library reads.
func familyOf(r *http.Request) wire.Family {
	if strings.HasPrefix(r.URL.Path, "/v1/messages") || r.Header["Anthropic-Version"] != nil {
		return wire.FamilyAnthropic
	}
	return wire.FamilyOpenAI
}
