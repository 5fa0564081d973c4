// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/journal"
)

// StatusSchema is the schema name of a Status.
const StatusSchema = "penstock/status/v1"

// Status is the state of a running Penstock: what `penstock status -o json`
// prints. Values are null where they are unknown.
type Status struct {
	Schema  string        `json:"schema"`
	Time    time.Time     `json:"time"`
	Version string        `json:"version"`
	Router  string        `json:"router,omitempty"`
	UptimeS float64       `json:"uptime_s"`
	Ready   bool          `json:"ready"`
	Reason  string        `json:"reason,omitempty"` // why it is not ready
	Config  ConfigState   `json:"config"`
	Listen  ListenState   `json:"listen"`
	Pools   []PoolStatus  `json:"pools"`
	Journal journal.Stats `json:"journal"`
	Peers   *PeersStatus  `json:"peers,omitempty"` // absent: this router shares with nobody
}

// ConfigState tells which configuration runs and how the last reload went.
type ConfigState struct {
	File       string     `json:"file,omitempty"`
	Digest     string     `json:"digest"`
	ReloadedAt *time.Time `json:"reloaded_at,omitempty"`
	ReloadOK   bool       `json:"reload_ok"`
	Error      string     `json:"error,omitempty"`
	// Restart lists changes of the file that wait for a restart.
	Restart []string `json:"restart,omitempty"`
	Inert   []string `json:"inert,omitempty"` // keys without effect in this build
}

// ListenState holds the addresses that are in use.
type ListenState struct {
	HTTP  string `json:"http"`
	Admin string `json:"admin,omitempty"`
	EPP   string `json:"epp,omitempty"` // endpoint picker, host:port
	TLS   bool   `json:"tls,omitempty"`
}

// PoolStatus is one pool.
type PoolStatus struct {
	Name     string           `json:"name"`
	Policy   string           `json:"policy"`
	Models   []string         `json:"models"`
	Source   string           `json:"source,omitempty"` // where replicas are found
	Control  *ControlPlane    `json:"control_plane,omitempty"`
	Snapshot *SnapshotState   `json:"snapshot"` // null before the first
	Replicas int              `json:"replicas"`
	Ready    int              `json:"ready"`
	Slow     int              `json:"slow"`
	InFlight int              `json:"in_flight"`
	Held     int              `json:"held"` // wait in the router
	Counters Counters         `json:"counters"`
	HitRatio *float64         `json:"hit_ratio"` // engines' own counters, all replicas together
	Replica  []ReplicaStatus  `json:"endpoints"`
	Engine   *EngineInUse     `json:"engine,omitempty"`
	Adapters []AdapterSummary `json:"adapters,omitempty"`
	Shadow   *ShadowState     `json:"shadow,omitempty"`
	Queue    *QueueState      `json:"queue,omitempty"`
	// Verdict says in a sentence whether users are fine and what binds; null before
	// the first look.
	Verdict *PoolVerdict `json:"verdict,omitempty"`
	Recent  *Recent      `json:"recent,omitempty"` // the last minute
	SLO     *SLOState    `json:"slo,omitempty"`
}

// ControlPlane is what is known of the control plane that lists the replicas of a
// pool. While it does not answer, the last list stays in use.
type ControlPlane struct {
	AgeMS *float64 `json:"age_ms"`          // since it last answered; null: never yet
	Fault string   `json:"fault,omitempty"` // why it does not answer
	// FailureMode is what an InferencePool asks of the proxy while the picker is
	// down; "FailClose (not set)" where it says nothing.
	FailureMode string `json:"failure_mode,omitempty"`
	Picker      string `json:"picker,omitempty"` // Service and port of the InferencePool's endpoint picker
}

// SnapshotState is the last snapshot.
type SnapshotState struct {
	Version uint64  `json:"version"`
	AgeMS   float64 `json:"age_ms"`
}

// Counters count since the start.
type Counters struct {
	Arrived       uint64 `json:"arrived"`
	Sent          uint64 `json:"sent"` // attempts
	Ended         uint64 `json:"ended"`
	Refused       uint64 `json:"refused"`
	Retried       uint64 `json:"retried"`
	DemotedByLoad uint64 `json:"demoted_by_load"`
	Leaked        uint64 `json:"leaked"`
}

// EngineInUse are the coefficients that the picker prices with.
type EngineInUse struct {
	BaseMS      float64 `json:"base_ms"`
	TokenUS     float64 `json:"token_us"`
	AttentionNS float64 `json:"attention_ns"`
	SequenceUS  float64 `json:"sequence_us"`
	ContextNS   float64 `json:"context_ns"`
}

// Reading is a value with its age.
type Reading struct {
	Value float64 `json:"value"`
	AgeMS float64 `json:"age_ms"`
}

