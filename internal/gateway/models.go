// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/rollout"
	"github.com/penstock-project/penstock/internal/wire"
)

// serveModels answers /v1/models and /v1/models/{id} from the configuration and
// from what the replicas list: models, aliases and adapters in one list, as far as
// the caller may use them.
func (h *Handler) serveModels(w http.ResponseWriter, r *http.Request, id string, who *entry.Identity) *wire.Error {
	c := h.catalogue.Load()
	var body []byte
	if name, one := strings.CutPrefix(r.URL.Path, modelPrefix); one {
		var found *target
		for _, t := range h.offered(c) {
			if t.Name == name && who.MayUse(&t.Place) {
				found = t
			}
		}
		if found == nil {
			return entry.UnknownModel(name)
		}
		body = appendModel(nil, found)
	} else {
		body = append(body, `{"object":"list","data":[`...)
		first := true
		for _, t := range h.offered(c) {
			if !who.MayUse(&t.Place) {
				continue
			}
			if !first {
				body = append(body, ',')
			}
			first = false
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

// offered returns every target, with the names that rollouts add, by name.
func (h *Handler) offered(c *Catalogue) []*target {
	out := c.all()
	for name, l := range *h.rollouts.byModel.Load() {
		t := l.targets().at[rollout.Baseline]
		if t == nil {
			continue
		}
		if i, found := slices.BinarySearchFunc(out, name, func(t *target, name string) int { return strings.Compare(t.Name, name) }); found {
			out[i] = t
		} else {
			out = slices.Insert(out, i, t)
		}
	}
	return out
}

// modelsCreated is the "created" of every model, which the API requires: the
// engines' own answers name the moment of the request.
const modelsCreated = 1700000000

func appendModel(b []byte, t *target) []byte {
	b = append(b, `{"id":`...)
	b = wire.AppendString(b, t.Name)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, modelsCreated, 10)
	b = append(b, `,"owned_by":"penstock","root":`...)
	b = wire.AppendString(b, t.EngineName())
	b = append(b, `,"parent":`...)
	if t.Adapter != "" {
		b = wire.AppendString(b, t.Model)
	} else {
		b = append(b, "null"...)
	}
	if n := t.maxModelLen(); n > 0 {
		b = append(b, `,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return append(b, '}')
}

// maxModelLen is the context that every ready replica of the model offers, in
// tokens; 0 where none tells.
func (t *target) maxModelLen() int {
	if t.pool == nil || t.pool.Flow == nil {
		return 0
	}
	snap := t.pool.Flow.Snapshot()
	if snap == nil {
		return 0
	}
	least := 0
	for i := range snap.Endpoints {
		ep := &snap.Endpoints[i]
		if ep.Phase != fleet.PhaseReady || ep.MaxModelLen == 0 || !slices.Contains(ep.Models, t.EngineName()) {
			continue
		}
		if least == 0 || ep.MaxModelLen < least {
			least = ep.MaxModelLen
		}
	}
	return least
}
