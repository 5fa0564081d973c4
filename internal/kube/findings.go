// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// Reporter writes findings of the running system as Kubernetes Events on the objects
// that they are about. One finding on one object is one Event: its name derives from
// both, so that it is the same one after a restart and for several routers. It is for
// one goroutine.
type Reporter struct {
	Cluster *Cluster
	// Instance names this process among those that report.
	Instance string
	// Object says what a finding is about; an empty Namespace leaves it out.
	Object func(*diagnose.Finding) corev1.ObjectReference

	said    map[string]*saidEvent
	tokens  float64
	at      time.Time
	dropped int
	fault   string
}

// saidEvent is an Event that was written.
type saidEvent struct {
	count       int32
	first, last time.Time
	seen        bool // in the present report
	gone        bool // the finding was not in the last report
}

// Bounds of what is written: a finding that stays is said again after repeatEvent, one
// that comes and goes at most once in againEvent, and all together at most burstEvents
// at once and one in everyEvent after that.
const (
	repeatEvent = 10 * time.Minute
	againEvent  = time.Minute
	burstEvents = 10
	everyEvent  = 6 * time.Second
	// keptEvent is how long a finding that is gone is remembered: as long as an API
	// server keeps its Event by default.
	keptEvent = time.Hour
)

// Report writes what is new in the findings, which come ordered by harm.
func (r *Reporter) Report(ctx context.Context, now time.Time, found []diagnose.Finding) {
	if r.said == nil {
		r.said, r.tokens, r.at = map[string]*saidEvent{}, burstEvents, now
	}
	r.tokens = min(burstEvents, r.tokens+now.Sub(r.at).Seconds()/everyEvent.Seconds())
	r.at = now
	for _, s := range r.said {
		s.seen = false
	}
	for i := range found {
		r.one(ctx, now, &found[i])
	}
	for name, s := range r.said {
		if s.gone = !s.seen; s.gone && now.Sub(s.last) > keptEvent {
			delete(r.said, name)
		}
	}
}

func (r *Reporter) one(ctx context.Context, now time.Time, f *diagnose.Finding) {
	about := r.Object(f)
	if about.Namespace == "" {
		return
	}
	name := eventName(about, f.Code)
	s := r.said[name]
	if s == nil {
		s = &saidEvent{first: now}
		r.said[name] = s
	}
	s.seen = true
	wait := time.Duration(0)
	switch {
	case s.count == 0:
	case s.gone:
		wait = againEvent
	default:
		wait = repeatEvent
	}
	if s.count > 0 && now.Sub(s.last) < wait {
		return
	}
	if r.tokens < 1 {
		r.dropped++
		return
	}
	r.tokens--
	if err := r.write(ctx, now, name, about, f, s); err != nil {
		if msg := err.Error(); msg != r.fault {
			r.fault = msg
			r.Cluster.Log.Warn("a finding could not be written as an Event", "object", f.Object, "code", f.Code, "error", msg)
		}
		// Not again at once: what is forbidden stays so.
		s.count, s.last = max(s.count, 1), now
		return
	}
	r.fault = ""
	s.count++
	s.last = now
}

// eventName is the name of the Event of one finding on one object.
func eventName(about corev1.ObjectReference, code string) string {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%s", about.Kind, about.Namespace, about.Name, about.UID, code)
	base := about.Name
	if len(base) > 200 {
		base = base[:200]
	}
	return fmt.Sprintf("%s.penstock-%x", strings.Trim(base, ".-"), h.Sum64())
}

func (r *Reporter) write(ctx context.Context, now time.Time, name string, about corev1.ObjectReference, f *diagnose.Finding, s *saidEvent) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	events := r.Cluster.Pods.CoreV1().Events(about.Namespace)
	at, first := metav1.NewTime(now), metav1.NewTime(s.first)
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: about.Namespace},
		InvolvedObject: about, Reason: eventReason(f.Code), Message: messageOf(f), Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "penstock"}, FirstTimestamp: first, LastTimestamp: at, Count: s.count + 1,
		ReportingController: "penstock", ReportingInstance: r.Instance,
	}
	if f.Severity == diagnose.Note {
		e.Type = corev1.EventTypeNormal
	}
	_, err := events.Create(ctx, e, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, err := json.Marshal(map[string]any{"count": e.Count, "lastTimestamp": at, "message": e.Message, "type": e.Type})
	if err != nil {
		return err
	}
	_, err = events.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// maxEventMessage is the most that an API server takes, in bytes.
const maxEventMessage = 1024

// messageOf is what a person reads: what is wrong, what to do and where it is
// explained.
func messageOf(f *diagnose.Finding) string {
	s := f.Message
	if f.Remedy != "" {
		s += ". " + f.Remedy
	}
	if f.Docs != "" {
		s += " (" + f.Docs + ")"
	}
	s = strings.Join(strings.Fields(s), " ")
	for len(s) > maxEventMessage {
		s = strings.ToValidUTF8(s[:maxEventMessage-3], "") + "..."
	}
	return s
}

// eventReason turns a code into the form of reasons: no-ready-replica, NoReadyReplica.
func eventReason(code string) string {
	var b strings.Builder
	for _, w := range strings.Split(code, "-") {
		if w != "" {
			b.WriteString(strings.ToUpper(w[:1]) + w[1:])
		}
	}
	return b.String()
}

// Dropped returns how many writes the rate kept back so far.
func (r *Reporter) Dropped() int { return r.dropped }
