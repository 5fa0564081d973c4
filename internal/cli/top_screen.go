// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strconv"
	"strings"
)

// ink is how a cell looks. Colour only ever repeats what words and marks say.
type ink uint8

// Inks and their SGR parameters.
const (
	inkPlain ink = iota
	inkBold
	inkDim
	inkGood
	inkWarn
	inkBad
	inkInfo
	inkBar
	inkSelected
	inkTitle
	numInks
)

var sgr = [numInks]string{"0", "0;1", "0;2", "0;32", "0;33", "0;31", "0;36", "0;36", "0;7", "0;1;7"}

// sgrMono keeps weight and reverse where colour is not wanted.
var sgrMono = [numInks]string{"0", "0;1", "0;2", "0", "0;1", "0;1", "0", "0", "0;7", "0;1;7"}

type cell struct {
	r   rune
	ink ink
}

// screen is a rectangle of cells. All runes that are put on it are one column wide.
type screen struct {
	w, h  int
	cells []cell
}

func newScreen(w, h int) *screen {
	s := &screen{w: w, h: h, cells: make([]cell, w*h)}
	for i := range s.cells {
		s.cells[i].r = ' '
	}
	return s
}

// put writes text at column x of line y, cut at the edge, and returns the column
// after it.
func (s *screen) put(x, y int, text string, k ink) int {
	for _, r := range text {
		if y >= 0 && y < s.h && x >= 0 && x < s.w {
			if r < ' ' || r == 0x7f {
				r = ' ' // a name must not steer the terminal
			}
			s.cells[y*s.w+x] = cell{r, k}
		}
		x++
	}
	return x
}

// right writes text so that it ends before column x.
func (s *screen) right(x, y int, text string, k ink) { s.put(x-len([]rune(text)), y, text, k) }

// fill gives the rest of a line an ink.
func (s *screen) fill(y int, k ink) {
	for x := range s.w {
		s.cells[y*s.w+x].ink = k
	}
}

// line is one line as text, without trailing spaces.
func (s *screen) line(y int) string {
	var b strings.Builder
	for x := range s.w {
		b.WriteRune(s.cells[y*s.w+x].r)
	}
	return strings.TrimRight(b.String(), " ")
}

// String is the screen as text, for tests and for output that is no terminal.
func (s *screen) String() string {
	var b strings.Builder
	last := s.h - 1
	for last >= 0 && s.line(last) == "" {
		last--
	}
	for y := 0; y <= last; y++ {
		b.WriteString(s.line(y))
		b.WriteByte('\n')
	}
	return b.String()
}

// Synchronised output: a terminal that knows it shows the frame at once, others
// ignore it.
const (
	syncBegin = "\x1b[?2026h"
	syncEnd   = "\x1b[?2026l"
)

// diff returns what turns the terminal from old into s: only cells that changed are
// sent. A nil old, or one of another size, draws everything.
func (s *screen) diff(old *screen, color bool) string {
	inks := &sgrMono
	if color {
		inks = &sgr
	}
	whole := old == nil || old.w != s.w || old.h != s.h
	var b strings.Builder
	if whole {
		b.WriteString("\x1b[0m\x1b[2J")
	}
	at, now := -1, numInks // cursor as an index of a cell; ink in force
	for i, c := range s.cells {
		if !whole && c == old.cells[i] || whole && c == (cell{' ', inkPlain}) {
			continue
		}
		if at != i || i%s.w == 0 {
			b.WriteString("\x1b[" + strconv.Itoa(i/s.w+1) + ";" + strconv.Itoa(i%s.w+1) + "H")
		}
		if c.ink != now {
			b.WriteString("\x1b[" + inks[c.ink] + "m")
			now = c.ink
		}
		b.WriteRune(c.r)
		at = i + 1
	}
	if b.Len() == 0 {
		return ""
	}
	return syncBegin + b.String() + "\x1b[0m" + syncEnd
}
