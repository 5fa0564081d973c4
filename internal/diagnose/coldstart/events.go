// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// pod is what the events say of one start, in seconds on the events' own axis.
type pod struct {
	relative                         bool // seconds before the listing
	begin, end                       float64
	hasBegin, hasEnd                 bool
	failed, scaleUp                  float64
	hasFailed, hasScaleUp            bool
	scheduled, pulling, pulled       float64
	hasScheduled, hasPulling, hasEnP bool
	created, started, ready          float64
	hasCreated, hasStarted, hasReady bool
	pull, pullWait, image            float64
	hasPull, hasWait, hasImage       bool
	cached, ran                      bool // ran: a container ran before
	attached, firstStart, afterFirst float64
	hasAttached, hasFirst, hasAfter  bool
	list                             []diagnose.Event
}

// readEvents picks the moments of a start out of a list of events. Where a list
// holds several pods, the one with the last start counts.
func readEvents(list []diagnose.Event) *pod {
	p := &pod{list: list}
	for i := range list {
		e := &list[i]
		if !e.HasTime {
			p.message(e)
			continue
		}
		p.relative = p.relative || e.Relative
		first := e.At
		if e.HasFirst {
			first = e.First
		}
		if !p.hasBegin || first < p.begin {
			if starts(e.Reason) {
				p.begin, p.hasBegin = first, true
			}
		}
		if !p.hasEnd || e.At > p.end {
			p.end, p.hasEnd = e.At, true
		}
		p.moment(e, first)
		p.message(e)
	}
	p.initContainers()
	// Without a beginning the list shows some later part of a pod's life.
	p.hasBegin = p.hasBegin && (p.hasScheduled || p.hasFailed || p.hasStarted || p.hasPull || p.hasPulling && !p.ran)
	return p
}

// initContainers finds when the containers after the first one began: what lies
// between is the time that init containers ran.
func (p *pod) initContainers() {
	for i := range p.list {
		e := &p.list[i]
		if !e.HasTime || !p.hasFirst || e.At <= p.firstStart {
			continue
		}
		switch e.Reason {
		case "Pulling", "Pulled", "Created":
			if !p.hasAfter || e.At < p.afterFirst {
				p.afterFirst, p.hasAfter = e.At, true
			}
		}
	}
}

// starts reports whether an event belongs to the start of a pod, so that the clock
// may begin with it.
func starts(reason string) bool {
	switch reason {
	case "FailedScheduling", "TriggeredScaleUp", "Scheduled", "Pulling", "Pulled", "Created", "Started", "SuccessfulCreate", "Created-pod", "NotTriggerScaleUp", "SuccessfulAttachVolume":
		return true
	}
	return false
}

func (p *pod) moment(e *diagnose.Event, first float64) {
	switch e.Reason {
	case "FailedScheduling":
		if !p.hasFailed || first < p.failed {
			p.failed, p.hasFailed = first, true
		}
	case "TriggeredScaleUp":
		p.scaleUp, p.hasScaleUp = first, true
	case "Scheduled":
		p.scheduled, p.hasScheduled = e.At, true
	case "Pulling":
		if !p.hasPulling || first < p.pulling {
			p.pulling, p.hasPulling = first, true
		}
	case "Pulled":
		p.pulled, p.hasEnP = e.At, true
	case "Created":
		p.created, p.hasCreated = e.At, true
	case "Started":
		if !p.hasStarted || e.At > p.started {
			p.started, p.hasStarted = e.At, true
		}
		if !p.hasFirst || e.At < p.firstStart {
			p.firstStart, p.hasFirst = e.At, true
		}
	case "SuccessfulAttachVolume":
		p.attached, p.hasAttached = e.At, true
	case "Ready":
		p.ready, p.hasReady = e.At, true
	case "Unhealthy", "Killing", "BackOff":
		p.ran = true
	}
}

// message reads the numbers of an event's text.
func (p *pod) message(e *diagnose.Event) {
	if e.Reason != "Pulled" {
		return
	}
	if strings.Contains(e.Message, "already present") {
		p.cached = true
		return
	}
	_, rest, ok := strings.Cut(e.Message, " in ")
	if !ok {
		return
	}
	word, _, _ := strings.Cut(rest, " ")
	if v, ok := diagnose.ParseSeconds(strings.TrimRight(word, ".,")); ok {
		p.pull, p.hasPull = p.pull+v, true
		wait := v
		if i := strings.Index(rest, " including waiting"); i > 0 {
			if j := strings.LastIndexByte(rest[:i], '('); j >= 0 {
				if w, ok := diagnose.ParseSeconds(rest[j+1 : i]); ok {
					wait = w
				}
			}
		}
		p.pullWait, p.hasWait = p.pullWait+wait, true
	}
	if _, after, ok := strings.Cut(rest, "Image size: "); ok {
		num, _, _ := strings.Cut(after, " ")
		if v, err := strconv.ParseFloat(num, 64); err == nil && v > p.image {
			p.image, p.hasImage = v, true
		}
	}
}

