// SPDX-License-Identifier: Apache-2.0

package engine

// SLO is the objective that a request has to meet, in seconds.
type SLO struct {
	TTFT float64 // until the first token
	ITL  float64 // mean time between later tokens of one request
}

// Shape is the mean request of a workload, in tokens. Cached is the part of the
// prompt that the prefix cache holds.
type Shape struct {
	Prompt, Cached, Output float64
}
