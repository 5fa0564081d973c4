// SPDX-License-Identifier: Apache-2.0

package scale

import "testing"

func external(t TargetType, target, usage float64) []HPAMetric {
	return []HPAMetric{{Name: "desired", Source: ExternalMetric, Type: t, Target: target, Usage: usage}}
}

// A metric that already is a replica count stays put as AverageValue 1 and runs
// away as Value 1, since Value multiplies it by the ready pods at every sync.
func TestReplicaCountAsAMetric(t *testing.T) {
	for _, tc := range []struct {
		kind TargetType
		want []int
	}{
		{AverageValue, []int{2, 2, 2, 2, 2}},
		{Value, []int{2, 4, 8, 16, 16}},
	} {
		var h HPA
		spec := DefaultHPA(1, 16)
		n := 1
		for i, want := range tc.want {
			r := h.Sync(&spec, HPAInput{Now: float64(i) * HPASync, Spec: n, Status: n, Ready: n, Metrics: external(tc.kind, 1, 2)})
			if n = r.Desired; n != want {
				t.Errorf("type %d, sync %d: %d replicas, want %d (%s)", tc.kind, i, n, want, r.Reason)
			}
		}
	}
}

// Loading replicas do not count as ready: Value deletes them under load, and
// AverageValue is immune.
func TestLoadingReplicasUnderLoad(t *testing.T) {
	spec := DefaultHPA(1, 16)
	spec.Down.Window = 0
	in := HPAInput{Now: 1000, Spec: 8, Status: 8, Ready: 2}
	var h HPA
	in.Metrics = external(Value, 10, 12)
	if r := h.Sync(&spec, in); r.Desired >= 8 {
		t.Errorf("Value keeps %d replicas, the controller deletes loading ones", r.Desired)
	}
	var a HPA
	in.Metrics = external(AverageValue, 10, 80)
	if r := a.Sync(&spec, in); r.Desired != 8 {
		t.Errorf("AverageValue wants %d replicas for 80 at 10 each, want 8", r.Desired)
	}
}

// A reading that failed holds the count where it is; one that is invalid among
// several forbids a scale-down.
func TestInvalidMetrics(t *testing.T) {
	spec := DefaultHPA(1, 16)
	var h HPA
	m := external(AverageValue, 1, 0)
	m[0].Invalid = true
	if r := h.Sync(&spec, HPAInput{Now: 0, Spec: 6, Status: 6, Ready: 6, Metrics: m}); r.Desired != 6 || r.ByMetric[0] != -1 {
		t.Errorf("%+v", r)
	}
	two := append(external(AverageValue, 1, 2), m...)
	if r := h.Sync(&spec, HPAInput{Now: 1000, Spec: 6, Status: 6, Ready: 6, Metrics: two}); r.Desired < 6 {
		t.Errorf("scaled down to %d although a metric is missing", r.Desired)
	}
}

func TestDownscaleStabilisation(t *testing.T) {
	spec := DefaultHPA(1, 16)
	var h HPA
	n := 8
	for i := range 19 {
		r := h.Sync(&spec, HPAInput{Now: float64(i) * HPASync, Spec: n, Status: n, Ready: n, Metrics: external(AverageValue, 1, 8)})
		n = r.Desired
	}
	at := 19 * HPASync
	r := h.Sync(&spec, HPAInput{Now: at, Spec: n, Status: n, Ready: n, Metrics: external(AverageValue, 1, 2)})
	if r.Desired != 8 || r.Reason != "ScaleDownStabilized" {
		t.Errorf("at once: %+v", r)
	}
	for ; at < 19*HPASync+330; at += HPASync {
		r = h.Sync(&spec, HPAInput{Now: at, Spec: n, Status: n, Ready: n, Metrics: external(AverageValue, 1, 2)})
		n = r.Desired
	}
	if n != 2 {
		t.Errorf("after the window: %d", n)
	}
}
