// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

const (
	// sessionsMost bounds the sessions that are remembered, the oldest go first.
	sessionsMost = 1 << 16
	// sessionKeep is how long a session without a request is believed in: caches turn
	// over in minutes under load.
	sessionKeep = fleet.Time(30 * 60 * 1e9)
	// firstTrust is how much of a prompt a session's next one is expected to find
	// before an answer has told; trustRate the weight of an answer.
	firstTrust = 0.5
	trustRate  = 0.5
	// knownShare is when the index knows enough by itself: the hint is no opinion then.
	knownShare = 0.25
)

// session is where the last request with a session hint went. Hints are the client's
// word: they are mixed with tenant, model and adapter, so that no tenant can name
// another one's session, and are believed as far as answers bear them out.
type session struct {
	key    uint64
	slot   int32
	life   uint32
	prompt float64 // tokens
	trust  float64 // share of it that the next request found there, moving
	at     fleet.Time
}

// sessions is a bounded table in the order of last use.
type sessions struct {
	at   map[uint64]int32
	all  []session
	hand int32 // where the next one goes once the table is full
}

// sessionKey is what a request's session goes by; 0: it has none.
func sessionKey(r *fleet.Request) uint64 {
	if r.Session == 0 {
		return 0
	}
	who := route.Mix(xxh3.HashString(r.Tenant), xxh3.HashString(r.Model))
	return route.Mix(r.Session, route.Mix(who, xxh3.HashString(r.Adapter))) | 1
}

// recall lets a session hint stand in where the index knows little of a prompt: what
// is too short for a block, media, or was forgotten here and not there.
func (d *Dispatch) recall(e *entry) {
	e.prior = false
	key := sessionKey(e.req)
	if key == 0 || e.blockTokens <= 0 {
		return
	}
	k, ok := d.sessions.at[key]
	if !ok {
		return
	}
	s := &d.sessions.all[k]
	if d.now-s.at > sessionKeep || int(s.slot) >= len(d.slots) || !d.aux[s.slot].used || d.aux[s.slot].life != s.life {
		return
	}
	expected := min(s.prompt, e.prompt-1) * s.trust
	best := int32(0)
	for i, h := range d.hits {
		if d.drops[i] == route.DropNone {
			best = max(best, h)
		}
	}
	if float64(best)*e.blockTokens >= knownShare*min(s.prompt, e.prompt) {
		return
	}
	if hit := int32(expected / e.blockTokens); hit > d.hits[s.slot] {
		d.hits[s.slot], e.prior = hit, true
	}
}

// remember notes where a request with a session hint went and what it found there.
func (d *Dispatch) remember(e *entry, prompt, cached int) {
	key := sessionKey(e.req)
	if key == 0 {
		return
	}
	t := &d.sessions
	if t.at == nil {
		t.at = map[uint64]int32{}
	}
	k, ok := t.at[key]
	if !ok {
		if len(t.all) < sessionsMost {
			k = int32(len(t.all))
			t.all = append(t.all, session{})
		} else {
			k = t.hand
			t.hand = (t.hand + 1) % sessionsMost
			delete(t.at, t.all[k].key)
		}
		t.at[key] = k
		t.all[k] = session{key: key, trust: firstTrust, slot: -1}
	}
	s := &t.all[k]
	if cached >= 0 && prompt > 0 && s.slot == e.slot && s.life == e.life && s.prompt > 0 {
		found := min(1, float64(cached)/max(1, min(s.prompt, float64(prompt)-1)))
		s.trust += (found - s.trust) * trustRate
	}
	s.slot, s.life, s.at, s.prompt = e.slot, e.life, d.now, e.prompt
	if prompt > 0 {
		s.prompt = float64(prompt)
	}
}