// ReplicaStatus is one replica: what it says of itself and what this router has
// there.
type ReplicaStatus struct {
	ID     string   `json:"id"`
	URL    string   `json:"url"`
	Engine string   `json:"engine,omitempty"`
	Role   string   `json:"role"`
	Rank   *int     `json:"rank,omitempty"`
	Phase  string   `json:"phase"`
	PhaseS *float64 `json:"phase_s"` // seconds in this phase
	Reason string   `json:"reason,omitempty"`
	Slow   bool     `json:"slow,omitempty"`
	Models []string `json:"models"`

	InFlight int `json:"in_flight"` // own accounting, always fresh
	// PeerInFlight and PeerQueued are requests of other routers, as they told.
	PeerInFlight int     `json:"peer_in_flight,omitempty"`
	PeerQueued   int     `json:"peer_queued,omitempty"`
	Unstarted    int     `json:"unstarted"`
	Queued       int     `json:"queued"`
	PendingMS    float64 `json:"pending_ms"`
	Own          *Own    `json:"own,omitempty"`
	// KVEvents tells how the events of its KV cache are heard; absent: it has none.
	KVEvents *KVState `json:"kv_events,omitempty"`

	// Ranks is what this router has at each data-parallel rank; absent where the
	// replica is one candidate. Pins tells whether requests are computed where they ask.
	Ranks []RankStatus `json:"ranks,omitempty"`
	Pins  *PinStatus   `json:"pins,omitempty"`

	Running  *Reading `json:"running"` // the replica's own metrics
	Waiting  *Reading `json:"waiting"`
	Deferred *Reading `json:"deferred,omitempty"`
	KVUsage  *Reading `json:"kv_usage"`
	KVTokens *Reading `json:"kv_tokens"`
	HitRatio *Reading `json:"hit_ratio"`
	// SignalAgeMS is the age of the last successful scrape; null: none yet.
	SignalAgeMS *float64      `json:"signal_age_ms"`
	ScrapeError string        `json:"scrape_error,omitempty"`
	StartTime   *time.Time    `json:"start_time,omitempty"`
	Notes       []string      `json:"notes,omitempty"`
	Loads       []LoadState   `json:"loads,omitempty"`
	Adapters    []AdapterSeen `json:"adapters,omitempty"`
	LoRASlots   *Reading      `json:"lora_slots,omitempty"`
	// ListedAdapters are those of Models that are adapters, in use or not.
	ListedAdapters []string `json:"listed_adapters,omitempty"`
}

// Own is more of the router's own accounting at a replica.
type Own struct {
	Sent              uint64 `json:"sent"`
	Failed            uint64 `json:"failed"`
	Restarts          uint64 `json:"restarts"`
	Leaked            uint64 `json:"leaked"`
	PredictedCached   int64  `json:"predicted_cached_tokens"`
	ObservedCached    int64  `json:"observed_cached_tokens"`
	IndexDisagreement bool   `json:"index_disagreement,omitempty"`
	// Parallel says that it was found to compute several prompts at a time, so that
	// nothing is held for it in the router.
	Parallel    bool    `json:"parallel,omitempty"`
	Slowness    float64 `json:"slowness"`
	Dropped     string  `json:"dropped,omitempty"` // why it takes nothing now
	CacheBlocks int     `json:"cache_blocks"`
	CacheCap    int     `json:"cache_capacity"`
}

// LoadState is the load of one model or rank of a replica.
type LoadState struct {
	Model   string   `json:"model,omitempty"`
	Rank    int      `json:"rank"`
	Running *Reading `json:"running"`
	Waiting *Reading `json:"waiting"`
	KVUsage *Reading `json:"kv_usage"`
}

// AdapterSeen is one adapter at one replica.
type AdapterSeen struct {
	Name  string  `json:"name"`
	State string  `json:"state"`
	AgeMS float64 `json:"age_ms"` // since the state was seen
	// Reason is why it failed, in the engine's own words.
	Reason string `json:"reason,omitempty"`
}

// AdapterSummary is one adapter over the replicas of a pool.
type AdapterSummary struct {
	Name    string        `json:"name"`
	At      []AdapterHere `json:"at"`
	Listed  int           `json:"listed"`  // replicas that list it as a model
	Holders int           `json:"holders"` // replicas that hold it in a slot, as far as known
}

// AdapterHere is where an adapter is.
type AdapterHere struct {
	Replica string  `json:"replica"`
	State   string  `json:"state"`
	AgeMS   float64 `json:"age_ms"`
	Reason  string  `json:"reason,omitempty"`
}

func round3(v float64) float64 { return math.Round(v*1e3) / 1e3 }

func reading(v fleet.Value, now fleet.Time) *Reading {
	age, ok := v.Age(now)
	if !ok {
		return nil
	}
	return &Reading{Value: math.Round(v.V*1e6) / 1e6, AgeMS: round3(age.Seconds() * 1e3)}
}

