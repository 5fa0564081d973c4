// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"sort"
	"strconv"
)

// histogram counts observations in buckets with inclusive upper bounds.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds: the last is +Inf
	sum    float64
	n      uint64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64, times int) {
	if times <= 0 {
		return
	}
	h.counts[sort.SearchFloat64s(h.bounds, v)] += uint64(times)
	h.sum += v * float64(times)
	h.n += uint64(times)
}

// The bucket bounds of vLLM 0.32.
func secondsBuckets() []float64 {
	return []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
}

func ttftBuckets() []float64 {
	return []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
}

func gapBuckets() []float64 {
	return []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
}

func stepBuckets() []float64 {
	return []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
}

func lengthBuckets(most int) []float64 {
	var out []float64
	for e := 1; ; e *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*e > most {
				return out
			}
			out = append(out, float64(m*e))
		}
	}
}

// exposition builds the text format as the Python client writes it: labels sorted,
// numbers as floats.
type exposition struct{ b []byte }

func (x *exposition) family(name, typ, help string) {
	x.b = append(x.b, "# HELP "...)
	x.b = append(x.b, name...)
	x.b = append(x.b, ' ')
	x.b = append(x.b, help...)
	x.b = append(x.b, "\n# TYPE "...)
	x.b = append(x.b, name...)
	x.b = append(x.b, ' ')
	x.b = append(x.b, typ...)
	x.b = append(x.b, '\n')
}

func (x *exposition) sample(name, labels string, v float64) {
	x.b = append(x.b, name...)
	if labels != "" {
		x.b = append(x.b, '{')
		x.b = append(x.b, labels...)
		x.b = append(x.b, '}')
	}
	x.b = append(x.b, ' ')
	x.b = appendFloat(x.b, v)
	x.b = append(x.b, '\n')
}

// histogram writes a family with one series. labels come before le where they sort
// before it and after it otherwise.
func (x *exposition) histogram(name, help, before, after string, h *histogram) {
	x.family(name, "histogram", help)
	x.series(name, before, after, h)
}

func (x *exposition) series(name, before, after string, h *histogram) {
	join := func(le string) string {
		s := before
		if le != "" {
			s = comma(s) + `le="` + le + `"`
		}
		if after != "" {
			s = comma(s) + after
		}
		return s
	}
	var sum uint64
	for i, c := range h.counts {
		sum += c
		le := "+Inf"
		if i < len(h.bounds) {
			le = string(appendFloat(nil, h.bounds[i]))
		}
		x.sample(name+"_bucket", join(le), float64(sum))
	}
	x.sample(name+"_count", join(""), float64(h.n))
	x.sample(name+"_sum", join(""), h.sum)
}

func comma(s string) string {
	if s == "" {
		return s
	}
	return s + ","
}

// appendFloat writes a number as Python does: 1.0, 1e+16, 0.25.
func appendFloat(b []byte, v float64) []byte {
	n := len(b)
	b = strconv.AppendFloat(b, v, 'g', -1, 64)
	if v == float64(int64(v)) && v < 1e16 && v > -1e16 {
		b = strconv.AppendFloat(b[:n], v, 'f', 1, 64)
	}
	return b
}

// label quotes a label value.
func label(name, value string) string {
	b := append([]byte(name), '=', '"')
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '"', '\\':
			b = append(b, '\\', value[i])
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, value[i])
		}
	}
	return string(append(b, '"'))
}
