// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/wire"
)

// serveModels answers /v1/models and /v1/models/{id} from the configuration and
// from what the replicas list: models, aliases and adapters in one list.
func (h *Handler) serveModels(w http.ResponseWriter, r *http.Request, id string) *wire.Error {
	c := h.catalogue.Load()
	var body []byte
	if name, one := strings.CutPrefix(r.URL.Path, modelPrefix); one {
		var found *target
		for _, t := range c.all() {
			if t.name == name {
				found = t
			}
		}
		if found == nil {
			return unknownModel(name)
		}
		body = appendModel(nil, found)
	} else {
		body = append(body, `{"object":"list","data":[`...)
		for i, t := range c.all() {
			if i > 0 {
				body = append(body, ',')
			}
			body = appendModel(body, t)
		}
		body = append(body, `]}`...)
	}
	hd := w.Header()
	hd.Set("Content-Type", "application/json")
	hd.Set("Content-Length", strconv.Itoa(len(body)))
	hd[headerRequestID] = []string{id}
	w.Write(body) // a client that left is no error of ours
	return nil
}

// modelsCreated is the "created" of every model, which the API requires: the
// engines' own answers name the moment of the request.
const modelsCreated = 1700000000

func appendModel(b []byte, t *target) []byte {
	b = append(b, `{"id":`...)
	b = wire.AppendString(b, t.name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, modelsCreated, 10)
	b = append(b, `,"owned_by":"penstock","root":`...)
	b = wire.AppendString(b, t.engineName())
	b = append(b, `,"parent":`...)
	if t.adapter != "" {
		b = wire.AppendString(b, t.model)
	} else {
		b = append(b, "null"...)
	}
	return append(b, '}')
}
