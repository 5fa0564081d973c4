// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math"
	"strconv"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
)

// DefaultMaxDepth is how deep a body may nest: far more than any chat template or
// tool schema needs, far less than what would cost an engine its stack.
const DefaultMaxDepth = 256

// Span is a range of bytes of a body: [Start, End).
type Span struct{ Start, End int }

// Len returns the length in bytes.
func (s Span) Len() int { return s.End - s.Start }

// Scan is what ScanRequest read in a body. Model and CacheSalt point into the body
// (or into the Scan, where they held escapes) and are valid as long as both are
// unchanged. A Scan may be used again for the next body; it then does not allocate.
type Scan struct {
	Surface fleet.Surface

	Model     []byte // value of "model"; nil where it is absent or null
	ModelSpan Span   // of the value with its quotes; empty where it is absent or null

	SaltSpan    Span // of "cache_salt" with its quotes; empty where it is absent
	OptionsSpan Span // of the value of "stream_options"
	UsageSpan   Span // of the value of "include_usage" in it
	// PrioritySpan is that of the value of "priority", by which some engines order
	// their queue.
	PrioritySpan Span

	Stream       bool // "stream": true
	IncludeUsage bool // "stream_options": {"include_usage": true}

	// MaxTokens is the cap on the output (max_completion_tokens wins over
	// max_tokens); 0 where there is none, or none that is a positive number.
	MaxTokens int
	N         int // "n"; 1 where it is absent or no positive number
	// MostTokens is the largest cap under any of its names: engines differ on which
	// one wins, so this is what an answer may cost. 0 where there is none.
	MostTokens int
	BestOf     int // "best_of"; 0 where absent: so many answers are computed
	Logprobs   int // the largest of logprobs, top_logprobs, prompt_logprobs; -1: all there are
	Prompts    int // prompts of a batch of completions; 1 where it is none

	// User, CacheKey: hashes of "user" (or metadata.user_id) and of
	// "prompt_cache_key"; 0 where absent.
	User, CacheKey uint64
	CacheSalt      []byte // value of "cache_salt"; nil where absent

	// TextBytes is the length of the text of the prompt with escapes undone, in
	// bytes, tool definitions and calls included, media excluded.
	TextBytes int
	TokenIDs  int // prompt tokens that were given as numbers
	Messages  int // messages or input items
	Media     int // images, audio and files among the content

	// Form says that the body is a multipart form: ModelSpan has no quotes.
	Form bool

	open        int  // offset of the brace that opens the body
	bare        bool // the body has no member
	optionsOpen int  // offset behind the brace that opens stream_options; 0 none
	optionsBare bool // it has no member

	tools    Span              // value of "tools"
	grammars [maxGrammars]Span // values that hold schemas and grammars
	grammar  int               // of those, how many
	media    []Span            // the first maxMediaSpans images, sounds and files

	pieces  []piece
	regions [numRegions]region
	scratch []byte
}

// region is what one top-level member gave to the prompt: pieces[from:to].
type region struct{ from, to int }

// Regions in the order in which chat templates render them: system text, tools,
// then the conversation.
const (
	regionSystem = iota
	regionTools
	regionMain
	regionMore
	numRegions
)

// ScanRequest validates body as JSON and fills s with what a router reads of it.
// The error is a *BadRequest. A member whose value has an unexpected type is left
// to the engine to judge, except for "model".
func ScanRequest(s *Scan, surface fleet.Surface, body []byte, lim Limits) error {
	s.reset(surface)
	if lim.MaxDepth <= 0 {
		lim.MaxDepth = DefaultMaxDepth
	}
	p := parser{b: body, maxDepth: min(lim.MaxDepth, maxNesting), s: s}
	switch c := p.peek(); {
	case c == 0 && p.i == len(body):
		p.err = &BadRequest{Message: "the body is empty", Code: CodeInvalidJSON}
	case c != '{':
		p.skip()
		if p.err == nil {
			p.err = &BadRequest{Message: "the body must be a JSON object", Code: CodeInvalidJSON}
		}
	default:
		s.open, s.bare = p.i, true
		p.top()
	}
	if p.err != nil {
		return p.err
	}
	return nil
}

func (s *Scan) reset(surface fleet.Surface) {
	*s = Scan{Surface: surface, N: 1, Prompts: 1, pieces: s.pieces[:0], scratch: s.scratch[:0], media: s.media[:0]}
}

