// SPDX-License-Identifier: Apache-2.0

// Package workload makes streams of requests: seeded generators, readers of
// public and private traces, and the feed that hands the requests out in the order
// in which they are due. The simulator, the load generator and calibration draw
// from the same streams.
//
// A request is described by the segments of its prompt, never by their text:
// equal segment ids mean equal text. AppendText makes that text where somebody
// needs it, Turn.Blocks makes the block hashes that the text would have.
//
// Nothing here reads a clock, opens a file or draws from a global source: the same
// specification and seed give the same stream, byte for byte.
package workload

import "time"

// Role says who wrote a segment of a prompt.
type Role uint8

// Roles of segments, in the order of a chat template.
const (
	RoleUser Role = iota
	RoleSystem
	RoleAssistant
	RoleTool
)

var roleNames = [...]string{"user", "system", "assistant", "tool"}

func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return "unknown"
}

// Segment is a run of prompt text. The text of (ID, m) is the beginning of the
// text of (ID, n) for m < n, whatever the role. With Unit > 0 it is a run of blocks
// of Unit tokens with the ids ID, ID+1, ID+2, ...
type Segment struct {
	ID     uint64
	Tokens int32 // >= 0
	Unit   uint16
	Role   Role
}

// piece returns the id and the offset in its text of the token at off, and how
// many tokens follow there under the same id.
func (s *Segment) piece(off int) (id uint64, at, tokens int) {
	left := int(s.Tokens) - off
	if s.Unit == 0 {
		return s.ID, off, left
	}
	u := int(s.Unit)
	return s.ID + uint64(off/u), off % u, min(left, u-off%u)
}

// Turn is one request of a session.
type Turn struct {
	// At is when an open-loop turn is sent, from the start of the run. In a closed
	// session it is what a trace says and drives only the first turn.
	At time.Duration
	// Think is the pause between the end of the turn before and this one; it counts
	// in closed sessions.
	Think time.Duration

	Prompt       []Segment // whole prompt, history included; shared between turns: do not change it
	PromptTokens int       // sum over Prompt, at least 1
	OutputTokens int       // at least 1

	// Logged is what a log says about this request; nil where there is no log.
	Logged *Logged
}

// Logged is what a trace measured when the request really ran. Negative values
// are unknown.
type Logged struct {
	CachedTokens int
	TTFT, E2E    time.Duration
}

// Session is a chain of turns of one user. A single request is a session of one
// turn.
type Session struct {
	ID      uint64
	Start   time.Duration // when the first turn is due, from the start of the run
	Closed  bool          // a turn waits for the answer to the one before, plus Think
	Tenant  string        // "" where the workload has none
	Adapter string        // LoRA adapter; "" for the base model
	Class   uint8         // priority class, 0 is the most urgent
	Turns   []Turn        // at least one
}

// Source yields sessions in the order of Start, and nil once there are no more.
type Source interface {
	Next() *Session
}

// List is a Source over sessions that are already there, ordered by Start.
type List struct {
	sessions []*Session
	next     int
}

// NewList returns a Source over sessions. It keeps the slice.
func NewList(sessions []*Session) *List { return &List{sessions: sessions} }

// Next implements Source.
func (l *List) Next() *Session {
	if l.next >= len(l.sessions) {
		return nil
	}
	l.next++
	return l.sessions[l.next-1]
}

// Blocks appends the chained hashes of the whole blocks of blockTokens tokens of
// the prompt to dst: hash i stands for everything up to and including block i.
// Two prompts have equal hashes as far as their segments are equal. The seed keeps
// apart what must not be shared, such as adapters.
func (t *Turn) Blocks(dst []uint64, blockTokens int, seed uint64) []uint64 {
	if blockTokens <= 0 {
		return dst
	}
	h := mix(seed ^ 0x9e3779b97f4a7c15)
	room := blockTokens
	for i := range t.Prompt {
		for off := 0; off < int(t.Prompt[i].Tokens); {
			id, at, n := t.Prompt[i].piece(off)
			n = min(n, room)
			h = mix(h ^ (id*0xff51afd7ed558ccd + uint64(at)))
			off, room = off+n, room-n
			if room == 0 {
				dst = append(dst, h)
				room = blockTokens
			} else {
				// An unfinished block remembers where its pieces meet.
				h ^= uint64(n) << 32
			}
		}
	}
	return dst
}

// AdapterSeed returns the Blocks seed that keeps the prompts of an adapter apart
// from those of the base model and of other adapters.
func AdapterSeed(adapter string) uint64 { return hashString(adapter) }

// Ideal replays a feed against one cache without limit, turn after turn, and
// returns the share of prompt tokens that whole blocks of blockTokens tokens would
// find there: the ceiling of every router. The feed must end (see FeedOptions).
func Ideal(f *Feed, blockTokens int) float64 {
	seen := map[uint64]struct{}{}
	var blocks []uint64
	var hit, total float64
	for it, ok := f.PopAny(); ok; it, ok = f.PopAny() {
		t := it.Request()
		blocks = t.Blocks(blocks[:0], blockTokens, AdapterSeed(it.Session.Adapter))
		total += float64(t.PromptTokens)
		n := 0
		for n < len(blocks) {
			if _, ok := seen[blocks[n]]; !ok {
				break
			}
			n++
		}
		hit += float64(n * blockTokens)
		for _, b := range blocks[n:] {
			seen[b] = struct{}{}
		}
		f.Done(it, it.At)
	}
	if total == 0 {
		return 0
	}
	return hit / total
}
