// SPDX-License-Identifier: Apache-2.0

package routing

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/route"
)

// Part is a piece of the time of one request.
type Part struct {
	Name string  `json:"name"`
	MS   float64 `json:"ms"`
}

// RequestReport says what one request's time went into and what went wrong.
type RequestReport struct {
	Schema   string             `json:"schema"`
	ID       string             `json:"id"`
	Parts    []Part             `json:"parts"`
	Findings []diagnose.Finding `json:"findings"`
}

// Request judges one record.
func Request(r *route.Record) *RequestReport {
	rep := &RequestReport{Schema: diagnose.Schema, ID: r.ID, Parts: []Part{}}
	var out []diagnose.Finding
	o := r.Outcome
	if o == nil {
		rep.Findings = diagnose.NewReport(1, nil).Findings
		return rep
	}
	add := func(code, msg, remedy string, ev ...diagnose.Evidence) {
		f := diagnose.New(code, "request "+r.ID, "", 0)
		f.Message, f.Remedy, f.Evidence = msg, remedy, ev
		out = append(out, f)
	}
	ttft, e2e := orNaN(o.TTFTMS), orNaN(o.E2EMS)
	part := func(name string, ms float64) {
		if known(ms) && ms > 0 {
			rep.Parts = append(rep.Parts, Part{name, diagnose.Round(ms, 1)})
		}
	}
	part("held in the router", o.QueueMS)
	part("first token at the replica", ttft-o.QueueMS)
	part("rest of the answer", e2e-ttft)
	switch o.Kind {
	case "ok", "client_gone", "client_error":
	default:
		add("request-failed", fmt.Sprintf("it ended as %s with status %d at %s", o.Kind, o.Status, orNone(r.Chosen)), "penstock status shows the replica; its own log has the reason.",
			diagnose.Evidence{Name: "kind", Value: o.Kind}, diagnose.Ev("status", o.Status, ""), diagnose.Ev("after", e2e, "ms"))
	}
	if len(o.Attempts) > 0 {
		at := o.Attempts[0]
		add("request-retried", fmt.Sprintf("%s failed before the first byte (%s after %s ms); it was sent again", at.Endpoint, at.Kind, diagnose.Num(at.AfterMS)),
			"Look at "+at.Endpoint+".", diagnose.Ev("attempts_failed", len(o.Attempts), ""), diagnose.Evidence{Name: "endpoint", Value: at.Endpoint})
	}
	if known(ttft) && o.QueueMS >= 0.5*ttft && o.QueueMS > 250 {
		add("request-held", fmt.Sprintf("%s of %s to the first token were spent waiting in the router: no replica had room", diagnose.Seconds(o.QueueMS/1000), diagnose.Seconds(ttft/1000)),
			"penstock diagnose scaling says why there are no more replicas; a higher class goes first.", diagnose.Ev("held", o.QueueMS, "ms"), diagnose.Ev("ttft", ttft, "ms"))
	}
	cached, prompt := intOrNaN(o.CachedTokens), intOrNaN(o.PromptTokens)
	if known(cached) && known(prompt) && float64(o.PredictedCachedTokens) >= 0.3*prompt && cached < 0.5*float64(o.PredictedCachedTokens) {
		add("request-missed-cache", fmt.Sprintf("%d of %s prompt tokens were predicted cached at %s and %s were", o.PredictedCachedTokens, diagnose.Num(prompt), orNone(r.Chosen), diagnose.Num(cached)),
			"A restart in place, an eviction or another cache salt: penstock diagnose routing", diagnose.Ev("predicted_cached", o.PredictedCachedTokens, "tokens"), diagnose.Ev("cached", cached, "tokens"), diagnose.Ev("prompt", prompt, "tokens"))
	}
	if p := orNaN(r.PredictedTTFTMS); known(p) && known(ttft) && ttft > 3*p && ttft-p > 500 {
		add("request-mispriced", fmt.Sprintf("the first token came after %s and was priced at %s", diagnose.Seconds(ttft/1000), diagnose.Seconds(p/1000)),
			"penstock calibrate fits the engine's profile to the journal.", diagnose.Ev("predicted_ttft", p, "ms"), diagnose.Ev("ttft", ttft, "ms"))
	}
	rep.Findings = diagnose.NewReport(1, out).Findings
	return rep
}

func orNone(s string) string {
	if s == "" {
		return "no replica"
	}
	return s
}