// stages writes what the events explain.
func (p *pod) stages(r *Report) {
	if p.hasScheduled {
		switch {
		case p.hasFailed && p.scheduled > p.failed:
			ev := []diagnose.Evidence{diagnose.Ev("first_failed_scheduling_to_scheduled", p.scheduled-p.failed, "s")}
			if p.hasScaleUp {
				ev = append(ev, diagnose.Ev("node_requested_after", max(0, p.scaleUp-p.failed), "s"))
			}
			r.add("node_wait", p.scheduled-p.failed, "", ev...)
			r.fact("node_wait_s", p.scheduled-p.failed, "s")
		case p.hasBegin && p.scheduled > p.begin:
			r.add("schedule", p.scheduled-p.begin, "", diagnose.Ev("created_to_scheduled", p.scheduled-p.begin, "s"))
		}
		if p.hasAttached && p.attached > p.scheduled+1 && (!p.hasPulling || p.attached <= p.pulling) {
			r.add("volume_attach", p.attached-p.scheduled, "", diagnose.Ev("scheduled_to_attached", p.attached-p.scheduled, "s"))
		}
		if p.hasPulling && p.pulling >= p.scheduled && r.Stage("volume_attach") == nil {
			r.add("schedule_to_pull", p.pulling-p.scheduled, "unexplained")
			r.fact("schedule_to_pull_s", p.pulling-p.scheduled, "s")
		}
	}
	p.pullStages(r)
	if p.hasAfter && p.hasStarted && p.started >= p.afterFirst && p.afterFirst-p.firstStart >= 3 && !p.ran {
		r.add("init_containers", p.afterFirst-p.firstStart, "", diagnose.Ev("first_container_to_next", p.afterFirst-p.firstStart, "s").From("events"))
		r.fact("init_containers_s", p.afterFirst-p.firstStart, "s")
	}
	if p.hasEnP && p.hasStarted && p.started >= p.pulled {
		r.add("container_start", p.started-p.pulled, "unexplained")
		r.fact("container_start_s", p.started-p.pulled, "s")
	}
	if p.hasStarted && p.hasReady {
		r.fact("container_start_to_ready_s", p.ready-p.started, "s")
	}
}

func (p *pod) pullStages(r *Report) {
	switch {
	case p.hasPull:
		var ev []diagnose.Evidence
		r.fact("image_pull_s", p.pull, "s")
		r.fact("pull_s", p.pull, "s")
		r.fact("pull_with_wait_s", p.pullWait, "s")
		if p.hasImage {
			rate := p.image / max(p.pull, 1e-9) / 1e6
			r.fact("image_bytes", p.image, "bytes")
			r.fact("image_gib", diagnose.Round(p.image/(1<<30), 2), "GiB")
			r.fact("mb_per_s", diagnose.Round(rate, 1), "MB/s")
			ev = append(ev, diagnose.Ev("image", diagnose.Round(p.image/(1<<30), 2), "GiB"), diagnose.Ev("rate", diagnose.Round(rate, 1), "MB/s"))
		}
		r.add("image_pull", p.pullWait, "", ev...)
		if p.pullWait > p.pull+0.05 {
			r.add("image_transfer", p.pull, "image_pull")
			r.add("image_queue", p.pullWait-p.pull, "image_pull", diagnose.Ev("waiting_for_other_pulls", p.pullWait-p.pull, "s"))
		}
	case p.cached:
		r.add("image_pull", 0, "", diagnose.Evidence{Name: "image", Value: "already present"})
		r.fact("image_pull_s", 0.0, "s")
	case p.hasPulling && p.hasEnP && p.pulled >= p.pulling:
		r.add("image_pull", p.pulled-p.pulling, "", diagnose.Ev("pulling_to_pulled", p.pulled-p.pulling, "s").From("timestamps"))
		r.fact("image_pull_s", p.pulled-p.pulling, "s")
	case p.hasPulling && p.relative && !p.hasStarted && !p.ran:
		r.add("image_pull", -p.pulling, "", diagnose.Evidence{Name: "state", Value: "still pulling"})
	}
}

// starting is the time since the container was started, where nothing says that it
// is ready.
func (p *pod) starting() (float64, bool) {
	if p.hasStarted && p.relative && !p.hasReady {
		return -p.started, true
	}
	return 0, false
}

