// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"
	"strings"
	"time"
)

// Event is one Kubernetes event, in whatever form somebody copied it.
type Event struct {
	Type, Reason, Object, From, Message string
	Count                               int // at least 1
	// At is the last time it was seen, First the first time: Unix seconds, or
	// seconds before the listing was made (negative) where Relative is set.
	At, First         float64
	HasTime, HasFirst bool
	Relative          bool
	Line              int
}

// ParseEvents reads events from text: kubectl describe, kubectl get events (with
// or without namespaces), and lines that start with a timestamp. Lines that are no
// events are skipped.
func ParseEvents(text string) []Event {
	var out []Event
	n := 0
	for line := range strings.Lines(text) {
		n++
		if e, ok := parseEventLine(strings.TrimRight(line, "\r\n")); ok {
			e.Line = n
			out = append(out, e)
		}
	}
	return out
}

// token is a word of a line with its place.
type token struct {
	text       string
	start, end int
}

func tokens(line string) []token {
	var out []token
	for i := 0; i < len(line); {
		for i < len(line) && (line[i] == ' ' || line[i] == '\t') {
			i++
		}
		j := i
		for j < len(line) && line[j] != ' ' && line[j] != '\t' {
			j++
		}
		if j > i {
			out = append(out, token{line[i:j], i, j})
		}
		i = j
	}
	return out
}

func parseEventLine(line string) (Event, bool) {
	ts := tokens(line)
	at := -1
	for i := 0; i < len(ts) && i < 5; i++ {
		if ts[i].text == "Normal" || ts[i].text == "Warning" {
			at = i
			break
		}
	}
	if at < 0 || at+1 >= len(ts) || !isReason(ts[at+1].text) {
		return Event{}, false
	}
	e := Event{Type: ts[at].text, Reason: ts[at+1].text, Count: 1}
	for i := 0; i < at; i++ {
		two := ts[i].text
		if i+1 < at {
			two += " " + ts[i+1].text
		}
		if t, ok := ParseTime(two); ok {
			e.At, e.HasTime = t, true
		} else if t, ok := ParseTime(ts[i].text); ok {
			e.At, e.HasTime = t, true
		} else if a, ok := parseAge(ts[i].text); ok && !e.HasTime {
			e.At, e.HasTime, e.Relative = -a, true, true
		}
	}
	i := at + 2
	if i < len(ts) {
		if a, ok := parseAge(ts[i].text); ok && !e.HasTime {
			e.At, e.HasTime, e.Relative = -a, true, true
			i = e.readRepeat(ts, i+1)
			i = readFrom(&e, line, ts, i)
		} else if ts[i].text == "<unknown>" || ts[i].text == "<invalid>" {
			i = readFrom(&e, line, ts, i+1)
		} else if isObjectRef(ts[i].text) {
			e.Object = ts[i].text
			i = e.readRepeat(ts, i+1)
		}
	}
	if i < len(ts) {
		e.Message = strings.TrimSpace(line[ts[i].start:])
	}
	return e, true
}

// readRepeat reads "(x3 over 13s)" at token i and returns the next token.
func (e *Event) readRepeat(ts []token, i int) int {
	if i >= len(ts) || !strings.HasPrefix(ts[i].text, "(x") {
		return i
	}
	n, err := strconv.Atoi(strings.TrimRight(ts[i].text[2:], ")"))
	if err != nil || n < 1 {
		return i
	}
	e.Count = n
	i++
	if i+1 < len(ts) && ts[i].text == "over" {
		if a, ok := parseAge(strings.TrimRight(ts[i+1].text, ")")); ok {
			// "over 13s" is the time between the first and the last one, which
			// kubectl counts from the first one to now.
			e.First, e.HasFirst = -a, true
			if !e.Relative {
				e.First = e.At - a
			}
			i += 2
		}
	}
	return i
}

// readFrom reads the column From of kubectl describe, which ends at two spaces.
func readFrom(e *Event, line string, ts []token, i int) int {
	start := i
	for i < len(ts) {
		last := i
		i++
		if i >= len(ts) || ts[i].start-ts[last].end >= 2 {
			break
		}
		if i-start >= 3 { // no column is that wide: single spaces throughout
			i = start + 1
			break
		}
	}
	if start < len(ts) && i > start {
		e.From = strings.TrimSpace(line[ts[start].start:ts[i-1].end])
	}
	return i
}

func isReason(s string) bool {
	if s == "" || s[0] < 'A' || s[0] > 'Z' {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_') {
			return false
		}
	}
	return true
}

func isObjectRef(s string) bool {
	kind, name, ok := strings.Cut(s, "/")
	if !ok || kind == "" || name == "" {
		return false
	}
	for i := 0; i < len(kind); i++ {
		c := kind[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.') {
			return false
		}
	}
	return true
}

// parseAge reads the ages that kubectl prints: 5m31s, 25m, 2d3h. A bare number is
// no age.
func parseAge(s string) (float64, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || s[len(s)-1] >= '0' && s[len(s)-1] <= '9' {
		return 0, false
	}
	return ParseSeconds(s)
}

// ParseTime reads an absolute time with a year and returns Unix seconds. Times
// without a zone count as UTC.
func ParseTime(s string) (float64, bool) {
	if len(s) < 19 || s[4] != '-' && s[4] != '/' {
		return 0, false
	}
	s = strings.Replace(s, ",", ".", 1)
	for _, layout := range [...]string{
		time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02T15:04:05Z0700", "2006-01-02 15:04:05.999999999Z07:00",
		"2006-01-02 15:04:05.999999999", "2006/01/02 15:04:05.999999999", "2006-01-02T15:04:05.999999999Z0700",
	} {
		if t, err := time.Parse(layout, s); err == nil {
			return float64(t.UnixNano()) / 1e9, true
		}
	}
	return 0, false
}
