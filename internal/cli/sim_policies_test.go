// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
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
		if strings.Contains(s, "profile") {
			t.Skip("would read files")
		}
		p, err := readPolicyFile(&Env{Stdin: strings.NewReader(s)}, "-")
		if err != nil {
			if !strings.HasPrefix(err.Error(), "stdin") {
				t.Errorf("no file in %q", err)
			}
			return
		}
		for i := range p.Tests {
			if o := p.run(i); o.Passed != (len(o.Failures) == 0) {
				t.Errorf("passed %v with %q", o.Passed, o.Failures)
			}
		}
	})
}
