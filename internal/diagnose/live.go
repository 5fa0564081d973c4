// SPDX-License-Identifier: Apache-2.0

package diagnose

import "fmt"

// Live is the state of a running fleet in the terms of the rules. NaN is unknown.
type Live struct {
	Ready       bool
	Reason      string // why the router is not ready
	ConfigFile  string
	ConfigError string // of the last reload
	JournalLost uint64 // records that could not be written
	Pools       []LivePool
}

// LivePool is one pool of a Live.
type LivePool struct {
	Name                    string
	Arrived, Ended, Refused uint64
	Leaked                  uint64
	Held                    int
	Off                     []LiveGuard
	Replicas                []LiveReplica
}

// LiveGuard is a mechanism that the router switched off because it harmed.
type LiveGuard struct {
	Name            string
	TTFT, WithoutIt float64 // ms
	Requests        float64 // the evidence, which fades
	Times           int     // how often it was switched off
}

// finding is the code of what is said of it.
func (g *LiveGuard) finding() string {
	if g.Name == "adapter" {
		return "affinity-harms"
	}
	return "queue-harms"
}

// LiveReplica is one replica of a LivePool. Ages and times are in seconds.
type LiveReplica struct {
	ID, Phase, Reason, ScrapeError string
	PhaseS, SignalAge              float64
	InFlight                       int
	Running, Waiting, KV           float64
	Sent, Failed                   uint64
	Predicted, Observed            int64 // cached tokens
	Disagrees                      bool
	// PinsIgnored says that the engine computes requests at other data-parallel ranks than
	// they name: Pinned were looked at, PinsMet counted at their rank, PinsEven would be
	// if they were spread evenly.
	PinsIgnored               bool
	Pinned, PinsMet, PinsEven float64
}

// liveStale is the age in seconds from which a replica's own metrics say little.
const liveStale = 15

// loadingLong is the time in seconds after which a replica that is not ready is
// worth a finding: twice the longest start that is common.
const loadingLong = 1200

// Judge returns what is wrong with a running fleet, the greatest harm first.
func (l *Live) Judge() []Finding {
	var out []Finding
	if l.ConfigError != "" {
		f := New("config-rejected", "configuration", l.ConfigFile, 0)
		f.Evidence = []Evidence{{Name: "error", Value: l.ConfigError}}
		f.Message = "the last reload was rejected and the configuration before it runs on: " + l.ConfigError
		f.Remedy = "penstock config check " + l.ConfigFile
		out = append(out, f)
	}
	if l.JournalLost > 0 {
		f := New("journal-loses-records", "journal", "", 0)
		f.Evidence = []Evidence{Ev("lost", int(l.JournalLost), "records")}
		f.Message = Plural(int(l.JournalLost), "record") + " could not be written: explanations and replays will have gaps"
		f.Remedy = "Check the disk of the journal directory; penstock status shows the error."
		out = append(out, f)
	}
	for i := range l.Pools {
		out = append(out, l.Pools[i].judge()...)
	}
	SortByHarm(out)
	return out
}

func (p *LivePool) judge() []Finding {
	var out []Finding
	obj := "pool " + p.Name
	ready, full, failing := 0, 0, 0
	for i := range p.Replicas {
		r := &p.Replicas[i]
		if r.Phase == "ready" {
			ready++
			if r.Waiting > 0 && r.KV >= 0.9 {
				full++
			}
		} else if r.Phase == "failed" {
			failing++
		}
		out = append(out, r.judge(p.Name)...)
	}
	if ready == 0 {
		f := New("no-ready-replica", obj, "", 0)
		f.Evidence = []Evidence{Ev("replicas", len(p.Replicas), ""), Ev("failed", failing, ""), Ev("held", p.Held, "requests")}
		f.Message = "no replica of the pool is ready: requests wait or are refused"
		if len(p.Replicas) == 0 {
			f.Message = "the pool has no replica at all: requests wait or are refused"
		}
		f.Remedy = "penstock status shows the phase and reason of each; penstock diagnose start LOG breaks a slow start down."
		out = append(out, f)
	}
	if ready > 0 && full == ready {
		f := New("fleet-full", obj, "", 0)
		f.Evidence = []Evidence{Ev("ready", ready, "replicas"), Ev("full", full, "replicas"), Ev("held", p.Held, "requests")}
		f.Message = fmt.Sprintf("every ready replica has requests waiting and a KV cache above 90 %%: more replicas are needed, or less admitted")
		f.Remedy = "penstock diagnose scaling says why the count does not grow."
		out = append(out, f)
	}
	if p.Arrived >= 100 && p.Refused*20 >= p.Arrived {
		f := New("requests-refused", obj, "", 0)
		f.Evidence = []Evidence{Ev("refused", int(p.Refused), "requests"), Ev("arrived", int(p.Arrived), "requests")}
		f.Message = fmt.Sprintf("%d of %d requests were refused since the start", p.Refused, p.Arrived)
		f.Remedy = "penstock explain --last --filter kind=refused"
		out = append(out, f)
	}
	for _, g := range p.Off {
		f := New(g.finding(), obj, "", 0)
		f.Evidence = []Evidence{Ev("ttft", g.TTFT, "ms"), Ev("without_it", g.WithoutIt, "ms"), Ev("requests", int(g.Requests), ""), Ev("switched_off", g.Times, "times")}
		f.Message = fmt.Sprintf("%s is off because it harmed: requests had their first token after %.0f ms and were predicted to have it after %.0f ms without it", g.Name, g.TTFT, g.WithoutIt)
		f.Remedy = "It is tried again by itself. Give the engine's real profile (penstock calibrate), or set route.queue: off."
		if f.Code == "affinity-harms" {
			f.Message = fmt.Sprintf("requests do not wait for the replica that has their LoRA adapter, because that harmed: they had their first token after %.0f ms and were predicted to have it after %.0f ms elsewhere", g.TTFT, g.WithoutIt)
			f.Remedy = "It is tried again by itself. Give a profile of the engine whose lora_load is what a load takes there."
		}
		out = append(out, f)
	}
	if p.Leaked > 0 {
		f := New("accounting-healed", obj, "", 0)
		f.Evidence = []Evidence{Ev("leaked", int(p.Leaked), "requests")}
		f.Message = Plural(int(p.Leaked), "request") + " never reported its end and was written off; until then its replica looked busier than it was"
		f.Remedy = "A count that grows means that a proxy or picker drops the end of requests: look at its response_body_mode."
		out = append(out, f)
	}
	return out
}

