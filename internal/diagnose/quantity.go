// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"math"
	"strconv"
	"strings"
)

// ParseQuantity reads a Kubernetes quantity: a decimal number with an optional
// exponent or one of the suffixes n u m k M G T P E Ki Mi Gi Ti Pi Ei.
func ParseQuantity(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || s == "." || s == "+" || s == "-" {
		return 0, false
	}
	i := 0
	if s[0] == '+' || s[0] == '-' {
		i++
	}
	digits := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
		if s[i] != '.' {
			digits++
		}
		i++
	}
	if digits == 0 {
		return 0, false
	}
	num, err := strconv.ParseFloat(s[:i], 64)
	if err != nil {
		return 0, false
	}
	suffix := s[i:]
	if mult, ok := quantitySuffix(suffix); ok {
		v := num * mult
		return v, !math.IsInf(v, 0)
	}
	if len(suffix) > 1 && (suffix[0] == 'e' || suffix[0] == 'E') {
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil && !math.IsInf(v, 0) && !math.IsNaN(v)
	}
	return 0, false
}

func quantitySuffix(s string) (float64, bool) {
	switch s {
	case "":
		return 1, true
	case "n":
		return 1e-9, true
	case "u":
		return 1e-6, true
	case "m":
		return 1e-3, true
	case "k":
		return 1e3, true
	case "M":
		return 1e6, true
	case "G":
		return 1e9, true
	case "T":
		return 1e12, true
	case "P":
		return 1e15, true
	case "E":
		return 1e18, true
	case "Ki":
		return 1 << 10, true
	case "Mi":
		return 1 << 20, true
	case "Gi":
		return 1 << 30, true
	case "Ti":
		return 1 << 40, true
	case "Pi":
		return 1 << 50, true
	case "Ei":
		return 1 << 60, true
	}
	return 0, false
}

// ParseSeconds reads a duration and returns it in seconds: Go durations
// ("4m47.129s", "1h", "250ms", "2d"), words ("59 s", "2 min", "3 minutes"), or a
// bare number of seconds. It returns false for everything else, and for sizes.
func ParseSeconds(s string) (float64, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	if s == "" {
		return 0, false
	}
	total, any := 0.0, false
	for s != "" {
		i := 0
		for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.') {
			i++
		}
		if i == 0 {
			return 0, false
		}
		v, err := strconv.ParseFloat(s[:i], 64)
		if err != nil {
			return 0, false
		}
		s = strings.TrimLeft(s[i:], " ")
		j := 0
		for j < len(s) && (s[j] >= 'a' && s[j] <= 'z' || s[j] >= 0x80) {
			j++
		}
		unit := s[:j]
		if unit == "" && (any || s != "") {
			return 0, false
		}
		u, ok := timeUnit(unit)
		if !ok {
			return 0, false
		}
		total, any = total+v*u, true
		s = strings.TrimLeft(s[j:], " ")
	}
	return total, any
}

func timeUnit(u string) (float64, bool) {
	switch u {
	case "", "s", "sec", "secs", "second", "seconds":
		return 1, true
	case "ns":
		return 1e-9, true
	case "us", "µs", "μs":
		return 1e-6, true
	case "ms", "msec", "millisecond", "milliseconds":
		return 1e-3, true
	case "m", "min", "mins", "minute", "minutes":
		return 60, true
	case "h", "hr", "hrs", "hour", "hours":
		return 3600, true
	case "d", "day", "days":
		return 86400, true
	}
	return 0, false
}
