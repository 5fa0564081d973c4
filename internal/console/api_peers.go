// SPDX-License-Identifier: Apache-2.0

package console

import "net/http"

// PeersStatus is what this router and the others that share the traffic know of each
// other.
type PeersStatus struct {
	Listen string       `json:"listen,omitempty"` // where others dial; "": this router is told nothing
	Fault  string       `json:"fault,omitempty"`  // of the last look-up of a name
	Peers  []PeerStatus `json:"peers"`
}

// PeerStatus is one other router.
type PeerStatus struct {
	Router  string `json:"router,omitempty"`  // absent while it was not reached
	Address string `json:"address,omitempty"` // that this router dials
	// Telling says that it hears what this router sends, Heard that it tells the same.
	Telling  bool     `json:"telling"`
	Heard    bool     `json:"heard"`
	Fault    string   `json:"fault,omitempty"`
	AgeMS    *float64 `json:"age_ms"`    // since it was heard last; null: never
	InFlight int      `json:"in_flight"` // of its requests, as it told
	Held     int      `json:"held"`
	Notes    uint64   `json:"notes"` // heard
	Resyncs  uint64   `json:"resyncs"`
	Unknown  uint64   `json:"unknown_endpoints"` // notes about replicas that are not listed here
	// OtherKey says that it hashes prompts with another key: its load counts, what it
	// caches does not.
	OtherKey bool `json:"other_key,omitempty"`
}

// PeersSchema is the schema name of the answer of /api/v1/peers.
const PeersSchema = "penstock/peers/v1"

func (s *Server) peers(w http.ResponseWriter, _ *http.Request) {
	var p *PeersStatus
	if s.o.Peers != nil {
		p = s.o.Peers()
	}
	if p == nil {
		p = &PeersStatus{Peers: []PeerStatus{}}
	}
	writeJSON(w, http.StatusOK, struct {
		Schema string `json:"schema"`
		*PeersStatus
	}{PeersSchema, p})
}
