// SPDX-License-Identifier: Apache-2.0

package route

import "time"

// Schema is the schema name of a Record. Fields may be added under the same name;
// none changes its meaning or goes.
const Schema = "penstock/decision/v1"

// Record is a decision and its outcome as JSON: what explain prints, the journal
// stores and replay reads. Pointers are null where a value is unknown or does not
// apply. It never holds prompt text.
type Record struct {
	Schema  string    `json:"schema"`
	ID      string    `json:"id"`
	Time    time.Time `json:"time"`
	Pool    string    `json:"pool,omitempty"`
	Request Asked     `json:"request"`

	Policy        string     `json:"policy"`
	Snapshot      SnapshotID `json:"snapshot"`
	Chosen        string     `json:"chosen"` // endpoint ID, "" none
	Why           string     `json:"why,omitempty"`
	DemotedByLoad bool       `json:"demoted_by_load,omitempty"`
	// MarginMS is how much dearer the next best candidate was.
	MarginMS        *float64         `json:"margin_ms"`
	PredictedTTFTMS *float64         `json:"predicted_ttft_ms,omitempty"`
	Tie             *Tie             `json:"tie,omitempty"`
	Candidates      []PricedEndpoint `json:"candidates"`
	// CandidatesOmitted counts candidates left out of a large fleet's record; the
	// cheapest ones and the chosen one are always in.
	CandidatesOmitted int      `json:"candidates_omitted,omitempty"`
	WouldChangeIf     []string `json:"would_change_if"`
	// LeftOut names terms that were left out of the price: they were found to harm, or a
	// measurement leaves them out.
	LeftOut  []string     `json:"left_out,omitempty"`
	Shadow   *Shadow      `json:"shadow,omitempty"`   // what route.shadow would have picked
	Pressure *float64     `json:"pressure,omitempty"` // requests expected per request in service
	Engine   *EngineModel `json:"engine,omitempty"`
	Outcome  *Result      `json:"outcome,omitempty"` // nil while the request runs, and in a preview
}

// Shadow is the pick of a policy without effect.
type Shadow struct {
	Policy  string   `json:"policy"`
	Chosen  string   `json:"chosen"`
	Agrees  bool     `json:"agrees"`
	ExtraMS *float64 `json:"extra_cost_ms"` // predicted cost of its pick beyond that of the one made; null: no price
}

// Asked is the request of a Record.
type Asked struct {
	Tenant       string `json:"tenant"`
	Model        string `json:"model"`
	Adapter      string `json:"adapter"`
	PromptTokens int    `json:"prompt_tokens"` // estimate at the time of the decision
	MaxTokens    int    `json:"max_tokens,omitempty"`
	Surface      string `json:"surface,omitempty"`
	Class        int    `json:"class,omitempty"`
	Stream       bool   `json:"stream,omitempty"`
	Blocks       int    `json:"blocks,omitempty"` // whole blocks of the prompt that were hashed
	Arm          string `json:"arm,omitempty"`    // version of a rollout: name/baseline, name/canary, name/shadow
	Via          string `json:"via,omitempty"`    // why it is not in its own pool
}

// SnapshotID names the snapshot that a decision saw.
type SnapshotID struct {
	Version uint64   `json:"version"`
	AgeMS   *float64 `json:"age_ms"`
}

// Tie says how candidates of equal cost were told apart.
type Tie struct {
	Candidates int    `json:"candidates"`
	Key        string `json:"key"` // keyed hash, hexadecimal
}

// EngineModel are the coefficients that the price was computed with.
type EngineModel struct {
	BaseMS      float64 `json:"base_ms"`
	TokenUS     float64 `json:"token_us"`
	AttentionNS float64 `json:"attention_ns"`
	SequenceUS  float64 `json:"sequence_us"`
	ContextNS   float64 `json:"context_ns"`
	ChunkTokens float64 `json:"chunk_tokens"`
	MeanOutput  float64 `json:"mean_output_tokens"`
	Exchange    float64 `json:"exchange"`
	HitShare    float64 `json:"hit_share"`
}

// PricedEndpoint is one candidate of a Record.
type PricedEndpoint struct {
	Endpoint string   `json:"endpoint"`
	Dropped  string   `json:"dropped,omitempty"` // why it was no candidate
	CostMS   *float64 `json:"cost_ms"`           // null where it was dropped
	Terms    []Part   `json:"terms,omitempty"`
	Signals  []Signal `json:"signals,omitempty"`
}

// Part is one term of a cost.
type Part struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// Signal is one input of a cost. Value is null where it was unknown; AgeMS is 0
// for the router's own accounting.
type Signal struct {
	Name  string   `json:"name"`
	Value *float64 `json:"value"`
	Unit  string   `json:"unit"`
	AgeMS *float64 `json:"age_ms"`
}

// Result is what became of the request.
type Result struct {
	Status int    `json:"status"` // HTTP status; 0 none
	Kind   string `json:"kind"`   // a name of fleet.OutcomeKind
	// TTFTMS and E2EMS count from the arrival of the request.
	TTFTMS                *float64      `json:"ttft_ms"`
	E2EMS                 *float64      `json:"e2e_ms"`
	QueueMS               float64       `json:"queue_ms"`      // held by the router
	PromptTokens          *int          `json:"prompt_tokens"` // the engine's counts
	CachedTokens          *int          `json:"cached_tokens"`
	OutputTokens          *int          `json:"output_tokens"`
	PredictedCachedTokens int           `json:"predicted_cached_tokens"`
	Attempts              []AttemptMade `json:"attempts,omitempty"` // failed ones, in order
	MaybeDuplicate        bool          `json:"maybe_duplicate,omitempty"`
}

// AttemptMade is one failed attempt of a Result.
type AttemptMade struct {
	Endpoint string  `json:"endpoint"`
	Kind     string  `json:"kind"`
	AfterMS  float64 `json:"after_ms"` // since the arrival of the request
}