func (r *LiveReplica) judge(pool string) []Finding {
	var out []Finding
	obj := "replica " + pool + "/" + r.ID
	switch {
	case r.Phase == "failed":
		f := New("replica-failed", obj, "", 0)
		f.Evidence = []Evidence{{Name: "reason", Value: nilIfEmpty(r.Reason)}, Ev("for", r.PhaseS, "s")}
		f.Message = "the replica is failed: " + orUnknown(r.Reason)
		f.Remedy = "Look at its log; it takes requests again as soon as it answers."
		out = append(out, f)
	case (r.Phase == "loading" || r.Phase == "pending" || r.Phase == "pulling" || r.Phase == "warming") && r.PhaseS > loadingLong:
		f := New("replica-overdue", obj, "", 0)
		f.Evidence = []Evidence{{Name: "phase", Value: r.Phase}, Ev("for", r.PhaseS, "s"), {Name: "reason", Value: nilIfEmpty(r.Reason)}}
		f.Message = fmt.Sprintf("the replica has been %s for %s: it is overdue and counts as no capacity", r.Phase, Seconds(r.PhaseS))
		f.Remedy = "kubectl describe pod; penstock diagnose start LOG --events FILE"
		out = append(out, f)
	}
	if r.Phase == "ready" && r.SignalAge > liveStale {
		f := New("signals-stale", obj, "", 0)
		f.Evidence = []Evidence{Ev("age", r.SignalAge, "s"), {Name: "error", Value: nilIfEmpty(r.ScrapeError)}}
		f.Message = fmt.Sprintf("the replica's own metrics are %s old: the router carries it on its own accounting alone", Seconds(r.SignalAge))
		if r.ScrapeError != "" {
			f.Message += " (" + r.ScrapeError + ")"
		}
		f.Remedy = "Check that /metrics of the replica answers in time."
		out = append(out, f)
	}
	if r.Disagrees {
		f := New("index-disagrees", obj, "", 0)
		f.Evidence = []Evidence{Ev("predicted_cached", int(r.Predicted), "tokens"), Ev("observed_cached", int(r.Observed), "tokens")}
		f.Message = fmt.Sprintf("the index predicted %d cached tokens there and the engine reported %d", r.Predicted, r.Observed)
		f.Remedy = "A restart in place or another cache salt; the believed capacity corrects itself within some requests."
		out = append(out, f)
	}
	if r.PinsIgnored {
		f := New("rank-pins-ignored", obj, "", 0)
		f.Evidence = []Evidence{Ev("pinned", r.Pinned, "requests"), Ev("counted_there", r.PinsMet, "requests"), Ev("spread_evenly", r.PinsEven, "requests")}
		f.Message = fmt.Sprintf("of %.0f requests that named a data-parallel rank the engine counted %.0f there, and would have counted %.0f if it spread them evenly: the replica is one candidate, and its ranks' caches are found by luck",
			r.Pinned, r.PinsMet, r.PinsEven)
		f.Remedy = "See that nothing between router and engine drops X-data-parallel-rank and that the engine's version reads it; or give each rank an address of its own."
		out = append(out, f)
	}
	if r.Sent >= 50 && r.Failed*10 >= r.Sent {
		f := New("replica-errors", obj, "", 0)
		f.Evidence = []Evidence{Ev("sent", int(r.Sent), "requests"), Ev("failed", int(r.Failed), "requests")}
		f.Message = fmt.Sprintf("%d of %d requests that were sent there failed", r.Failed, r.Sent)
		f.Remedy = "penstock explain --last --filter 'replica=" + r.ID + " kind!=ok'"
		out = append(out, f)
	}
	return out
}

func orUnknown(s string) string {
	if s == "" {
		return "the reason is not known"
	}
	return s
}
