// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"math/bits"
	"strconv"
	"strings"
)

// machine is a JSON reader that is pushed: it takes bytes in any splitting and
// follows the few paths that matter in answers. Everything else is skipped by
// counting brackets outside of strings. Input that is no JSON does it no harm; it
// then sees nothing.
type machine struct {
	// What one JSON text said. Counts are -1 where it did not tell.
	prompt, output, cached int
	apartCached            int  // cached tokens that the prompt's count leaves out
	content                bool // generated content
	choices                bool
	finish                 bool // a finish or stop reason
	sawError               bool // a member "error" that is not null
	objectError            bool // "object": "error"
	detail                 bool // a member "detail" that is not null
	failed                 bool // "status": "failed"
	done                   bool // [DONE]
	code                   int  // an error's code; 0 unknown
	kind                   [40]byte
	kindLen                int
	errType                [40]byte
	errTypeLen             int
	id                     [64]byte // of the response; outlives one text
	idLen                  int

	state   machineState
	str     stringUse
	escaped bool // after a backslash in a string
	skip    int  // open brackets of a value that nobody reads
	sp      int
	stack   [maxPath]node
	slot    slot
	key     [24]byte // member name, or a short value
	keyLen  int      // -1: too long to be known
	num     int
	numLen  int
	donePos int // how much of [DONE] matched
}

const maxPath = 8

type machineState uint8

const (
	wantValue machineState = iota
	wantKey                // or the end of an object
	wantColon
	wantComma
	inString
	inNumber
	inLiteral
	inSkip // between the brackets of a skipped value
	inDone
	atRest // after the end
)

// stringUse says what the bytes of the current string are for.
type stringUse uint8

const (
	useNothing stringUse = iota
	useKey
	useValue // a short value that is compared
	useText  // generated text: any byte counts
	useModel // may be replaced
	useSkip  // inside of a skipped value
)

// node is an object or array on a path that matters.
type node uint8

const (
	nodeNone node = iota
	nodeRoot
	nodeUsage
	nodeDetails
	nodeChoices
	nodeChoice
	nodeDelta
	nodeError
	nodeMessage
	nodeResponse
	nodeEventDelta
)

// slot is a member that matters.
type slot uint8

const (
	slotNone slot = iota
	slotRoot
	slotElement // of choices
	slotUsage
	slotChoices
	slotError
	slotErrorCode
	slotErrorType
	slotObject
	slotMessage
	slotResponse
	slotDetail
	slotKind
	slotEventDelta
	slotModel
	slotStatus
	slotFinish
	slotDelta
	slotText
	slotParts // generated content that is an array or object: tool calls
	slotPrompt
	slotOutput
	slotDetails
	slotCached
	slotApartCached
	slotID
)

func (m *machine) begin() {
	id, n := m.id, m.idLen
	*m = machine{prompt: -1, output: -1, cached: -1, slot: slotRoot, id: id, idLen: n}
}

// slotOf returns what member key of node n is.
func slotOf(n node, key string) slot {
	switch n {
	case nodeRoot:
		return rootSlot(key)
	case nodeUsage:
		switch key {
		case "prompt_tokens", "input_tokens":
			return slotPrompt
		case "completion_tokens", "output_tokens":
			return slotOutput
		case "prompt_tokens_details", "input_tokens_details":
			return slotDetails
		case "cache_read_input_tokens":
			return slotApartCached
		case "cache_creation_input_tokens":
			return slotApartCached
		}
	case nodeDetails:
		if key == "cached_tokens" {
			return slotCached
		}
	case nodeChoice:
		switch key {
		case "finish_reason":
			return slotFinish
		case "delta":
			return slotDelta
		case "text":
			return slotText
		}
	case nodeDelta:
		switch key {
		case "content", "reasoning_content", "reasoning", "refusal":
			return slotText
		case "tool_calls", "function_call":
			return slotParts
		}
	case nodeError:
		switch key {
		case "code":
			return slotErrorCode
		case "type":
			return slotErrorType
		}
	case nodeMessage, nodeResponse:
		switch key {
		case "usage":
			return slotUsage
		case "model":
			return slotModel
		case "status":
			return slotStatus
		case "error":
			return slotError
		case "id":
			return slotID
		}
	case nodeEventDelta:
		if key == "stop_reason" {
			return slotFinish
		}
	}
	return slotNone
}

func rootSlot(key string) slot {
	switch key {
	case "usage":
		return slotUsage
	case "choices":
		return slotChoices
	case "error":
		return slotError
	case "object":
		return slotObject
	case "message":
		return slotMessage
	case "response":
		return slotResponse
	case "detail":
		return slotDetail
	case "code":
		return slotErrorCode
	case "type":
		return slotKind
	case "delta":
		return slotEventDelta
	case "model":
		return slotModel
	case "status":
		return slotStatus
	case "stop_reason":
		return slotFinish
	}
	return slotNone
}

