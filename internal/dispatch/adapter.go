// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

const (
	// adapterSeconds is the memory of how often adapters are asked for, coldSeconds
	// that of how often one had to be loaded.
	adapterSeconds = 300
	coldSeconds    = 60
	// displacedPrice times the time of a load, for the adapter that has to go: the
	// step that loads it back stalls the streams there as well. Twice that finds one in
	// a hundred requests more resident where loads are short, and doubles the time to
	// the first token where they take half a second.
	displacedPrice = 2.0
	// displacedStays is how many times as long as an adapter stays in its slot on
	// average counts as "soon asked for again". With 1 all adapters that are asked for
	// less often than that cost the same nothing, popular ones and those that nobody
	// asks for again.
	displacedStays = 16.0
	// deniedFor is how long a replica's word that it lacks an adapter stands against its
	// list of models, which is read every ten seconds.
	deniedFor = 15 * time.Second
	// adaptersMost bounds the adapters whose use is remembered.
	adaptersMost = 1 << 14
)

// adapterUse is one adapter at a slot.
type adapterUse struct {
	name    string
	running int32 // requests in flight there
}

// holdsAdapter reports whether an adapter is believed to sit in a slot of the
// endpoint: it was sent there lately, or the scrape says so. What was sent there is
// known exactly; a scrape misses what ran between two of them, and so believes
// adapters to be idle there that had to go. It counts for slots that nothing of ours
// fills, and where others send requests as well.
func (d *Dispatch) holdsAdapter(i int32, name string) bool {
	if d.adapterAt(i, name) >= 0 {
		return true
	}
	if s := &d.slots[i]; len(d.aux[i].lora) >= d.adapterRoom(i) && s.ForeignStreams+s.ForeignUnstarted == 0 {
		return false
	}
	if st := d.slots[i].State; st != nil {
		for k := range st.Adapters {
			if a := &st.Adapters[k]; a.Name == name {
				return a.State == fleet.AdapterResident || a.State == fleet.AdapterRunning
			}
		}
	}
	return false
}

// adapterAt returns the place of an adapter in the list of those sent to a slot; -1
// where it is not among them.
func (d *Dispatch) adapterAt(i int32, name string) int {
	return slices.IndexFunc(d.aux[i].lora, func(a adapterUse) bool { return a.name == name })
}

// adapterRoom is how many adapters an endpoint keeps at a time.
func (d *Dispatch) adapterRoom(i int32) int {
	if st := d.slots[i].State; st != nil && st.LoRASlots.OK() {
		return max(1, int(st.LoRASlots.V))
	}
	return max(1, d.o.Profile.LoRASlots)
}

// useAdapter notes that an adapter was sent to a slot: it is the most recent of those
// that the engine has room for. The engine drops the least recent of those that no
// request runs with.
func (d *Dispatch) useAdapter(i int32, name string) {
	l := &d.learned
	if l.adapters == nil || len(l.adapters) >= adaptersMost {
		l.adapters = map[string]decayed{}
	}
	u := l.adapters[name]
	u.add(d.now, 1, adapterSeconds)
	l.adapters[name] = u

	a := &d.aux[i]
	k := d.adapterAt(i, name)
	if k < 0 {
		l.cold.add(d.now, 1, coldSeconds)
		if len(a.lora) >= d.adapterRoom(i) {
			if v := a.leastRecent(); v >= 0 {
				d.dropAdapter(i, v)
			}
		}
		a.lora = append(a.lora, adapterUse{name: name})
		if d.holders == nil {
			d.holders = map[string]int32{}
		}
		d.holders[name]++
		k = len(a.lora) - 1
	}
	used := a.lora[k]
	used.running++
	copy(a.lora[1:k+1], a.lora[:k])
	a.lora[0] = used
}

// leaveAdapter notes that a request with an adapter left a slot.
func (d *Dispatch) leaveAdapter(i int32, name string) {
	a := &d.aux[i]
	if k := d.adapterAt(i, name); k >= 0 && a.lora[k].running > 0 {
		a.lora[k].running--
		// Beyond its room the engine has dropped what nothing runs with.
		for len(a.lora) > d.adapterRoom(i) {
			v := a.leastRecent()
			if v < 0 {
				return
			}
			d.dropAdapter(i, v)
		}
	}
}

