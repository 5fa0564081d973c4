// SPDX-License-Identifier: Apache-2.0

package fleet

import "time"

// Request is what the router knows of one request when it decides. It is a value
// of metadata: there is no field for prompt text.
type Request struct {
	ID      string // unique; carries the router that decided
	Tenant  string // from the key or token, never from a client header
	Model   string // as the engine knows it, after aliases
	Adapter string // LoRA adapter; "" for the base model
	Surface Surface
	Class   uint8 // priority class, 0 is the most urgent
	Stream  bool

	// PromptTokens is the estimated length of the prompt in tokens; at least 1.
	PromptTokens int
	// PromptBytes is the length of the text that was hashed, in bytes.
	PromptBytes int
	// MaxTokens is the cap on the output that the client set; 0 where it set none.
	MaxTokens int

	// Blocks are the chained hashes of the whole blocks of the prompt, first block
	// first: Blocks[i] covers everything up to and including block i. The key
	// includes model, adapter and cache salt (see package prefix).
	Blocks []uint64
	// BlockTokens is the estimated number of tokens in one block; > 0.
	BlockTokens float64

	// Session is a hash of a session hint (prompt_cache_key, a configured header);
	// 0 where there is none.
	Session uint64

	// Subset, where SubsetOnly is set, names the only endpoints that may be picked,
	// as host:port. SubsetOnly with an empty Subset means: none.
	Subset     []string
	SubsetOnly bool
	// Alternatives is how many further endpoints to name beside the pick.
	Alternatives int

	// Hold bounds how long the router's queue may hold the request, beside the pool's
	// own bound: whoever brought it waits no longer. 0: the pool's bound alone;
	// negative: it is not held there at all.
	Hold time.Duration

	// Arm names the version of a rollout that the request was given, as
	// name/baseline or name/canary; "" where there is none.
	Arm string
	// Via says why the request is not in its own pool; "" where it is.
	Via string

	// Private keeps the request out of every record of decisions.
	Private bool

	Arrived  Time
	Deadline Time // 0: none
}

// OutcomeKind says how an attempt or a request ended.
type OutcomeKind uint8

// Outcome kinds. Only OutcomeOK and OutcomeClientError are no fault of the fleet.
const (
	OutcomeOK           OutcomeKind = iota // complete answer
	OutcomeClientGone                      // the client left
	OutcomeClientError                     // 4xx from the engine: the client's own fault
	OutcomeEngineError                     // 5xx from the engine
	OutcomeConnectError                    // no connection: nothing was sent
	OutcomeBroken                          // EOF or reset before the first byte of the answer
	OutcomeTruncated                       // the stream broke after the first byte
	OutcomeTimeout                         // our own limit ran out
	OutcomeRefused                         // refused by us: no replica, quota, deadline
)

var outcomeNames = [...]string{
	"ok", "client_gone", "client_error", "engine_error", "connect_error",
	"broken", "truncated", "timeout", "refused",
}

func (k OutcomeKind) String() string { return nameOf(outcomeNames[:], int(k)) }

// ParseOutcome is the inverse of OutcomeKind.String.
func ParseOutcome(s string) (OutcomeKind, bool) {
	i, ok := indexOf(outcomeNames[:], s)
	return OutcomeKind(i), ok
}

// Outcome is what became of a request at one endpoint. Token counts are -1 where
// the engine did not tell.
type Outcome struct {
	Kind         OutcomeKind
	Status       int  // HTTP status the client got; 0 where none
	FirstToken   Time // 0: none was seen
	End          Time
	PromptTokens int // engine's count; -1 unknown
	CachedTokens int // engine's count; -1 unknown
	OutputTokens int // engine's count, else the tokens counted in the stream; -1 unknown
}

// UnknownTokens is what a token count says when the engine did not tell.
const UnknownTokens = -1
