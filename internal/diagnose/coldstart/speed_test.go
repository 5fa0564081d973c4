// SPDX-License-Identifier: Apache-2.0

package coldstart

import (
	"strings"
	"testing"
)

func BenchmarkLargeLog(b *testing.B) {
	log := strings.Repeat(sample(b, "vllm-012-k8s-ansi.log"), 200)
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		Analyse(Input{Logs: []Log{{"l", log}}})
	}
}
