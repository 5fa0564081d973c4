// SPDX-License-Identifier: Apache-2.0

// Package coldstart breaks the start of a replica down into stages from what is at
// hand: the engine's log (vLLM of all generations, SGLang, TGI, llama.cpp,
// TensorRT-LLM, Ollama), the pod's events, and the total that somebody measured.
//
// A stage has a length only where a line states it or two timestamps bound it.
// Sizes are not times, lines that nobody knows stay unexplained time, and what
// contains something else is never added to it.
package coldstart

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// line is one line of a log without its prefixes.
type line struct {
	no    int
	msg   string
	proc  string  // "(EngineCore_DP0 pid=79)", "TP0"; "" none
	outer float64 // Unix seconds of whoever collected the log
	inner float64 // the engine's own time; without a year it counts from 2000
	hasO  bool
	hasI  bool
	year  bool // inner has a year
	rel   bool // inner counts from the start of the process
	trt   bool // TensorRT-LLM says that it wrote the line
}

// readLines takes a log apart. Carriage returns end a line as well: progress bars
// are written with them.
func readLines(log string) []line {
	var out []line
	no := 0
	for raw := range strings.Lines(log) {
		no++
		for part := range strings.SplitSeq(strings.TrimRight(raw, "\n"), "\r") {
			part = stripANSI(part)
			if strings.TrimSpace(part) == "" {
				continue
			}
			l := line{no: no}
			l.read(part, 0)
			if !l.hasI && !l.hasO {
				l.searchTime()
			}
			out = append(out, l)
		}
	}
	return out
}

// searchTime looks for the engine's own time behind a prefix that is not known, such
// as the pod's name that some collectors write first.
func (l *line) searchTime() {
	head := l.msg[:min(len(l.msg), 160)]
	for i := 1; i+14 <= len(head); i++ {
		if head[i] < '0' || head[i] > '9' || head[i-1] != ' ' && head[i-1] != '[' {
			continue
		}
		t, n, year, ok := leadingTime(head[i:])
		if !ok || n < 14 { // a time of day alone may be anything
			continue
		}
		l.setInner(t, year)
		l.msg = strings.TrimSpace(l.msg[:i-1] + l.msg[i+n:])
		return
	}
}

// stripANSI removes colour and cursor sequences.
func stripANSI(s string) string {
	if strings.IndexByte(s, 0x1b) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != 0x1b {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i < len(s) && s[i] == '[' {
			for i++; i < len(s) && (s[i] < '@' || s[i] > '~'); i++ {
			}
		}
	}
	return b.String()
}

// read peels prefixes off until none is left: collectors, containers, processes,
// levels, times, sources.
func (l *line) read(s string, depth int) {
	for range 12 {
		before := s
		s = strings.TrimLeft(s, " \t")
		if depth < 3 && strings.HasPrefix(s, "{") && l.readJSON(s, depth) {
			return
		}
		s = l.peel(s)
		if s == before {
			break
		}
	}
	l.msg = strings.TrimSpace(s)
}

// readJSON reads a line that is a JSON object: docker's json-file, the JSON format
// of an engine, a collector's record.
func (l *line) readJSON(s string, depth int) bool {
	var m map[string]any
	if json.Unmarshal([]byte(s), &m) != nil {
		return false
	}
	text := func(keys ...string) string {
		for _, k := range keys {
			if v, ok := m[k].(string); ok && v != "" {
				return v
			}
		}
		return ""
	}
	msg := text("log", "message", "msg", "text", "body", "textPayload")
	if f, ok := m["fields"].(map[string]any); ok && msg == "" {
		msg, _ = f["message"].(string)
	}
	if msg == "" {
		return false
	}
	at := text("time", "timestamp", "ts", "@timestamp", "asctime", "datetime", "t")
	if t, ok := diagnose.ParseTime(at); ok {
		l.outer, l.hasO = t, true
	} else if v, ok := m["ts"].(float64); ok && v > 1e9 {
		l.outer, l.hasO = v, true
	} else if v, ok := m["timestamp"].(float64); ok && v > 1e9 {
		if v > 1e11 {
			v /= 1000
		}
		l.outer, l.hasO = v, true
	}
	l.read(strings.TrimRight(msg, "\n"), depth+1)
	return true
}

