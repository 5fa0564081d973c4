// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"
	"strings"
)

// loadRate is how fast weights get into GPUs, in bytes a second, over all of them: what
// a good network disk gives. Most starts are slower.
const loadRate = 1e9

// loadFloor is the least time in seconds that an engine takes to read its weights, by
// the size that the name of its model tells; 0 where it tells none.
func loadFloor(c *Container) float64 {
	least := 0.0
	for _, name := range c.servedModels() {
		n := strings.ToLower(name)
		perParameter := 2.0 // bytes, 16 bits
		switch {
		case containsAny(n, "int4", "awq", "gptq", "w4a16", "4bit", "nf4", "fp4", "mxfp4", "q4"):
			perParameter = 0.5
		case containsAny(n, "fp8", "int8", "w8a8", "8bit", "q8"):
			perParameter = 1
		}
		least = max(least, billions(n)*1e9*perParameter/loadRate)
	}
	return least
}

func containsAny(s string, parts ...string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// billions reads the number of parameters from a model's name in lower case: 72 of
// qwen2.5-72b-instruct, 235 of qwen3-235b-a22b, 56 of mixtral-8x7b; 0 where it has none.
func billions(name string) float64 {
	for w := range strings.FieldsFuncSeq(name[strings.LastIndexByte(name, '/')+1:], func(r rune) bool { return r == '-' || r == '_' || r == ':' || r == ' ' }) {
		digits, ok := strings.CutSuffix(w, "b")
		if !ok || digits == "" {
			continue
		}
		times := 1.0
		if experts, each, ok := strings.Cut(digits, "x"); ok {
			n, err := strconv.ParseFloat(experts, 64)
			if err != nil {
				continue
			}
			times, digits = n, each
		}
		if n, err := strconv.ParseFloat(digits, 64); err == nil && n > 0 && n*times < 5000 {
			return n * times
		}
	}
	return 0
}
