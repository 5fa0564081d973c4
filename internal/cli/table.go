// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// table is columns of text. A header that starts with ">" is right-aligned.
type table struct {
	head   []string
	rows   [][]string
	indent string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the table; columns without any content are left out.
func (t *table) write(w io.Writer) {
	width := make([]int, len(t.head))
	right := make([]bool, len(t.head))
	head := make([]string, len(t.head))
	for i, h := range t.head {
		h, right[i] = strings.CutPrefix(h, ">")
		head[i] = h
	}
	for _, r := range t.rows {
		for i, c := range r {
			if n := utf8.RuneCountInString(c); n > width[i] {
				width[i] = n
			}
		}
	}
	for i := range width {
		if width[i] > 0 {
			width[i] = max(width[i], utf8.RuneCountInString(head[i]))
		}
	}
	line := func(cells []string) {
		var b strings.Builder
		b.WriteString(t.indent)
		first := true
		for i := range head {
			if width[i] == 0 {
				continue
			}
			c := ""
			if i < len(cells) {
				c = cells[i]
			}
			if !first {
				b.WriteString("  ")
			}
			first = false
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if right[i] {
				b.WriteString(pad + c)
			} else {
				b.WriteString(c + pad)
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	line(head)
	for _, r := range t.rows {
		line(r)
	}
}

// moment writes a time: how long ago on a terminal, RFC 3339 otherwise.
func (e *Env) moment(t time.Time) string {
	if tty, _ := e.Terminal(); !tty {
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return span(e.Now().Sub(t)) + " ago"
}

// since writes a moment that is known to the second.
func (e *Env) since(t time.Time) string {
	if tty, _ := e.Terminal(); !tty {
		return t.UTC().Round(time.Second).Format(time.RFC3339)
	}
	return e.moment(t)
}

// span writes a duration with the two units that matter.
func span(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// ageText writes an age that came as milliseconds.
func ageText(ms float64) string { return span(time.Duration(ms * 1e6)) }

// countText writes a count that may be unknown.
func countText(n *int) string {
	if n == nil {
		return "unknown"
	}
	return withCommas(*n)
}

// percent writes a share.
func percent(v float64) string { return fmt.Sprintf("%.0f%%", 100*v) }
