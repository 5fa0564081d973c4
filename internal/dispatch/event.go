// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/route"
)

// EventKind says what an Event is. The numbers stand in journals: they do not change.
type EventKind uint8

// Kinds of events: all that can change the state of a Dispatch.
const (
	EventSnapshot EventKind = iota + 1 // Snapshot
	EventArrive                        // Request
	EventPreview                       // Request
	EventFirst                         // Ticket
	EventProgress                      // Ticket, Tokens
	EventRetry                         // Ticket, Fault
	EventEnd                           // Ticket, Outcome
	EventTick
	EventNote     // Peer, Note
	EventPeerGone // Peer
	EventRank     // Peer is the rank, Tokens the number of routers
	EventPolicy   // Policy
	EventShadow   // Policy, nil: none
	EventCache    // Cache
	EventWarm     // Data, Key
	EventBind     // Ticket, Data: the only host:port where it may be from now on
	EventHold     // Hold
)

var eventNames = [...]string{
	"", "snapshot", "arrival", "preview", "first token", "progress", "retry", "end", "timer", "peer message",
	"peer gone", "rank", "policy", "shadow policy", "KV event", "index snapshot", "move by a proxy", "hold",
}

func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "unknown"
}

// Event is one call of a Dispatch as a value: what happened, and when. The same
// events in the same order give the same decisions, byte for byte.
type Event struct {
	Kind     EventKind
	At       fleet.Time
	Ticket   Ticket
	Request  *fleet.Request
	Snapshot *fleet.Snapshot
	Tokens   int
	Fault    fleet.OutcomeKind
	Outcome  fleet.Outcome
	Peer     int32
	Note     *Note
	Policy   route.Policy
	Seed     uint64 // that Policy was made with
	Cache    *CacheEvent
	Data     []byte // a snapshot of a prefix index
	Key      uint64 // check of Data
	Hold     Hold
	// Decision is where EventPreview writes; nil: nobody looks.
	Decision *route.Decision
}

// Apply carries an event out. Ticket and Verdict are set where the event is an arrival
// or, without the ticket, a retry.
func (d *Dispatch) Apply(e *Event, out []Send) (t Ticket, v Verdict, sends []Send) {
	switch e.Kind {
	case EventSnapshot:
		out = d.Observe(e.At, e.Snapshot, out)
	case EventArrive:
		return d.Arrive(e.At, e.Request, out)
	case EventPreview:
		dec := e.Decision
		if dec == nil {
			dec = &route.Decision{}
		}
		d.Preview(e.At, e.Request, dec)
	case EventFirst:
		out = d.FirstToken(e.At, e.Ticket, out)
	case EventProgress:
		d.Progress(e.At, e.Ticket, e.Tokens)
	case EventRetry:
		v, out = d.Retry(e.At, e.Ticket, e.Fault, out)
	case EventEnd:
		out = d.End(e.At, e.Ticket, e.Outcome, out)
	case EventTick:
		out = d.Tick(e.At, out)
	case EventNote:
		out = d.Hear(e.At, e.Peer, e.Note, out)
	case EventPeerGone:
		out = d.PeerGone(e.At, e.Peer, out)
	case EventRank:
		d.SetRank(int(e.Peer), e.Tokens)
	case EventPolicy:
		d.SetPolicy(e.Policy)
	case EventShadow:
		d.SetShadow(e.Policy)
	case EventCache:
		d.Cached(e.At, e.Cache)
	case EventBind:
		d.Bind(e.Ticket, string(e.Data))
	case EventWarm:
		// What cannot be loaded is not there: the caller was told.
		_ = d.Warm(e.At, e.Data, e.Key)
	case EventHold:
		d.SetHold(e.At, e.Hold)
	}
	return t, v, out
}

// Bind says that a request may be at one place only from now on: a proxy has taken it
// there by itself.
func (d *Dispatch) Bind(t Ticket, hostPort string) {
	if i := d.find(t); i >= 0 {
		e := &d.entries[i]
		e.req.Subset, e.req.SubsetOnly = []string{hostPort}, true
		if e.asks == 0 && e.slot >= 0 { // the header goes with it, or none does
			if e.asks = asksNone; d.aux[e.slot].home != nil {
				e.asks = d.aux[e.slot].rank + 1
			}
		}
	}
}