// denial is an adapter that a replica said it does not have.
type denial struct {
	name  string
	until fleet.Time
}

// deny notes that a replica answered that it lacks an adapter which it listed.
func (d *Dispatch) deny(i int32, name string) {
	a := &d.aux[i]
	a.denied = slices.DeleteFunc(a.denied, func(x denial) bool { return x.until <= d.now || x.name == name })
	a.denied = append(a.denied, denial{name, d.now.Add(deniedFor)})
	if k := d.adapterAt(i, name); k >= 0 && a.lora[k].running == 0 {
		d.dropAdapter(i, k)
	}
}

// denies reports whether a replica said lately that it lacks an adapter.
func (d *Dispatch) denies(i int32, name string) bool {
	for _, x := range d.aux[i].denied {
		if x.name == name && x.until > d.now {
			return true
		}
	}
	return false
}

// dropAdapter takes the adapter at place v out of those believed at a slot.
func (d *Dispatch) dropAdapter(i int32, v int) {
	a := &d.aux[i]
	name := a.lora[v].name
	if d.holders[name]--; d.holders[name] <= 0 {
		delete(d.holders, name)
	}
	a.lora = slices.Delete(a.lora, v, v+1)
}

// dropAdapters does that with all of a slot: its process is another one.
func (d *Dispatch) dropAdapters(i int32) {
	d.aux[i].denied = nil
	for n := len(d.aux[i].lora); n > 0; n-- {
		d.dropAdapter(i, n-1)
	}
}

// leastRecent is the place of the adapter that would go next: the least recent one
// that no request runs with; -1 where requests run with all.
func (a *slot) leastRecent() int {
	for k := len(a.lora) - 1; k >= 0; k-- {
		if a.lora[k].running == 0 {
			return k
		}
	}
	return -1
}

// displaces is what the load of an adapter costs at a slot beside the load itself, in
// ms: the wait until an adapter has no request running where all of them have, or the
// load that will bring the one back that has to go, as probable as it is soon asked
// for again there. So copies go before the last one of their kind, adapters that
// nobody asks for gather at some replicas and pass through their slots, and those
// that are asked for often stay together at others.
func (d *Dispatch) displaces(i int32) float64 {
	a, l := &d.aux[i], &d.learned
	room := d.adapterRoom(i)
	if len(a.lora) < room {
		return 0
	}
	v := a.leastRecent()
	if v < 0 || len(a.lora) > room {
		s := &d.slots[i]
		life := l.output.v * l.coef.Step(float64(s.Streams), s.CtxTokens) * s.Speed
		least := a.lora[0].running
		for _, u := range a.lora {
			least = min(least, max(1, u.running))
		}
		queue := float64(1 + len(a.lora) - room)
		return life * (0.5 + 0.5*math.Log(float64(1+least))) * queue * 1e3
	}
	// Requests for it find it at its other holders as well.
	name := a.lora[v].name
	u := l.adapters[name]
	rate := u.value(d.now, adapterSeconds) / adapterSeconds / float64(max(1, d.holders[name]))
	cold := l.cold.value(d.now, coldSeconds) / coldSeconds
	stay := float64(room*max(1, d.ready)) / max(cold, 1e-3)
	return displacedPrice * l.adapterMS * (1 - math.Exp(-rate*displacedStays*stay))
}

// noAdapter says why no replica takes a request for an adapter that none lists: it is
// being loaded, which is worth waiting for, or the replicas refuse to load it, in
// the words of one of them.
func (d *Dispatch) noAdapter(name string) (route.Drop, string) {
	why := fmt.Sprintf("no replica serves adapter %q", name)
	for i := range d.slots {
		s := d.slots[i].State
		if s == nil {
			continue
		}
		for k := range s.Adapters {
			switch a := &s.Adapters[k]; {
			case a.Name != name:
			case a.State == fleet.AdapterLoading:
				return route.DropNotReady, fmt.Sprintf("adapter %q is being loaded", name)
			case a.State == fleet.AdapterFailed && a.Reason != "":
				why = fmt.Sprintf("no replica serves adapter %q; %s refuses to load it: %s", name, s.ID, a.Reason)
			}
		}
	}
	return route.DropAdapter, why
}