// child returns the node that a bracket opens in the current slot.
func (m *machine) child(c byte) node {
	if c == '[' {
		switch m.slot {
		case slotChoices:
			m.choices = true
			return nodeChoices
		case slotParts:
			m.content = true
		case slotText:
			m.content = true
		case slotDetail:
			m.detail = true
		}
		return nodeNone
	}
	switch m.slot {
	case slotRoot:
		return nodeRoot
	case slotElement:
		return nodeChoice
	case slotUsage:
		return nodeUsage
	case slotDetails:
		return nodeDetails
	case slotError:
		m.sawError = true
		return nodeError
	case slotMessage:
		return nodeMessage
	case slotResponse:
		return nodeResponse
	case slotEventDelta:
		return nodeEventDelta
	case slotDelta:
		return nodeDelta
	case slotParts, slotText:
		m.content = true
	case slotDetail:
		m.detail = true
	}
	return nodeNone
}

// open enters a container.
func (m *machine) open(c byte) {
	if m.sp == 0 && c == '[' {
		// The only array that stands alone is the [DONE] of event streams.
		m.state, m.donePos = inDone, 1
		return
	}
	n := m.child(c)
	if n == nodeNone || m.sp == maxPath {
		m.skip = 1
		m.state = inSkip
		return
	}
	m.stack[m.sp] = n
	m.sp++
	if n == nodeChoices {
		m.slot, m.state = slotElement, wantValue
	} else {
		m.state = wantKey
	}
}

// end leaves a container that matters.
func (m *machine) end() {
	if m.sp > 0 {
		m.sp--
	}
	m.state = wantComma
	if m.sp == 0 {
		m.state = atRest
	}
}

// comma goes on to the next member.
func (m *machine) comma() {
	if m.sp > 0 && m.stack[m.sp-1] == nodeChoices {
		m.slot, m.state = slotElement, wantValue
	} else {
		m.state = wantKey
	}
}

// number takes a finished number into its slot.
func (m *machine) number() {
	switch m.slot {
	case slotPrompt:
		m.prompt = m.num
	case slotOutput:
		m.output = m.num
	case slotCached:
		m.cached = m.num
	case slotApartCached:
		m.apartCached += m.num
		if m.keyIs("cache_read_input_tokens") {
			m.cached = m.num
		}
	case slotErrorCode:
		m.code = m.num
	case slotDetail:
		m.detail = true
	}
}

func (m *machine) keyIs(s string) bool { return m.keyLen >= 0 && string(m.key[:m.keyLen]) == s }

// stringValue takes a finished short string into its slot.
func (m *machine) stringValue() {
	v := ""
	if m.keyLen >= 0 {
		v = string(m.key[:m.keyLen])
	}
	switch m.slot {
	case slotObject:
		m.objectError = v == "error"
	case slotFinish:
		m.finish = true
	case slotStatus:
		m.failed = m.failed || v == "failed"
		m.finish = m.finish || v == "completed" || v == "incomplete"
	case slotErrorCode:
		if n, err := strconv.Atoi(v); err == nil {
			m.code = n
		}
	}
}

// errorStatus returns the HTTP status that the error seen stands for.
func (m *machine) errorStatus() int {
	if m.code >= 400 && m.code < 600 {
		return m.code
	}
	t := strings.ToLower(string(m.errType[:m.errTypeLen]))
	has := func(s string) bool { return strings.Contains(t, s) }
	switch {
	case has("badrequest"), has("bad request"), has("invalid_request"), has("notfound"), has("not_found"), has("context_length"):
		return 400
	case has("rate_limit"):
		return 429
	case has("overloaded"):
		return 503
	case has("timeout"):
		return 504
	case t == "" && m.detail && !m.sawError && !m.objectError:
		return 400 // FastAPI's own refusals carry nothing but a text
	}
	return 500
}

const (
	lanes5b = 0x2525252525252525 // 0x80 - 0x5b: added to a byte it sets the high bit from '[' up
	lanes22 = 0x2222222222222222
)

// skipRun returns the index of the first byte at or after i that may matter in a
// skipped value outside of strings: a quote, a bracket, or any letter above them.
func skipRun(p []byte, i int) int {
	for i+8 <= len(p) {
		x := binary.LittleEndian.Uint64(p[i:])
		q := x ^ lanes22
		if mark := (x&^lanes80 + lanes5b | x | (q-lanes01)&^q) & lanes80; mark != 0 {
			return i + bits.TrailingZeros64(mark)>>3
		}
		i += 8
	}
	return i
}