// poolStatus describes one pool at now.
func poolStatus(p Pool, now fleet.Time) PoolStatus {
	st := p.Flow.Stats()
	t := st.Totals
	out := PoolStatus{
		Name: p.Name, Policy: t.Policy, Models: orEmpty(p.Models), Source: p.Source,
		InFlight: t.InFlight, Held: t.Held,
		Counters: Counters{
			Arrived: t.Arrived, Sent: t.Sent, Ended: t.Ended, Refused: t.Refused, Retried: t.Retried,
			DemotedByLoad: t.DemotedByLoad, Leaked: t.Leaked,
		},
		Replica: []ReplicaStatus{},
	}
	out.Shadow, out.Queue = shadowState(&st.Shadow), queueState(&t)
	if p.Control != nil {
		out.Control = p.Control()
	}
	if e := t.Engine; e.PTok > 0 {
		out.Engine = &EngineInUse{
			BaseMS: round3(e.Base * 1e3), TokenUS: round3(e.PTok * 1e6), AttentionNS: round3(e.PAttn * 1e9),
			SequenceUS: round3(e.DSeq * 1e6), ContextNS: round3(e.DCtx * 1e9),
		}
	}
	s := p.Observer.Snapshot()
	if s == nil {
		return out
	}
	out.Snapshot = &SnapshotState{Version: s.Version, AgeMS: round3(now.Sub(s.At).Seconds() * 1e3)}
	out.Replicas, out.Ready = len(s.Endpoints), s.Count(fleet.PhaseReady)
	var kv map[string]*KVState
	if p.KV != nil {
		kv = p.KV()
	}
	loads := map[string]*dispatch.EndpointLoad{}
	for i := range st.Endpoints {
		loads[st.Endpoints[i].Endpoint] = &st.Endpoints[i]
	}
	var hits, queries float64
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		r := replicaStatus(e, loads[e.ID], now)
		if k, l := kv[e.ID], loads[e.ID]; k != nil {
			k.Unsure = k.Unsure && (l == nil || l.CacheUnsure) // answers may have cleared it up
			r.KVEvents = k
		}
		if e.Slow {
			out.Slow++
		}
		if e.CacheQueries.OK() && e.CacheHits.OK() && !e.CacheUnitBlocks {
			hits, queries = hits+e.CacheHits.V, queries+e.CacheQueries.V
		}
		out.Replica = append(out.Replica, r)
	}
	if queries > 0 {
		v := math.Round(hits/queries*1e6) / 1e6
		out.HitRatio = &v
	}
	out.Adapters = summarize(out.Replica, p.Adapters)
	return out
}

// orEmpty keeps lists from becoming null in JSON.
func orEmpty(l []string) []string {
	if l == nil {
		return []string{}
	}
	return l
}

func replicaStatus(e *fleet.EndpointState, load *dispatch.EndpointLoad, now fleet.Time) ReplicaStatus {
	r := ReplicaStatus{
		ID: e.ID, URL: e.URL, Engine: e.Engine, Role: e.Role.String(), Phase: e.Phase.String(), Reason: e.Reason,
		Slow: e.Slow, Models: orEmpty(e.Models),
		Running: reading(e.Running, now), Waiting: reading(e.Waiting, now), Deferred: reading(e.Deferred, now),
		KVUsage: reading(e.KVUsage, now), KVTokens: reading(e.KVTokens, now),
		HitRatio: reading(hitRatio(e), now), ScrapeError: e.ScrapeError, Notes: e.Notes.Strings(),
		LoRASlots: reading(e.LoRASlots, now), ListedAdapters: e.AdapterNames,
	}
	if e.Role != fleet.RoleBoth {
		r.Notes = append(r.Notes, "gets no requests: role "+r.Role+" of a split pool, which is not served")
	}
	if e.Rank >= 0 {
		rank := e.Rank
		r.Rank = &rank
	}
	if e.Since != 0 {
		v := round3(now.Sub(e.Since).Seconds())
		r.PhaseS = &v
	}
	if e.ScrapedAt != 0 {
		v := round3(now.Sub(e.ScrapedAt).Seconds() * 1e3)
		r.SignalAgeMS = &v
	}
	if e.StartTime.OK() {
		t := time.UnixMilli(int64(e.StartTime.V * 1e3)).UTC()
		r.StartTime = &t
	}
	for _, l := range e.Loads {
		r.Loads = append(r.Loads, LoadState{
			Model: l.Model, Rank: l.Rank,
			Running: reading(l.Running, now), Waiting: reading(l.Waiting, now), KVUsage: reading(l.KVUsage, now),
		})
	}
	for _, a := range e.Adapters {
		r.Adapters = append(r.Adapters, AdapterSeen{Name: a.Name, State: a.State.String(), AgeMS: round3(now.Sub(a.At).Seconds() * 1e3), Reason: a.Reason})
	}
	if load != nil {
		r.own(load)
	}
	return r
}

