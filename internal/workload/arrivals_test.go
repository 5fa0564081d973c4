// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestReadArrivals(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"header", "time,variant\n0,a\n10,b\n20,a\n", "[a b] [[0 20] [10]]"},
		{"no header", "5,b\n0,a\n10,a\n", "[a b] [[0 10] [5]]"},
		{"among others", "id,Model,timestamp,status\n1,x,2026-03-01T09:00:00Z,200\n2,y,2026-03-01T09:00:05Z,200\n3,x,2026-03-01T09:01:00Z,500\n", "[x y] [[0 60] [5]]"},
		{"milliseconds", "timestamp_ms,adapter\n1000,a\n3500,a\n2000,b\n", "[a b] [[0 2.5] [1]]"},
		{"quoted, Windows lines, byte order mark", "\xef\xbb\xbf\"time\",\"variant\"\r\n0,\"a,b\"\r\n7,\"a,b\"\r\n", "[a,b] [[0 7]]"},
	} {
		if first := FirstLine([]byte(c.text)); !HasVariants(first) {
			t.Errorf("%s: %q is not taken for arrivals", c.name, first)
		}
		a, err := ReadArrivals(strings.NewReader(c.text), "f.csv")
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := fmt.Sprint(a.Names, " ", a.At); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                                   "f.csv: is empty",
		"time,variant\n1,a\nx,a\n":           `f.csv:3: time: "x" is neither seconds nor a time`,
		"time,variant\n1,a\n2,\n":            "f.csv:3: variant: is missing",
		"time,variant\n1,a\n2\n":             "f.csv:3: has 1 columns, the header has 2",
		"time,variant\n1,a\n":                "fewer than two requests",
		"time,variant\n1,a\n1,b\n":           "all requests have the same time",
		"colour,shape\nred,round\n":          "f.csv:1: the header has no time and no variant",
		"time,variant\n1,a\n99999999999,a\n": "f.csv:3: time",
	} {
		_, err := ReadArrivals(strings.NewReader(text), "f.csv")
		var te *TraceError
		if !errors.As(err, &te) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, line := range []string{"TIMESTAMP,ContextTokens,GeneratedTokens", "0,1.5,0.2,Gamma,1,2", `{"timestamp": 0}`, "0,12"} {
		if HasVariants(line) {
			t.Errorf("%q is taken for a list of arrivals", line)
		}
	}
}

// Whatever a file holds: an error, or times that rise within the span.
func FuzzReadArrivals(f *testing.F) {
	f.Add("time,variant\n0,a\n10,b\n")
	f.Add("5,b\n0,a\n")
	f.Add("id,Model,timestamp\n1,x,2026-03-01T09:00:00Z\n2,x,2026-03-01T09:00:00.5Z\n")
	f.Add("timestamp_ms,lora\n\"1\",\"a\nb\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ReadArrivals(strings.NewReader(text), "f")
		if err != nil {
			return
		}
		if len(a.Names) != len(a.At) || !(a.Span > 0) {
			t.Fatalf("%+v", a)
		}
		for _, at := range a.At {
			for i, v := range at {
				if !(v >= 0 && v <= a.Span) || i > 0 && v < at[i-1] {
					t.Fatalf("times %v within %g", at, a.Span)
				}
			}
		}
	})
}
