// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTimesAreFuzzyOnATerminal: a person wants to know how long ago, a script when.
func TestTimesAreFuzzyOnATerminal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	line := `{"schema":"penstock/decision/v1","id":"q","time":"2026-05-01T11:57:30Z","request":{"model":"m"},"policy":"random","candidates":[]}`
	if err := os.WriteFile(file, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	for tty, want := range map[bool]string{true: "2m30s ago", false: "2026-05-01T11:57:30.000Z"} {
		code, out, errs := run(t, tty, "explain", "q", "--journal", file)
		if code != ExitOK || !strings.Contains(out, want) {
			t.Errorf("terminal %v: %d %q %q, want %s", tty, code, out, errs, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0.0s", 1500 * time.Millisecond: "1.5s", 42 * time.Second: "42s", 61 * time.Second: "1m01s",
		3 * time.Hour: "3h00m", 50 * time.Hour: "2d02h",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestUnreachableServer(t *testing.T) {
	code, out, errs := run(t, false, "status", "--server", "127.0.0.1:1")
	if code != ExitUnreachable || out != "" || !strings.Contains(errs, "penstock: hint: ") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, _, errs := run(t, false, "status", "--server", "http://"); code != ExitUsage {
		t.Errorf("%d %q", code, errs)
	}
}

// TestStrangerIsNotPenstock: the port of something else is told apart.
func TestStrangerIsNotPenstock(t *testing.T) {
	e := newEngine(t)
	code, _, errs := run(t, false, "status", "--server", e.URL+"/health/x")
	if code != ExitUnreachable || !strings.Contains(errs, "not as the admin listener") {
		t.Errorf("%d %q", code, errs)
	}
}
