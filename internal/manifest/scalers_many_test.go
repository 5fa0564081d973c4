// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"fmt"
	"testing"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/manifest"
)

// many reads n files with a scaler of one target each; name makes their names.
func many(n int, name func(int) string) (scalers int) {
	var in []manifest.Input
	for i := range n {
		in = append(in, manifest.Input{Name: fmt.Sprintf("%d.yaml", i), Data: fmt.Appendf(nil, `apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: %s, namespace: a}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: vllm}
  minReplicas: 1
  maxReplicas: 8
  metrics: [{type: External, external: {metric: {name: queue}, target: {type: AverageValue, averageValue: "5"}}}]
`, name(i))})
	}
	set, _ := manifest.Read(in)
	for _, f := range diagnose.Lint(set) {
		if f.Code == "two-scalers" {
			scalers++
		}
	}
	return scalers
}

// Copies of one scaler are one scaler, and many scalers of one target are one finding
// each, not one a pair.
func TestManyScalersOfOneTarget(t *testing.T) {
	if got := many(200, func(int) string { return "vllm" }); got != 0 {
		t.Errorf("%d findings on copies of one object", got)
	}
	if got := many(200, func(i int) string { return fmt.Sprint("h", i) }); got != 199 {
		t.Errorf("%d findings on 200 scalers", got)
	}
}
