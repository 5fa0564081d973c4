// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
)

// Whatever the file, it is refused with file and line or its tests run.
func FuzzPolicyFile(f *testing.F) {
	for _, s := range []string{
		"", "tests: []", "tests:\n  - name: [", "tests: &a\n  - *a", "profile: 3\ntests: {}",
		"tests: [{name: x, request: {prompt_tokens: 40}, replicas: [{name: a, streams: 1}], expect: {pick: a}}]",
		"tests: [{name: x, policy: lmetric, request: {prompt_tokens: 9}, replicas: [{name: a, kv_usage: .nan}], expect: {pick: none}}]",
		"tests: [{name: x, averages: {exchange: .inf}, request: {prompt_tokens: 9, adapter: l}, replicas: [{name: a, adapters: [l]}, {name: b, pending_ms: 1e8}], expect: {order: [a, b], dropped: {a: gone}}}]",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse("stdin", []byte(s), func(name string) (engine.Profile, error) {
			if p, ok := engine.Lookup(name); ok {
				return p, nil
			}
			return engine.Profile{}, fmt.Errorf("no profile %q", name)
		})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "stdin") {
				t.Errorf("no file in %q", err)
			}
			return
		}
		for i := range p.Tests {
			p.Tests[i].Run(p.Engine)
		}
	})
}
