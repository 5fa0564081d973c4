// SPDX-License-Identifier: Apache-2.0

package fleet

// Endpoint is one place that a request can be sent to: a replica, or one rank of
// a data-parallel replica.
type Endpoint struct {
	ID     string // stable name, unique in its pool: "r0", "ns/pod", "ns/pod#1"
	URL    string // base URL without /v1, e.g. "http://127.0.0.1:8000"
	Role   Role
	Phase  Phase
	Since  Time     // when Phase began; 0 unknown
	Rank   int      // data-parallel rank, -1 where ranks are not endpoints
	Models []string // model names that the engine serves, as it lists them
	// AdapterNames are those of Models that are LoRA adapters on another one, where
	// the engine tells.
	AdapterNames []string
	// Reason says why Phase is what it is ("/health 503", "drained by operator").
	Reason string
	Engine string // "vllm", "sglang", "tgi", "llamacpp", "trtllm", "triton", "ollama"; "" unknown
	// MaxModelLen is the longest prompt plus answer that the engine tells of, in
	// tokens; 0 unknown.
	MaxModelLen int
	// Slow says that the endpoint is alive but its probes time out: busy, not dead.
	// It keeps PhaseReady; a policy may rank it lower.
	Slow bool
	// LifeAt is the last sign of life: an answered probe, a scrape, bytes of an
	// answer to a request; 0 unknown.
	LifeAt Time
}

// AdapterState is what an engine says about one LoRA adapter.
type AdapterState uint8

// Adapter states: where an adapter is at a replica.
const (
	AdapterAbsent   AdapterState = iota
	AdapterLoading               // asked for by this router, not yet there
	AdapterResident              // in a slot
	AdapterRunning               // in a slot and in use
	AdapterWaiting               // requests wait for a slot
	AdapterFailed                // the engine refused to load it
)

var adapterNames = [...]string{"absent", "loading", "resident", "running", "waiting", "failed"}

func (a AdapterState) String() string { return nameOf(adapterNames[:], int(a)) }

// Adapter is one adapter at one endpoint.
type Adapter struct {
	Name  string
	State AdapterState
	At    Time
	// Reason says why it failed, in the engine's own words; "" otherwise.
	Reason string
}

// Load is the part of a replica's load that one model or one rank carries.
type Load struct {
	Model   string // "" where the engine gives no model
	Rank    int    // data-parallel rank; 0 where there is one
	Running Value
	Waiting Value
	// Deferred, KVTokens and the counters are as in Signals; they are told where
	// several ranks are.
	Deferred     Value
	KVUsage      Value
	KVTokens     Value
	PromptTokens Value
	OutputTokens Value
	CacheQueries Value
	CacheHits    Value
	Preemptions  Value
	Finished     Value
}

// Note is a set of remarks on Signals.
type Note uint16

// Notes.
const (
	NoteOldNames    Note = 1 << iota // only deprecated metric names are exported
	NoteKVEstimated                  // KVUsage is an estimate from token budgets
	NotePercent                      // the hit rate came as a percentage
	NoteRanks                        // several ranks answer behind one address
	NoteTPOT                         // ITL is the mean time per output token of whole requests
	NoteNoMetrics                    // the engine exports no metrics
)

var noteNames = [...]string{
	"old metric names", "KV usage estimated", "hit rate in percent", "several ranks behind one address",
	"time per output token instead of inter-token latency", "no metrics",
}

// Strings lists the notes in words.
func (n Note) Strings() []string {
	var out []string
	for i, s := range noteNames {
		if n&(1<<i) != 0 {
			out = append(out, s)
		}
	}
	return out
}

// Signals is what an engine's own metrics said, each value with its age. Engines
// differ in what they tell; what they do not tell stays unknown.
type Signals struct {
	Running   Value // requests in the batch
	Waiting   Value // requests that wait for capacity; deferred by design excluded
	Deferred  Value // requests that the scheduler holds back on purpose
	KVUsage   Value // share of KV blocks in use, 0..1
	KVTokens  Value // capacity of the KV cache in tokens
	BlockSize Value // tokens per KV block

	// Counters since the engine's start. CacheQueries and CacheHits are in
	// tokens, or in blocks where CacheUnitBlocks is set (vLLM 0.8).
	PromptTokens    Value
	OutputTokens    Value
	CacheQueries    Value
	CacheHits       Value
	CacheUnitBlocks bool
	Preemptions     Value
	Finished        Value

	TTFTSum, TTFTCount   Value // seconds; the engine's own histogram
	ITLSum, ITLCount     Value
	QueueSum, QueueCount Value

	MaxSeqs   Value // the engine's cap on running requests
	LoRASlots Value
	Adapters  []Adapter
	StartTime Value // process start, Unix seconds
	Asleep    Value // 1 asleep, 0 awake
	// HitRate is the engine's own ratio of cached to queried tokens, 0..1, where it
	// tells a ratio instead of counters.
	HitRate Value
	// Loads splits the load by model and data-parallel rank; empty where the engine
	// tells only one of each. Ordered by model, then rank.
	Loads       []Load
	Notes       Note   // what a reader of the values should know
	ScrapedAt   Time   // last successful scrape; 0 never
	ScrapeError string // why the last scrape failed; "" when it did not
}

// EndpointState is one row of a Snapshot.
type EndpointState struct {
	Endpoint
	Signals
}

// Snapshot is what the last scrape tick said of one pool: immutable once built,
// versioned, every value with its age. Readers never write to it.
type Snapshot struct {
	Pool      string
	Version   uint64
	At        Time
	Endpoints []EndpointState // ordered by ID
}

// Count returns how many endpoints are in phase p.
func (s *Snapshot) Count(p Phase) int {
	n := 0
	for i := range s.Endpoints {
		if s.Endpoints[i].Phase == p {
			n++
		}
	}
	return n
}