// peel removes one prefix and returns the rest; s itself where there is none.
func (l *line) peel(s string) string {
	if s == "" {
		return s
	}
	switch c := s[0]; {
	case c == '(':
		return l.peelProcess(s)
	case c == '[':
		return l.peelBracket(s)
	case c >= '0' && c <= '9':
		return l.peelTime(s)
	case strings.HasPrefix(s, "time="):
		return l.peelLogfmt(s)
	case c == '-' && strings.HasPrefix(s, "- "), c == '|' && strings.HasPrefix(s, "| "), c == '>' && strings.HasPrefix(s, "> "):
		return s[2:]
	}
	word, rest, ok := strings.Cut(s, " ")
	if !ok {
		return s
	}
	switch w := strings.TrimRight(word, ":"); w {
	case "INFO", "WARNING", "WARN", "ERROR", "DEBUG", "TRACE", "I", "W", "E", "D":
		if w != word && !strings.HasPrefix(rest, " ") { // "INFO:     Application startup complete."
			return rest
		}
		return rest
	case "stdout", "stderr": // CRI: "stdout F message"
		if len(rest) > 2 && (rest[0] == 'F' || rest[0] == 'P') && rest[1] == ' ' {
			return rest[2:]
		}
	}
	return l.peelSource(s, word, rest)
}

// peelSource removes "file.py:12] ", "name-1  | ", "MODEL_LOG - " and the targets
// that TGI writes before its message.
func (l *line) peelSource(s, word, rest string) string {
	switch {
	case strings.HasSuffix(word, "]") && strings.Contains(word, ":") && strings.Contains(word, "."):
		return rest
	case strings.HasPrefix(strings.TrimLeft(rest, " "), "| ") && !strings.ContainsAny(word, "%|"):
		return strings.TrimLeft(rest, " ")[2:] // docker compose
	case word == "MODEL_LOG" || word == "__main__" || strings.HasPrefix(word, "W-") && strings.HasSuffix(word, "-stdout"):
		return strings.TrimPrefix(rest, "- ")
	case strings.HasPrefix(word, "text_generation_") && strings.HasSuffix(word, ":"), strings.Contains(word, ".rs:") && strings.HasSuffix(word, ":"),
		word == "shard-manager:" || word == "download:" || word == "warmup:":
		return rest
	case strings.HasPrefix(word, "vllm[") || strings.HasPrefix(word, "python") && strings.HasSuffix(word, "]:"): // journald
		return rest
	case len(word) == 3 && isMonth(word):
		return l.peelSyslog(s)
	case len(word) > 5 && (word[0] == 'I' || word[0] == 'W' || word[0] == 'E') && allDigits(word[1:5]) && len(word) == 5:
		return s
	case len(word) == 5 && strings.IndexByte("IWEF", word[0]) >= 0 && allDigits(word[1:]):
		return l.peelGlog(word, rest)
	}
	return s
}

