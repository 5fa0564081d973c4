// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package gateway

import "time"

// processCPU is not known here: the benchmark then compares wall time only.
func processCPU() time.Duration { return 0 }
