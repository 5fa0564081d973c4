// SPDX-License-Identifier: Apache-2.0

package workload

import "time"

// builder makes one session: first the body of every turn without the app's
// prefix, then the prefix in front, as long as the wanted share asks for.
type builder struct {
	g     *Generator
	r     *Rand
	id    uint64 // of the session; segment ids derive from it
	segs  uint64 // segments made so far
	start time.Duration
	turns []draft
}

// draft is a turn before its prefix is known.
type draft struct {
	body   []Segment
	tokens int // sum over body
	fresh  int // tokens of body that no earlier turn of the session begins with
	output int
	think  time.Duration
}

// unique returns a segment that nothing else has.
func (b *builder) unique(role Role, tokens int) Segment {
	b.segs++
	return Segment{ID: mix(b.id + b.segs), Tokens: int32(tokens), Role: role}
}

func (b *builder) build() *Session {
	closed := false
	switch b.g.spec.Kind {
	case KindAgent:
		b.agent()
		closed = true
	case KindCode:
		b.code()
	case KindRAG:
		b.rag()
	case KindShared, KindReason:
		b.single()
	default:
		b.chat()
		closed = true
	}
	s := &Session{ID: b.id, Start: b.start, Closed: closed && !b.g.spec.Open}
	b.finish(s)
	return s
}

// history adds turns to a conversation that only grows: input, answer, input, ...
func (b *builder) history(turns int, input func(i int) Segment, think func() time.Duration) {
	var body []Segment
	tokens := 0
	for i := range turns {
		fresh := 0
		if i > 0 {
			answer := b.turns[i-1].output
			body = append(body, b.unique(RoleAssistant, answer))
			fresh += answer
		}
		in := input(i)
		body = append(body, in)
		fresh += int(in.Tokens)
		tokens += fresh
		b.turns = append(b.turns, draft{
			body: body[:len(body):len(body)], tokens: tokens, fresh: fresh,
			output: b.g.output(b.r), think: think(),
		})
	}
}

func (b *builder) chat() {
	sp := &b.g.spec
	b.history(min(sp.turns(b.r), 60),
		func(int) Segment { return b.unique(RoleUser, b.r.tokens(sp.Input, 0.9, 3, 4000)) },
		func() time.Duration { return seconds(b.r.LogNormal(sp.Think.Seconds(), 0.8)) })
}

// agent works in 10 to 50 steps: a task, then tool results of widely different
// length; the gap is the time that the tool takes.
func (b *builder) agent() {
	sp := &b.g.spec
	steps := max(2, int(sp.Turns*(0.55+b.r.Exp()*0.45)))
	b.history(min(steps, 50),
		func(i int) Segment {
			if i == 0 {
				return b.unique(RoleUser, b.r.tokens(sp.Input*2, 1, 20, 20000))
			}
			return b.unique(RoleTool, b.r.tokens(sp.Input, 1.1, 8, 8000))
		},
		func() time.Duration { return seconds(b.r.LogNormal(sp.Think.Seconds(), 1)) })
}

// code completes at a cursor in a file of chunks: each keystroke pause sends the
// text before the cursor; an edit further up gives a chunk a new id and so cuts
// the prefix that later requests can share.
func (b *builder) code() {
	const chunk = 48
	sp := &b.g.spec
	n := max(2, b.r.tokens(sp.Input, 0.7, 200, 16000)/chunk)
	file := make([]Segment, n)
	for i := range file {
		file[i] = b.unique(RoleUser, chunk)
	}
	seen := map[uint64]bool{} // chains of chunks that were sent
	cursor := n/2 + b.r.IntN(n/2)
	for i := range min(sp.turns(b.r), 120) {
		think := seconds(b.r.LogNormal(sp.Think.Seconds(), 0.7))
		if i > 0 {
			switch p := b.r.Float64(); {
			case p < 0.12: // goes elsewhere and edits there
				cursor = b.r.IntN(n)
				think *= 12
			case p < 0.45: // next line
				cursor = min(cursor+1, n-1)
			}
		}
		file = append([]Segment(nil), file...)
		file[cursor] = b.unique(RoleUser, chunk)
		body := file[: cursor+1 : cursor+1]
		b.turns = append(b.turns, draft{
			body: body, tokens: len(body) * chunk, fresh: unseen(seen, body) * chunk,
			output: b.g.output(b.r), think: think,
		})
	}
}