func isMonth(s string) bool {
	_, err := time.Parse("Jan", s)
	return err == nil
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// peelSyslog reads "Feb 10 10:03:47 host unit[1]: ".
func (l *line) peelSyslog(s string) string {
	f := strings.Fields(s)
	if len(f) < 6 {
		return s
	}
	t, err := time.Parse("Jan 2 15:04:05", f[0]+" "+f[1]+" "+f[2])
	if err != nil || !strings.HasSuffix(f[4], ":") {
		return s
	}
	l.setInner(t.AddDate(2000, 0, 0), false)
	_, rest, _ := strings.Cut(s, f[4])
	return rest
}

// peelGlog reads "I0208 10:00:00.123456 1 server.cc:674] ".
func (l *line) peelGlog(word, rest string) string {
	clock, more, ok := strings.Cut(rest, " ")
	if !ok {
		return word + " " + rest
	}
	t, err := time.Parse("0102 15:04:05.999999", word[1:]+" "+clock)
	if err != nil {
		return word + " " + rest
	}
	l.setInner(t.AddDate(2000, 0, 0), false)
	if i := strings.Index(more, "] "); i >= 0 && i < 80 {
		more = more[i+2:]
	}
	return more
}

func (l *line) peelLogfmt(s string) string {
	at, rest, _ := strings.Cut(strings.TrimPrefix(s, "time="), " ")
	if t, ok := diagnose.ParseTime(strings.Trim(at, `"`)); ok && !l.hasI {
		l.inner, l.hasI, l.year = t, true, true
	}
	if i := strings.Index(rest, "msg="); i >= 0 {
		msg := rest[i+4:]
		if q, err := strconv.QuotedPrefix(msg); err == nil {
			if u, err := strconv.Unquote(q); err == nil {
				return u + " " + msg[len(q):]
			}
		}
		return msg
	}
	return rest
}

// peelProcess removes "(EngineCore_DP0 pid=79) " and remembers it.
func (l *line) peelProcess(s string) string {
	i := strings.IndexByte(s, ')')
	if i < 0 || i > 80 || !strings.Contains(s[:i], "pid=") && !strings.Contains(s[:i], "rank=") {
		return s
	}
	l.proc = s[:i+1]
	return s[i+1:]
}

// peelBracket removes "[...] ": a time, a pod, a source file, a level.
func (l *line) peelBracket(s string) string {
	i := strings.IndexByte(s, ']')
	if i < 0 || i > 120 {
		return s
	}
	in, rest := s[1:i], s[i+1:]
	if t, n, year, ok := leadingTime(in); ok {
		if !l.hasI {
			l.setInner(t, year)
		}
		if tail := strings.TrimSpace(in[n:]); tail != "" && l.proc == "" {
			l.proc = tail // "TP0", "DP0 TP1"
		}
		return rest
	}
	switch {
	case strings.Contains(in, ".py:") || strings.HasPrefix(in, "pod/") || strings.Contains(in, ".cc:") || strings.Contains(in, ".cpp:"):
		return rest
	}
	switch strings.ToUpper(strings.TrimSpace(in)) {
	case "INFO", "WARNING", "WARN", "ERROR", "DEBUG", "I", "W", "E":
		return rest
	case "TRT-LLM", "TENSORRT-LLM":
		l.trt = true
		return rest
	}
	if strings.HasPrefix(in, "RANK ") && l.trt {
		l.proc = in
		return rest
	}
	return s
}

func (l *line) setInner(t time.Time, year bool) {
	if l.hasI {
		return
	}
	l.inner, l.hasI, l.year = float64(t.UnixNano())/1e9, true, year
}

// peelTime removes a time at the beginning. A complete one that stands before
// another belongs to whoever collected the log.
func (l *line) peelTime(s string) string {
	if v, n, ok := llamaTime(s); ok {
		l.inner, l.hasI, l.rel = v, true, true
		return s[n:]
	}
	t, n, year, ok := leadingTime(s)
	if !ok {
		return s
	}
	rest := s[n:]
	zoned := strings.HasSuffix(s[:n], "Z") || n > 20 && strings.ContainsAny(s[19:n], "+-")
	if year && zoned && !l.hasO {
		l.outer, l.hasO = float64(t.UnixNano())/1e9, true
		return rest
	}
	l.setInner(t, year)
	return rest
}

// llamaTime reads the time of llama.cpp, "0.00.189.951 I ": minutes, seconds,
// milliseconds and microseconds since the start of the process.
func llamaTime(s string) (float64, int, bool) {
	word, _, ok := strings.Cut(s, " ")
	if !ok || strings.Count(word, ".") != 3 {
		return 0, 0, false
	}
	p := strings.Split(word, ".")
	if len(p[1]) != 2 || len(p[2]) != 3 || len(p[3]) != 3 {
		return 0, 0, false
	}
	v := 0.0
	for i, u := range [...]float64{60, 1, 1e-3, 1e-6} {
		if !allDigits(p[i]) {
			return 0, 0, false
		}
		n, _ := strconv.Atoi(p[i])
		v += float64(n) * u
	}
	return v, len(word), true
}

// timeLayouts are the ways in which logs write a time, most specific first. A
// comma before the fraction reads as a point.
var timeLayouts = [...]struct {
	layout string
	year   bool
}{
	{"2006-01-02T15:04:05.999999999Z07:00", true},
	{"2006-01-02T15:04:05.999999999", true},
	{"2006-01-02 15:04:05.999999999Z07:00", true},
	{"2006-01-02 15:04:05.999999999", true},
	{"2006/01/02 15:04:05.999999999", true},
	{"01/02/2006-15:04:05.999999999", true},
	{"01-02 15:04:05.999999999", false},
	{"15:04:05.999999999", false},
}

// leadingTime reads a time at the beginning of s and returns its length. Times
// without a year lie in the year 2000.
func leadingTime(s string) (t time.Time, n int, year, ok bool) {
	end := 0
	for end < len(s) && end < 40 && (s[end] >= '0' && s[end] <= '9' || strings.IndexByte("-:./,TZ+ ", s[end]) >= 0) {
		end++
	}
	if end < 8 {
		return time.Time{}, 0, false, false
	}
	head := strings.TrimRight(s[:end], " -,:.")
	head = strings.Replace(head, ",", ".", 1)
	for cut := len(head); cut >= 8; {
		for _, l := range timeLayouts {
			if t, err := time.Parse(l.layout, head[:cut]); err == nil {
				if t.Year() == 0 {
					t = t.AddDate(2000, 0, 0)
				}
				return t, cut, l.year, true
			}
		}
		i := strings.LastIndexAny(head[:cut], " ")
		if i < 0 {
			break
		}
		cut = len(strings.TrimRight(head[:i], " "))
	}
	return time.Time{}, 0, false, false
}
