// SPDX-License-Identifier: Apache-2.0

package console

// KVState is how the events of a replica's KV cache are heard.
type KVState struct {
	Source  string   `json:"source"`
	Fault   string   `json:"fault,omitempty"` // why they are not heard
	AgeMS   *float64 `json:"age_ms"`          // since the last one; null: none yet
	Batches uint64   `json:"batches"`
	// Gaps are times that events were lost, Healed those made good by a replay. Unsure
	// says that one was not, or that something came that could not be read: what the
	// replica is believed to cache counts half until enough answers agree with it, or
	// the replica restarts or clears its cache.
	Gaps      uint64 `json:"gaps"`
	Healed    uint64 `json:"healed"`
	Restarts  uint64 `json:"restarts"`
	Orphans   uint64 `json:"orphans"`       // blocks behind one that was never told of
	Malformed uint64 `json:"malformed"`     // messages and events that could not be read
	Tokens    int    `json:"cached_tokens"` // that the engine caches, by its events
	Unsure    bool   `json:"unsure,omitempty"`
}
