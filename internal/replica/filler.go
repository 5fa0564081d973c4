// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"math"
	"strings"
	"sync"
)

// Answers are deterministic filler: a cyclic text of plain words, of which an answer
// begins at a word that the prompt chooses. Each token is four bytes of it, so any
// part of any answer is a slice of the text, without state or copying.

const fillerWords = `the a one this that each every some many few water stream gate wheel stone bridge valley river
mill light morning evening north south east west hand line field road house window table paper letter answer
question reason number measure because where when while before after under over between along across around
flows turns opens closes rises falls waits holds carries reaches follows leaves returns begins ends stays moves
slowly quickly often never always again still only almost perhaps together early late clear quiet cold warm long
short deep high low near far full empty steady small large first last next same other`

var fillerText = sync.OnceValue(func() string {
	words := strings.Fields(fillerWords)
	var b strings.Builder
	x := uint64(88172645463325252)
	next := func(n int) int {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		return int(x % uint64(n))
	}
	for b.Len() < 1<<16 {
		for i, n := 0, 5+next(9); i < n; i++ {
			w := words[next(len(words))]
			if i == 0 {
				w = strings.ToUpper(w[:1]) + w[1:]
			}
			b.WriteString(w)
			switch {
			case i < n-1 && next(9) == 0:
				b.WriteString(", ")
			case i < n-1:
				b.WriteByte(' ')
			}
		}
		if next(6) == 0 {
			b.WriteString(".\n")
		} else {
			b.WriteString(". ")
		}
	}
	s := b.String()
	return s[:len(s)/tokenBytes*tokenBytes]
})

// fillerStart picks where the answer to a prompt begins: at the start of a sentence.
func fillerStart(seed uint64) int {
	text := fillerText()
	at := int(seed % uint64(len(text)))
	if i := strings.IndexByte(text[at:], '.'); i >= 0 && at+i+2 < len(text) {
		return at + i + 2
	}
	return 0
}

// appendFiller appends tokens [from, to) of the answer that begins at start.
func appendFiller(dst []byte, start, from, to int) []byte {
	text := fillerText()
	at := (start + from*tokenBytes) % len(text)
	for n := (to - from) * tokenBytes; n > 0; {
		k := min(n, len(text)-at)
		dst = append(dst, text[at:at+k]...)
		n -= k
		at = 0
	}
	return dst
}

// naturalLength is how many tokens the model answers when nothing cuts it short:
// lognormal with the given mean, by a seed that the prompt chooses.
func naturalLength(seed uint64, mean float64) int {
	const sigma = 0.8
	u1 := float64(seed>>11|1) / (1 << 53)
	u2 := float64((seed*0x9e3779b97f4a7c15)>>11) / (1 << 53)
	z := math.Sqrt(-2*math.Log(u1)) * math.Cos(2*math.Pi*u2)
	n := math.Exp(math.Log(mean) - sigma*sigma/2 + sigma*z)
	return int(min(max(n, 1), 20*mean))
}