// top reads the members of the body.
func (p *parser) top() {
	keys := commonKeys
	if int(p.s.Surface) < len(surfaceKeys) {
		keys |= surfaceKeys[p.s.Surface]
	}
	var seen keySet
	where := place{index: -1, part: -1}
	for more := p.enter('}'); more; more = p.next('}') {
		p.s.bare = false
		switch id := p.key(keys, &seen, &where); id {
		case keyNone:
			if p.err == nil {
				p.skip()
			}
		case keyMessages, keyInput, keyPrompt, keySystem, keyInstructions, keyTools, keyQuery, keyDocuments, keyText1, keyText2:
			p.prompt(id)
		default:
			p.setting(id)
		}
	}
	if p.space(); p.i < len(p.b) {
		p.fail("more follows after its end")
	}
	if p.err == nil && !seen.has(keyMessages) && (p.s.Surface == fleet.SurfaceChat || p.s.Surface == fleet.SurfaceMessages) {
		p.err = &BadRequest{Param: "messages", Message: "messages is missing", Offset: p.i, Code: CodeMissing}
	}
}

// setting reads a member that is no prompt text.
func (p *parser) setting(id keyID) {
	s := p.s
	switch id {
	case keyModel:
		p.model()
	case keyStream:
		s.Stream = p.boolean("stream")
	case keyMaxTokens, keyMaxOutputTokens:
		n := p.count(id)
		if s.MostTokens = max(s.MostTokens, n); s.MaxTokens == 0 {
			s.MaxTokens = n
		}
	case keyMaxCompletionTokens:
		n := p.count(id)
		if s.MostTokens = max(s.MostTokens, n); n > 0 {
			s.MaxTokens = n
		}
	case keyNPredict:
		s.MostTokens = max(s.MostTokens, p.count(id))
	case keyN:
		s.N = max(1, p.count(id))
	case keyBestOf:
		s.BestOf = p.count(id)
	case keyLogprobs, keyTopLogprobs, keyPromptLogprobs:
		p.logprobs(id)
	case keyBackground:
		p.background()
	case keyPriority:
		start, end := p.skip()
		s.PrioritySpan = Span{start, end}
	case keySteering:
		p.steering()
	case keyResponseFormat, keyGuidedJSON, keyGuidedRegex, keyGuidedGrammar, keyStructuredOutputs, keyFunctions, keyText:
		p.grammar()
	case keyUser:
		s.User = p.hashed()
	case keyPromptCacheKey:
		s.CacheKey = p.hashed()
	case keyCacheSalt:
		p.peek()
		start := p.i
		s.CacheSalt = p.value()
		s.SaltSpan = Span{start, p.i}
	case keyStreamOptions:
		p.streamOptions()
	case keyMetadata:
		p.metadata()
	}
}

func (p *parser) model() {
	c := p.peek()
	start := p.i
	switch c {
	case '"':
		p.s.Model = p.value()
		p.s.ModelSpan = Span{start, p.i}
	case 'n':
		p.skip()
	default:
		if p.skip(); p.err == nil {
			p.err = &BadRequest{Param: "model", Message: "model must be a string", Offset: start, Code: CodeInvalidType}
		}
	}
}

// count reads a number that costs something. Engines take a number in quotes for the
// number (blanks, signs and underscores included), so one that is not judged here
// would pass every ceiling and be reserved by no quota; no client library sends one.
func (p *parser) count(id keyID) int {
	quoted, start := p.peek() == '"', p.i
	n := p.positive()
	if quoted && p.err == nil {
		p.err = &BadRequest{Param: keyNames[id], Message: keyNames[id] + " must be a number", Offset: start, Code: CodeInvalidType}
	}
	return n
}

// boolean reads a switch. Engines take "yes", "on", 1 and more for true: a stream
// that is not known to be one would be asked for no usage, so only the words of JSON
// pass. Values that no engine takes are left to it.
func (p *parser) boolean(name string) bool {
	c := p.peek()
	start, end := p.skip()
	if p.err == nil && (c == '"' || c == '-' || c >= '0' && c <= '9') {
		p.err = &BadRequest{Param: name, Message: name + " must be true or false", Offset: start, Code: CodeInvalidType}
	}
	return string(p.b[start:end]) == "true"
}

// logprobs reads how many alternatives are wanted for each token; true and false are
// switches of another surface, and a negative number asks for the whole vocabulary.
func (p *parser) logprobs(id keyID) {
	s := p.s
	if c := p.peek(); c == '-' && s.Logprobs >= 0 {
		if start, end := p.skip(); string(p.b[start:end]) != "-0" {
			s.Logprobs = -1
		}
		return
	}
	if n := p.count(id); s.Logprobs >= 0 {
		s.Logprobs = max(s.Logprobs, n)
	}
}

// background refuses an answer that is computed after the request ended: nothing
// would count it, and no path leads to it.
func (p *parser) background() {
	start, end := p.skip()
	if v := string(p.b[start:end]); p.err == nil && v != "false" && v != "null" {
		p.err = &BadRequest{Param: "background", Message: "background must be false", Offset: start, Code: CodeInvalidValue}
	}
}

// steering refuses a member of steers unless it is empty.
func (p *parser) steering() {
	start, end := p.skip()
	if v := string(p.b[start:end]); p.err == nil && v != "null" && v != "[]" {
		p.err = &BadRequest{Message: "the body has a member that only a router may set", Offset: start, Code: CodeInvalidValue}
	}
}