// unseen returns how many segments at the end of body follow a beginning that is
// not in seen, and adds all beginnings of body to it.
func unseen(seen map[uint64]bool, body []Segment) int {
	fresh, h := 0, uint64(0)
	for _, s := range body {
		h = mix(h ^ s.ID)
		if !seen[h] {
			fresh++
			seen[h] = true
		}
	}
	return fresh
}

// rag asks a question behind documents of which half come from a popular pool.
func (b *builder) rag() {
	sp := &b.g.spec
	var body []Segment
	total := b.r.Between(4000, 40000)
	if sp.MaxContext > 0 {
		total = min(total, sp.MaxContext*3/4)
	}
	for tokens := 0; tokens < total; {
		n := min(b.r.tokens(1500, 0.6, 200, 6000), total-tokens)
		doc := b.unique(RoleUser, n)
		if b.r.Float64() < 0.5 {
			rank := uint64(b.g.docs.Draw(b.r))
			doc.ID = mix(sp.Seed ^ hashString("doc") ^ rank)
			pr := randAt(sp.Seed, hashString("doc tokens"), rank)
			doc.Tokens = int32(min(pr.tokens(1500, 0.6, 200, 6000), max(total-tokens, 1)))
		}
		tokens += int(doc.Tokens)
		body = append(body, doc)
	}
	b.one(append(body, b.unique(RoleUser, b.r.tokens(sp.Input, 0.5, 4, 400))))
}

func (b *builder) single() {
	b.one([]Segment{b.unique(RoleUser, b.r.tokens(b.g.spec.Input, 0.8, 4, 8000))})
}

func (b *builder) one(body []Segment) {
	tokens := 0
	for _, s := range body {
		tokens += int(s.Tokens)
	}
	b.turns = append(b.turns, draft{body: body, tokens: tokens, fresh: tokens, output: b.g.output(b.r)})
}

// finish puts the app's prefix in front of every turn.
func (b *builder) finish(s *Session) {
	sp := &b.g.spec
	_, app := b.g.app(b.r, b.start)
	prefix := b.g.prefixTokens(app)
	if sp.Share > 0 {
		prefix = b.fitShare(sp.Share)
	}
	head := Segment{ID: app, Tokens: int32(prefix), Role: RoleSystem}
	at := b.start
	for i, d := range b.turns {
		if sp.MaxContext > 0 && prefix+d.tokens+d.output > sp.MaxContext && i > 0 {
			break
		}
		if i > 0 {
			at += d.think
			if sp.Kind != KindCode { // an answer of 50 tokens a second, while one types on
				at += time.Duration(b.turns[i-1].output) * 20 * time.Millisecond
			}
		}
		t := Turn{At: at, Think: d.think, PromptTokens: prefix + d.tokens, OutputTokens: d.output}
		t.Prompt = make([]Segment, 0, len(d.body)+1)
		if prefix > 0 {
			t.Prompt = append(t.Prompt, head)
		}
		t.Prompt = append(t.Prompt, d.body...)
		if sp.MaxContext > 0 {
			t.clip(sp.MaxContext)
		}
		s.Turns = append(s.Turns, t)
	}
}

// fitShare returns the length of the prefix with which the share of this session's
// prompt tokens that was seen before is share. A long history shares more than
// that by itself: then the session is cut short first.
//
// With T turns, F fresh tokens and H tokens of history the share is
// (T*S+H)/(T*S+H+F), so S = (F*share/(1-share) - H)/T. The first session of each
// app pays for its prefix once; over many sessions that vanishes.
func (b *builder) fitShare(share float64) int {
	for {
		fresh, hist := 0, 0
		for _, d := range b.turns {
			fresh += d.fresh
			hist += d.tokens - d.fresh
		}
		t := len(b.turns)
		want := (float64(fresh)*share/(1-share) - float64(hist)) / float64(t)
		if want >= 0 || t == 1 {
			return max(int(want+0.5), 0)
		}
		b.turns = b.turns[:t-1]
	}
}

// clip cuts a prompt that does not fit into limit tokens with its answer.
func (t *Turn) clip(limit int) {
	t.OutputTokens = max(1, min(t.OutputTokens, limit/2))
	room := limit - t.OutputTokens
	if t.PromptTokens <= room {
		return
	}
	t.PromptTokens = 0
	for i, s := range t.Prompt {
		if left := room - t.PromptTokens; int(s.Tokens) >= left {
			t.Prompt[i].Tokens = int32(left)
			t.Prompt = t.Prompt[:i+1]
			t.PromptTokens = room
			return
		}
		t.PromptTokens += int(s.Tokens)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * 1e9) }
