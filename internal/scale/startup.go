// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/fleet"
)

// keptStarts is how many start-ups the distribution remembers.
const keptStarts = 20

// startups follows replicas from their first sight to ready and learns how long
// that takes, in sum and by phase.
type startups struct {
	prior  float64 // s
	times  []float64
	phases [fleet.PhaseReady][]float64
	tracks []track // ordered by ID
	p50    float64
	p90    float64
}

// track is one replica that exists.
type track struct {
	id      string
	phase   fleet.Phase
	started fleet.Time
	since   fleet.Time // of the phase
	reason  string
	whole   bool // seen from its start, so that its start-up time counts
	seen    bool
}

func starting(p fleet.Phase) bool { return p < fleet.PhaseReady }

// observe takes in which replicas exist and where they are.
func (s *startups) observe(now fleet.Time, snap *fleet.Snapshot, first bool) {
	for i := range s.tracks {
		s.tracks[i].seen = false
	}
	grown := false
	for i := range snap.Endpoints {
		e := &snap.Endpoints[i]
		k, ok := slices.BinarySearchFunc(s.tracks, e.ID, func(t track, id string) int { return strings.Compare(t.id, id) })
		if !ok {
			t := track{id: e.ID, phase: e.Phase, started: now, since: now, reason: e.Reason, whole: !first && starting(e.Phase), seen: true}
			if e.Since != 0 && e.Since <= now {
				t.since = e.Since
				t.started = e.Since
			}
			s.tracks = slices.Insert(s.tracks, k, t)
			continue
		}
		t := &s.tracks[k]
		t.seen, t.reason = true, e.Reason
		if t.phase == e.Phase {
			continue
		}
		at := now
		if e.Since > t.since && e.Since <= now {
			at = e.Since
		}
		grown = s.moved(t, e.Phase, at) || grown
	}
	s.tracks = slices.DeleteFunc(s.tracks, func(t track) bool { return !t.seen })
	if grown || s.p90 == 0 {
		s.p50, s.p90 = s.quantiles()
	}
}

// moved notes that t came to phase p at a moment, and reports whether a start-up
// was learned.
func (s *startups) moved(t *track, p fleet.Phase, at fleet.Time) bool {
	learned := false
	if starting(t.phase) && t.whole && (starting(p) && p > t.phase || p == fleet.PhaseReady) {
		s.phases[t.phase] = keep(s.phases[t.phase], at.Seconds(t.since))
	}
	switch {
	case p == fleet.PhaseReady && starting(t.phase) && t.whole:
		s.times = keep(s.times, at.Seconds(t.started))
		learned = true
	case starting(p) && !starting(t.phase): // it starts again in its place
		t.started, t.whole = at, true
	}
	t.phase, t.since = p, at
	return learned
}

func keep(v []float64, x float64) []float64 {
	if len(v) >= keptStarts {
		v = v[:copy(v, v[1:])]
	}
	return append(v, x)
}

// quantiles returns the median and the 90th percentile of the start-up time in
// seconds. Until twelve were seen, the belief counts as two more.
func (s *startups) quantiles() (p50, p90 float64) {
	x := append(make([]float64, 0, keptStarts+2), s.times...)
	if len(x) < 12 {
		x = append(x, s.prior, 1.3*s.prior)
	}
	slices.Sort(x)
	return x[len(x)/2], quantile90(x)
}

func quantile90(sorted []float64) float64 {
	return sorted[int(0.9*float64(len(sorted)-1)+0.5)]
}

// overdue reports whether a starting replica takes so long that it is not believed
// any more: 1.6 times the 90th percentile and 10 s, of the whole start-up or, where
// three or more were seen, of the phase it is in.
func (s *startups) overdue(t *track, now fleet.Time) bool {
	if now.Seconds(t.started) > 1.6*s.p90+10 {
		return true
	}
	if d := s.phases[t.phase]; len(d) >= 3 {
		x := slices.Clone(d)
		slices.Sort(x)
		return now.Seconds(t.since) > 1.6*quantile90(x)+10
	}
	return false
}

// expected is when a starting replica should be ready: the 90th percentile after
// its start, or what its phase leaves to do where that is known, never in the past.
func (s *startups) expected(t *track, now fleet.Time) fleet.Time {
	at := t.started.AddSeconds(s.p90)
	if left, ok := s.left(t.phase); ok {
		at = t.since.AddSeconds(left)
	}
	return max(at, now)
}

// left is the sum of the median times of a phase and those after it.
func (s *startups) left(p fleet.Phase) (float64, bool) {
	sum, known := 0.0, false
	for ; p < fleet.PhaseReady; p++ {
		d := s.phases[p]
		if len(d) == 0 {
			continue
		}
		if len(d) < 3 {
			return 0, false
		}
		x := slices.Clone(d)
		slices.Sort(x)
		sum += x[len(x)/2]
		known = true
	}
	return sum, known
}

// Cause says why a replica that was asked for is not coming.
type Cause string

// Causes, in the words that Kubernetes and its node autoscalers use about them.
const (
	CauseNone          Cause = ""
	CauseResourceQuota Cause = "resource-quota" // a ResourceQuota is used up
	CauseNoFreeGPU     Cause = "no-free-gpu"    // no node has a free accelerator
	CauseNodeGroupMax  Cause = "node-group-max" // the node autoscaler is at its limit
	CauseCloudQuota    Cause = "cloud-quota"    // the cloud gives no more machines
	CauseCrashLoop     Cause = "crash-loop"     // it starts and dies, again and again
	CauseImage         Cause = "image"          // its image cannot be pulled
)

// ClassifyReason reads the cause out of a phase's reason or the message of an
// event. Matching is by the stable wording of kube-scheduler, the API server, the
// kubelet and cluster-autoscaler.
func ClassifyReason(text string) Cause {
	s := strings.ToLower(text)
	for _, c := range []struct {
		cause Cause
		words []string
	}{
		{CauseResourceQuota, []string{"exceeded quota"}},
		{CauseNodeGroupMax, []string{"max node group size reached", "max cluster", "no.scale.up.mig.failing.predicate"}},
		{CauseCloudQuota, []string{"quota_exceeded", "quotaexceeded", "zone_resource_pool_exhausted", "insufficientinstancecapacity", "vcpulimitexceeded", "out of stock", "outofresource"}},
		{CauseNoFreeGPU, []string{"insufficient nvidia.com/", "insufficient amd.com/", "insufficient gpu", "insufficient google.com/tpu", "insufficient habana.ai/"}},
		{CauseCrashLoop, []string{"crashloopbackoff", "crash loop", "back-off restarting"}},
		{CauseImage, []string{"imagepullbackoff", "errimagepull", "failed to pull image"}},
	} {
		for _, w := range c.words {
			if strings.Contains(s, w) {
				return c.cause
			}
		}
	}
	return CauseNone
}

// coming reports whether a starting replica is credited: neither overdue nor held
// back by something that waiting does not cure. A lack of free accelerators may be
// cured by a node autoscaler, so it counts only after a start-up time.
func (s *startups) coming(t *track, now fleet.Time) (ok bool, cause Cause) {
	cause = ClassifyReason(t.reason)
	switch cause {
	case CauseNone:
	case CauseNoFreeGPU:
		if now.Seconds(t.started) > math.Max(60, s.p90) {
			return false, cause
		}
	default:
		return false, cause
	}
	return !s.overdue(t, now), cause
}