// grammar notes a value that an engine compiles.
func (p *parser) grammar() {
	start, end := p.skip()
	if s := p.s; p.err == nil && end-start > len("null") && s.grammar < maxGrammars {
		s.grammars[s.grammar] = Span{start, end}
		s.grammar++
	}
}

// value reads a string member; nil where the value is something else.
func (p *parser) value() []byte {
	if p.peek() != '"' {
		p.skip()
		return nil
	}
	t := p.str()
	if p.err != nil {
		return nil
	}
	v := p.b[t.start:t.end]
	if t.escaped() {
		from := len(p.s.scratch)
		if from == 0 && cap(p.s.scratch) < 2*len(v) {
			// Room for a second value, so that the first one stays where it is.
			p.s.scratch = make([]byte, 0, 2*len(v)+256)
		}
		p.s.scratch = unescape(p.s.scratch, v)
		v = p.s.scratch[from:len(p.s.scratch):len(p.s.scratch)]
	}
	return v[:len(v):len(v)]
}

// hashed returns the hash of a string member; 0 where it is empty or no string.
func (p *parser) hashed() uint64 {
	if p.peek() != '"' {
		p.skip()
		return 0
	}
	t := p.str()
	if p.err != nil || t.end == t.start {
		return 0
	}
	return hashOf(p.b[t.start:t.end])
}

// hashOf returns the hash of a value, which is never 0; 0 where it is empty.
func hashOf(b []byte) uint64 {
	if len(b) == 0 {
		return 0
	}
	return max(1, xxh3.Hash(b))
}

// positive reads a number member; 0 where it is none, or not positive. Fractions
// are cut off: what an engine makes of them is its own business.
func (p *parser) positive() int {
	start, end := p.skip()
	if p.err != nil {
		return 0
	}
	n := 0
	for _, c := range p.b[start:end] {
		if c < '0' || c > '9' || n > math.MaxInt32 {
			f, err := strconv.ParseFloat(string(p.b[start:end]), 64)
			if err != nil || !(f > 0) {
				return 0
			}
			return int(min(f, math.MaxInt32))
		}
		n = n*10 + int(c-'0')
	}
	return min(n, math.MaxInt32)
}

func (p *parser) streamOptions() {
	if p.peek() != '{' {
		start, end := p.skip()
		p.s.OptionsSpan = Span{start, end}
		return
	}
	start := p.i
	p.s.optionsOpen, p.s.optionsBare = start+1, true
	var seen keySet
	where := place{top: keyStreamOptions, index: -1, part: -1}
	for more := p.enter('}'); more; more = p.next('}') {
		id := p.key(streamOptionKeys, &seen, &where)
		if p.err != nil {
			return
		}
		p.s.optionsBare = false
		if id != keyIncludeUsage {
			p.skip()
			continue
		}
		p.peek()
		start := p.i
		p.s.IncludeUsage = p.boolean("stream_options.include_usage")
		p.s.UsageSpan = Span{start, p.i}
	}
	p.s.OptionsSpan = Span{start, p.i}
}

func (p *parser) metadata() {
	if p.peek() != '{' {
		p.skip()
		return
	}
	var seen keySet
	where := place{top: keyMetadata, index: -1, part: -1}
	for more := p.enter('}'); more; more = p.next('}') {
		switch p.key(metadataKeys, &seen, &where) {
		case keyUserID:
			if h := p.hashed(); p.s.User == 0 {
				p.s.User = h
			}
		default:
			if p.err == nil {
				p.skip()
			}
		}
	}
}

// place is where a member stands, for messages of errors.
type place struct {
	top         keyID
	index, part int // -1: none
}

func (w *place) name(id keyID) string {
	if w.top == keyNone {
		return keyNames[id]
	}
	s := keyNames[w.top]
	if w.index >= 0 {
		s += "[" + strconv.Itoa(w.index) + "]"
	}
	if w.part >= 0 {
		s += ".content[" + strconv.Itoa(w.part) + "]"
	}
	return s + "." + keyNames[id]
}

// SpliceModel appends body to dst with the value of "model" replaced by model and
// every other byte as it was. The body must have a model.
func SpliceModel(dst, body []byte, at Span, model string) []byte {
	dst = append(dst, body[:at.Start]...)
	dst = AppendString(dst, model)
	return append(dst, body[at.End:]...)
}

// Forget lets go of the body that was scanned, and of unusually large memory.
func (s *Scan) Forget() {
	s.reset(s.Surface)
	if cap(s.pieces) > 4<<10 {
		s.pieces = nil
	}
	if cap(s.scratch) > 4<<10 {
		s.scratch = nil
	}
	if cap(s.media) > 64 {
		s.media = nil
	}
}
