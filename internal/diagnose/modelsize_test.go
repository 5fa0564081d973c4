// SPDX-License-Identifier: Apache-2.0

package diagnose

import "testing"

func TestLoadFloor(t *testing.T) {
	for name, want := range map[string]float64{
		"Qwen/Qwen2.5-72B-Instruct": 144, "Qwen/Qwen3-235B-A22B-FP8": 235, "mistralai/Mixtral-8x7B-Instruct-v0.1": 112,
		"meta-llama/Llama-3.3-70B-Instruct-AWQ-INT4": 35, "facebook/opt-125m": 0, "m": 0, "Qwen/Qwen2.5-0.5B": 1, "deepseek-ai/DeepSeek-R1": 0, "llama3-8b": 16,
	} {
		c := &Container{Args: []Field[string]{{V: "--model=" + name, Set: true}}}
		if got := loadFloor(c); got != want {
			t.Errorf("%s: %g s, want %g", name, got, want)
		}
	}
}