// longestBudget is the time in seconds that no start takes: a probe that still
// fails then watches something else than a start.
const longestBudget = 1800

// probeFindings judges the probe events: what is normal while a model loads, what
// is a wrong path, what is beyond any budget, what killed the pod.
func (p *pod) probeFindings(file string) []diagnose.Finding {
	var out []diagnose.Finding
	notFound := false
	for i := range p.list {
		e := &p.list[i]
		if e.Reason == "Unhealthy" && strings.Contains(e.Message, "statuscode: 404") {
			notFound = true
			f := diagnose.New("wrong-probe-path", eventObject(e), file, e.Line)
			f.Evidence = []diagnose.Evidence{{Name: "status", Value: 404}, diagnose.Ev("times", e.Count, ""), {Name: "event", Value: e.Message}}
			f.Message = "the probe fails with 404: the server is alive and the path is wrong"
			if k := p.killedBy("liveness"); k != nil {
				f.Message += "; a failed liveness probe is what restarts the container, not a crash of the engine"
				f.Evidence = append(f.Evidence, diagnose.Evidence{Name: "killing", Value: k.Message})
			}
			f.Remedy = "Fix the path of the probe (vLLM, SGLang, TGI: /health); do not raise thresholds."
			out = append(out, f)
		}
	}
	for i := range p.list {
		e := &p.list[i]
		switch {
		case e.Reason == "Unhealthy" && strings.HasPrefix(e.Message, "Startup probe failed") && beyond(e):
			f := diagnose.New("probe-beyond-budget", eventObject(e), file, e.Line)
			f.Evidence = []diagnose.Evidence{diagnose.Ev("times", e.Count, ""), diagnose.Ev("over", overSeconds(e), "s"), {Name: "event", Value: e.Message}}
			f.Message = fmt.Sprintf("the startup probe failed %d times over %s: that is beyond any start, so the server does not come up or the probe asks the wrong place", e.Count, diagnose.Seconds(overSeconds(e)))
			f.Remedy = "Look at the container's log: kubectl logs --previous. Refused connections mean that nothing listens on that port."
			out = append(out, f)
		case e.Reason == "Killing" && strings.Contains(e.Message, "failed startup probe"):
			f := diagnose.New("startup-budget-too-small", eventObject(e), file, e.Line)
			f.Evidence = []diagnose.Evidence{{Name: "event", Value: e.Message}, diagnose.Ev("times", e.Count, "")}
			f.Message = "the startup probe killed the container while it loaded: this is no crash of the engine"
			f.Remedy = "Give the startup probe twice the slowest start: failureThreshold x periodSeconds."
			out = append(out, f)
		case e.Reason == "Killing" && strings.Contains(e.Message, "failed liveness probe") && !notFound:
			f := diagnose.New("liveness-kills-start", eventObject(e), file, e.Line)
			f.Evidence = []diagnose.Evidence{{Name: "event", Value: e.Message}, diagnose.Ev("times", e.Count, "")}
			f.Message = "the liveness probe restarted the container: this is no crash of the engine"
			f.Remedy = "Add a startup probe with twice the slowest start, and give liveness a timeout that a busy engine meets."
			out = append(out, f)
		case e.Reason == "Failed" && (strings.Contains(e.Message, "ErrImagePull") || strings.Contains(e.Message, "ImagePullBackOff") || strings.Contains(e.Message, "Failed to pull image")):
			if len(out) > 0 && out[len(out)-1].Code == "image-pull-failed" {
				continue
			}
			f := diagnose.New("image-pull-failed", eventObject(e), file, e.Line)
			f.Evidence = []diagnose.Evidence{{Name: "event", Value: e.Message}, diagnose.Ev("times", e.Count, "")}
			f.Message = "the image cannot be pulled: " + e.Message
			f.Remedy = "Check the image's name and tag, the pull secret and the registry's limits."
			out = append(out, f)
		}
	}
	return out
}

func (p *pod) killedBy(probe string) *diagnose.Event {
	for i := range p.list {
		if e := &p.list[i]; e.Reason == "Killing" && strings.Contains(e.Message, "failed "+probe+" probe") {
			return e
		}
	}
	return nil
}

func eventObject(e *diagnose.Event) string {
	if e.Object != "" {
		return e.Object
	}
	return "pod"
}

func overSeconds(e *diagnose.Event) float64 {
	if !e.HasFirst {
		return 0
	}
	if e.Relative {
		return -e.First
	}
	return e.At - e.First
}

func beyond(e *diagnose.Event) bool {
	return overSeconds(e) > longestBudget || e.Count >= 180 && !e.HasFirst
}