func (r *ReplicaStatus) own(l *dispatch.EndpointLoad) {
	r.PeerInFlight, r.PeerQueued = l.PeerInFlight, l.PeerQueued
	r.InFlight, r.Unstarted, r.Queued, r.PendingMS = l.InFlight, l.Unstarted, l.Queued, round3(l.PendingMS)
	r.Own = &Own{
		Sent: l.Sent, Failed: l.Failed, Restarts: l.Restarts, Leaked: l.Leaked,
		PredictedCached: l.PredictedCached, ObservedCached: l.ObservedCached, IndexDisagreement: l.IndexDisagreement,
		Parallel: l.Overlaps,
		Slowness: round3(l.Slowness), Dropped: l.Drop.String(), CacheBlocks: l.CacheBlocks, CacheCap: l.CacheCap,
	}
	r.ranks(l)
}

// RankStatus is one data-parallel rank that is a candidate of its own.
type RankStatus struct {
	Rank            int     `json:"rank"`
	InFlight        int     `json:"in_flight"`
	Unstarted       int     `json:"unstarted"`
	Queued          int     `json:"queued"`
	PendingMS       float64 `json:"pending_ms"`
	Sent            uint64  `json:"sent"`
	CacheBlocks     int     `json:"cache_blocks"`
	CacheCap        int     `json:"cache_cap"`
	PredictedCached int64   `json:"predicted_cached_tokens"`
	ObservedCached  int64   `json:"observed_cached_tokens"`
}

// PinStatus says whether a replica computes requests at the rank that they name: of
// Checked requests the engine counted Met there, and would have counted Chance if it
// spread them evenly.
type PinStatus struct {
	Verdict string  `json:"verdict"` // unproven, honoured, ignored
	Checked float64 `json:"checked"`
	Met     float64 `json:"met"`
	Chance  float64 `json:"chance"`
}

// ranks fills in what is known of data-parallel ranks.
func (r *ReplicaStatus) ranks(l *dispatch.EndpointLoad) {
	for i := range l.Ranks {
		o := &l.Ranks[i]
		r.Ranks = append(r.Ranks, RankStatus{
			Rank: o.Rank, InFlight: o.InFlight, Unstarted: o.Unstarted, Queued: o.Queued, PendingMS: round3(o.PendingMS), Sent: o.Sent,
			CacheBlocks: o.CacheBlocks, CacheCap: o.CacheCap, PredictedCached: o.PredictedCached, ObservedCached: o.ObservedCached,
		})
	}
	p := l.Pins
	if p == nil {
		return
	}
	r.Pins = &PinStatus{Verdict: p.Verdict.String(), Checked: p.Checked, Met: p.Met, Chance: round3(p.Chance)}
	if p.Verdict == dispatch.PinsIgnored {
		r.Notes = append(r.Notes, fmt.Sprintf("ignores X-data-parallel-rank: of %.0f requests that named a rank %.0f were counted there, %.0f if spread evenly; it is one candidate",
			p.Checked, p.Met, p.Chance))
	}
}

// hitRatio is the share of prompt tokens that a replica found in its cache, since
// its start.
func hitRatio(e *fleet.EndpointState) fleet.Value {
	if e.CacheQueries.OK() && e.CacheHits.OK() {
		if e.CacheQueries.V == 0 {
			return fleet.Value{}
		}
		return fleet.Known(e.CacheHits.V/e.CacheQueries.V, e.CacheQueries.At)
	}
	return e.HitRate
}

// summarize lists the adapters of a pool: those of the configuration first, in its
// order, then those that replicas showed or list.
func summarize(replicas []ReplicaStatus, configured []string) []AdapterSummary {
	var out []AdapterSummary
	find := func(name string) *AdapterSummary {
		for i := range out {
			if out[i].Name == name {
				return &out[i]
			}
		}
		out = append(out, AdapterSummary{Name: name, At: []AdapterHere{}})
		return &out[len(out)-1]
	}
	for _, name := range configured {
		find(name)
	}
	for i := range replicas {
		r := &replicas[i]
		for _, a := range r.Adapters {
			s := find(a.Name)
			s.At = append(s.At, AdapterHere{Replica: r.ID, State: a.State, AgeMS: a.AgeMS, Reason: a.Reason})
			if a.State == fleet.AdapterRunning.String() || a.State == fleet.AdapterResident.String() {
				s.Holders++
			}
		}
	}
	for i := range replicas {
		for _, name := range replicas[i].ListedAdapters {
			find(name)
		}
	}
	for i := range out {
		for k := range replicas {
			for _, m := range replicas[k].Models {
				if m == out[i].Name {
					out[i].Listed++
				}
			}
		}
	}
	return out
}
