// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// fit says, for one model and adapter, which slots of a snapshot serve them. It is
// made once a snapshot and not once a request: over a thousand endpoints the
// comparison of names costs as much as the prices.
type fit struct {
	snap           *fleet.Snapshot
	model, adapter string
	drops          []route.Drop // DropNone, DropModel or DropAdapter
}

// keptFits is how many models are kept at a time.
const keptFits = 8

// fitOf returns which slots serve a request. The result is valid until the next
// snapshot.
func (d *Dispatch) fitOf(r *fleet.Request) []route.Drop {
	for i := range d.fitted {
		if f := &d.fitted[i]; f.snap == d.snap && f.model == r.Model && f.adapter == r.Adapter && len(f.drops) == len(d.slots) {
			return f.drops
		}
	}
	f := &d.fitted[d.nextFit%keptFits]
	d.nextFit++
	f.snap, f.model, f.adapter, f.drops = d.snap, r.Model, r.Adapter, f.drops[:0]
	for i := range d.slots {
		f.drops = append(f.drops, served(d.slots[i].State, r))
	}
	return f.drops
}

// served says whether an endpoint serves what a request asks for. One that lists
// nothing serves all.
func served(s *fleet.EndpointState, r *fleet.Request) route.Drop {
	switch {
	case s == nil || len(s.Models) == 0:
		return route.DropNone
	case r.Adapter != "":
		if !serves(s.Models, r.Adapter) && !hasAdapter(s.Adapters, r.Adapter) {
			return route.DropAdapter
		}
	case !serves(s.Models, r.Model):
		return route.DropModel
	}
	return route.DropNone
}
