// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// Bytes is an amount of data.
type Bytes int64

// Ratio is a share between 0 and 1, written in the file as a percentage.
type Ratio float64

func (r Ratio) String() string {
	return strconv.FormatFloat(math.Round(float64(r)*1e8)/1e6, 'g', -1, 64) + "%"
}

var byteUnits = []struct {
	name string
	n    int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

func (b Bytes) String() string {
	if b == 0 {
		return "0B"
	}
	for _, u := range byteUnits {
		if int64(b)%u.n == 0 {
			return strconv.FormatInt(int64(b)/u.n, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// parseBytes reads "1GiB" or "500MB". A number without unit is refused: nobody
// remembers whether a bare number means bytes or megabytes.
func parseBytes(s string) (Bytes, error) {
	for _, u := range byteUnits {
		num, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
		if err != nil || f < 0 || math.IsNaN(f) {
			break
		}
		v := f * float64(u.n)
		if v > math.MaxInt64/2 {
			return 0, fmt.Errorf("%s is too large", s)
		}
		return Bytes(math.Round(v)), nil
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s needs a unit; write %sMiB or %sB", s, s, s)
	}
	return 0, fmt.Errorf("%q is not an amount of data; write 512MiB or 1GiB", s)
}

// parseDuration reads "2s", "100ms", "24h" and "7d". A number without unit is
// refused, except 0.
func parseDuration(s string) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil {
			if n < 0 || n > 36500 || math.IsNaN(n) {
				return 0, fmt.Errorf("%s is out of range", s)
			}
			return time.Duration(n * float64(24*time.Hour)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err == nil {
		if d < 0 {
			return 0, fmt.Errorf("%s is negative", s)
		}
		return d, nil
	}
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		hint := s + "s or " + s + "ms"
		if m := n / 60; n >= 60 && m == math.Trunc(m) {
			hint = fmt.Sprintf("%ss or %gm", s, m)
		}
		return 0, fmt.Errorf("%s needs a unit; write %s", s, hint)
	}
	return 0, fmt.Errorf("%q is not a duration; write 500ms, 2s, 5m or 24h", s)
}

// formatDuration writes a duration the way a person would: 5m, not 5m0s.
func formatDuration(d time.Duration) string {
	if d == 0 {
		return "0s"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ParseRatio reads "99%" as 0.99. The error says what to write.
func ParseRatio(s string) (Ratio, error) {
	num, ok := strings.CutSuffix(s, "%")
	f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
	switch {
	case err != nil || math.IsNaN(f):
		return 0, fmt.Errorf("%q is not a percentage; write 99%%", s)
	case !ok && f <= 1:
		return 0, fmt.Errorf("%s needs a percent sign; write %s", s, Ratio(f))
	case !ok:
		return 0, fmt.Errorf("%s needs a percent sign; write %s%%", s, s)
	case f <= 0 || f > 100:
		return 0, fmt.Errorf("%s is out of range: more than 0%%, at most 100%%", s)
	}
	return Ratio(f / 100), nil
}

// Secret holds a value that must not reach a log, a record or a screen. It
// prints as a mask with every verb and in every encoding; only Reveal returns
// the value.
type Secret struct{ v string }

const masked = "[secret]"

// NewSecret wraps a value.
func NewSecret(v string) Secret { return Secret{v} }

// ReadSecret reads a secret from a file; white space around it is dropped. An
// empty file is an error: a key that is empty by accident would go out as one.
func ReadSecret(path string) (Secret, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return Secret{}, fmt.Errorf("read secret: %w", err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return Secret{}, fmt.Errorf("read secret: %s is empty", path)
	}
	if strings.ContainsAny(s, "\r\n\x00") {
		return Secret{}, fmt.Errorf("read secret: %s holds more than one line", path)
	}
	return Secret{s}, nil
}

// Reveal returns the value itself.
func (s Secret) Reveal() string { return s.v }

// Empty reports whether there is no secret.
func (s Secret) Empty() bool { return s.v == "" }

func (s Secret) String() string {
	if s.v == "" {
		return ""
	}
	return masked
}

// GoString masks %#v.
func (s Secret) GoString() string { return `config.Secret{"` + s.String() + `"}` }

// LogValue masks structured logs.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalJSON masks JSON.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(strconv.Quote(s.String())), nil }

// MarshalText masks YAML and everything else that takes text.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
