// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
)

// Edit changes one place of a file. An edit with Whole inserts the lines of Text
// after line Line (0: before the first) and, where Until is set, first removes the
// lines Line+1..Until. Any other edit replaces Del bytes at Line and Col by Text.
type Edit struct {
	File      string
	Line, Col int
	Del       int
	Text      string
	Whole     bool
	Until     int
}

// valid reports whether the edit has a place. A value that is written over several
// lines, or in JSON, has none.
func (e *Edit) valid() bool { return e.Whole || e.Line > 0 && e.Col > 0 }

// replaceField is an edit that writes text in place of a value, quotes included.
func replaceField[T any](file string, f Field[T], text string) Edit {
	if f.At.Len == 0 {
		return Edit{File: file}
	}
	return Edit{File: file, Line: f.At.Line, Col: f.At.Col, Del: f.At.Len, Text: text}
}

// renameKey is an edit that writes another name in place of a key.
func renameKey[T any](file string, f Field[T], name string) Edit {
	if f.Key.Len == 0 {
		return Edit{File: file}
	}
	return Edit{File: file, Line: f.Key.Line, Col: f.Key.Col, Del: f.Key.Len, Text: name}
}

// addKeys is an edit that adds "key: value" lines to a mapping, and false where the
// mapping is written in a way that does not allow it. In flow style the lines are
// joined by commas, so they must be scalars or flow collections.
func addKeys(file string, at MapAt, lines ...string) (Edit, bool) {
	switch {
	case at.Line == 0:
		return Edit{}, false
	case at.Flow:
		return Edit{File: file, Line: at.Line, Col: at.Col + 1, Text: strings.Join(lines, ", ") + ", "}, true
	case at.After < 0:
		return Edit{}, false
	}
	pad := strings.Repeat(" ", at.Indent)
	for i := range lines {
		lines[i] = pad + lines[i]
	}
	return Edit{File: file, Line: at.After, Whole: true, Text: strings.Join(lines, "\n")}, true
}

// Apply returns src with the edits of file applied. Edits are applied from the end
// of the file backwards; an edit that overlaps one that was applied is skipped, so
// the result is always one that each applied edit meant.
func Apply(file, src string, edits []Edit) string {
	lines := strings.Split(src, "\n")
	mine := make([]Edit, 0, len(edits))
	for _, e := range edits {
		if e.File == file && !slices.Contains(mine, e) {
			mine = append(mine, e)
		}
	}
	slices.SortStableFunc(mine, func(a, b Edit) int {
		if a.Line != b.Line {
			return b.Line - a.Line
		}
		if a.Whole != b.Whole {
			if a.Whole {
				return -1
			}
			return 1
		}
		return b.Col - a.Col
	})
	low := len(lines) + 1 // lines from here on were replaced as a whole
	lastLine, lastCol := 0, 0
	for _, e := range mine {
		if e.Whole {
			end := max(e.Until, e.Line)
			if e.Line < 0 || end >= low || end > len(lines) {
				continue
			}
			lines = slices.Replace(lines, e.Line, end, strings.Split(e.Text, "\n")...)
			if e.Until > e.Line {
				low = e.Line + 1
			}
			continue
		}
		if e.Line < 1 || e.Line >= low || e.Line > len(lines) {
			continue
		}
		l := lines[e.Line-1]
		at := e.Col - 1
		if at < 0 || at+e.Del > len(l) || e.Line == lastLine && at+e.Del > lastCol-1 {
			continue
		}
		lines[e.Line-1] = l[:at] + e.Text + l[at+e.Del:]
		lastLine, lastCol = e.Line, e.Col
	}
	out := strings.Join(lines, "\n")
	if len(mine) > 0 && strings.HasSuffix(src, "\n") && !strings.HasSuffix(out, "\n") {
		out += "\n" // the last lines were replaced as a whole
	}
	return out
}

// Diff returns the difference between two versions of a file as a unified diff
// with three lines of context, "" where there is none.
func Diff(name, a, b string) string {
	if a == b {
		return ""
	}
	al, bl := splitKeep(a), splitKeep(b)
	ops := diffLines(al, bl)
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	for start := 0; start < len(ops); {
		for start < len(ops) && ops[start].op == ' ' {
			start++
		}
		if start == len(ops) {
			break
		}
		end, quiet := start, 0
		for i := start; i < len(ops) && quiet <= 6; i++ {
			if ops[i].op == ' ' {
				quiet++
			} else {
				quiet, end = 0, i+1
			}
		}
		from, to := max(start-3, 0), min(end+3, len(ops))
		writeHunk(&out, ops[from:to])
		start = to
	}
	return out.String()
}

func writeHunk(out *strings.Builder, ops []diffOp) {
	an, bn := 0, 0
	for _, o := range ops {
		if o.op != '+' {
			an++
		}
		if o.op != '-' {
			bn++
		}
	}
	fmt.Fprintf(out, "@@ -%s +%s @@\n", hunkRange(ops[0].a, an), hunkRange(ops[0].b, bn))
	for _, o := range ops {
		out.WriteByte(o.op)
		out.WriteString(strings.TrimSuffix(o.text, "\n"))
		out.WriteByte('\n')
		if !strings.HasSuffix(o.text, "\n") {
			out.WriteString("\\ No newline at end of file\n")
		}
	}
}

func hunkRange(start, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", start)
	}
	if n == 1 {
		return fmt.Sprint(start + 1)
	}
	return fmt.Sprintf("%d,%d", start+1, n)
}

type diffOp struct {
	op   byte
	a, b int // lines before this one
	text string
}

func splitKeep(s string) []string {
	lines := strings.SplitAfter(s, "\n")
	if len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// diffLines returns the operations that turn a into b. Common head and tail are
// cut off first; the middle is solved by the longest common subsequence, or
// replaced as a whole where it is too large for that.
func diffLines(a, b []string) []diffOp {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var ops []diffOp
	for i := range head {
		ops = append(ops, diffOp{' ', i, i, a[i]})
	}
	ops = append(ops, diffMiddle(a[head:len(a)-tail], b[head:len(b)-tail], head)...)
	for i := range tail {
		ai, bi := len(a)-tail+i, len(b)-tail+i
		ops = append(ops, diffOp{' ', ai, bi, a[ai]})
	}
	return ops
}

func diffMiddle(a, b []string, off int) []diffOp {
	var ops []diffOp
	if len(a)*len(b) > 4<<20 {
		for i, l := range a {
			ops = append(ops, diffOp{'-', off + i, off, l})
		}
		for i, l := range b {
			ops = append(ops, diffOp{'+', off + len(a), off + i, l})
		}
		return ops
	}
	w := len(b) + 1
	lcs := make([]int32, (len(a)+1)*w)
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				lcs[i*w+j] = lcs[(i+1)*w+j+1] + 1
			} else {
				lcs[i*w+j] = max(lcs[(i+1)*w+j], lcs[i*w+j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			ops = append(ops, diffOp{' ', off + i, off + j, a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && lcs[(i+1)*w+j] >= lcs[i*w+j+1]:
			ops = append(ops, diffOp{'-', off + i, off + j, a[i]})
			i++
		default:
			ops = append(ops, diffOp{'+', off + i, off + j, b[j]})
			j++
		}
	}
	return ops
}
