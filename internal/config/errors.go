// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a file, and where.
type Error struct {
	File   string   `json:"file"`
	Line   int      `json:"line"` // 1-based
	Column int      `json:"column"`
	Path   string   `json:"path,omitempty"` // "pools[0].route.policy"
	Msg    string   `json:"message"`
	Lines  []string `json:"-"` // excerpt: up to one line before, and the line
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Msg)
}

// Errors is everything that is wrong with a file, in the order of the file.
type Errors []*Error

func (e Errors) Error() string {
	if len(e) == 1 {
		return e[0].Error()
	}
	return fmt.Sprintf("%s (and %d more)", e[0].Error(), len(e)-1)
}

// Render writes every error with its excerpt and a caret under the place.
func (e Errors) Render(w io.Writer) {
	for _, err := range e {
		fmt.Fprintln(w, err.Error())
		for i, l := range err.Lines {
			n := err.Line - len(err.Lines) + 1 + i
			mark := " "
			if n == err.Line {
				mark = ">"
			}
			fmt.Fprintf(w, "%s %4d | %s\n", mark, n, l)
		}
		if len(err.Lines) > 0 {
			last := err.Lines[len(err.Lines)-1]
			fmt.Fprintf(w, "       | %s^\n", caretIndent(last, err.Column))
		}
	}
}

// caretIndent returns the white space that puts the caret under column col. Tabs
// of the line stay tabs, so that the caret lands where the terminal shows it.
func caretIndent(line string, col int) string {
	var b strings.Builder
	n := 1
	for _, r := range line {
		if n >= col {
			break
		}
		if r == '\t' {
			b.WriteByte('\t')
		} else {
			b.WriteByte(' ')
		}
		n++
	}
	return b.String()
}

// secretLine finds keys whose value must not be repeated on a screen or in a log,
// even where the key does not exist.
var secretLine = regexp.MustCompile(`(?i)((?:(?:api|access|private|auth|client)[-_]?key|secret|token|password|passwd|credentials?)["']?\s*[:=]\s*)([^\s#].*)$`)

var urlCredentials = regexp.MustCompile(`://[^/\s@"']+@`)

// excerpt returns the line and the one before it, with values of secret-looking
// keys masked and long lines cut.
func excerpt(src []string, line int) []string {
	if line < 1 || line > len(src) {
		return nil
	}
	from := max(line-2, 0)
	out := slices.Clone(src[from:line])
	for i, l := range out {
		l = strings.TrimRight(l, "\r")
		if len(l) > 1000 {
			l = l[:1000]
		}
		l = urlCredentials.ReplaceAllString(l, "://[secret]@")
		l = secretLine.ReplaceAllString(l, "${1}"+masked)
		l = strings.Map(func(r rune) rune {
			if r < ' ' && r != '\t' || r == 0x7f {
				return '?'
			}
			return r
		}, l)
		if r := []rune(l); len(r) > 160 {
			l = string(r[:160]) + "..."
		}
		out[i] = l
	}
	return out
}

// suggest returns the candidate that is nearest to word, "" where none is near.
func suggest(word string, candidates []string) string {
	best, bestDist := "", 3
	if n := len(word) / 2; n < bestDist {
		bestDist = max(n, 1) + 1
		bestDist = min(bestDist, 3)
	}
	for _, c := range candidates {
		if strings.EqualFold(word, c) {
			return c
		}
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d < bestDist {
			best, bestDist = c, d
		}
	}
	return best
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	prev2, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(b)]
}
