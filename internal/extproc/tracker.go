// SPDX-License-Identifier: Apache-2.0

package extproc

import (
	"bytes"
	"encoding/json"
	"strings"
)

// tracker follows a JSON text that comes in pieces, as far as an early pick needs
// it: where the text may be cut and how to close it there, and whether the model is
// named once. It does not validate.
type tracker struct {
	stack   []byte // closing brackets that are due, the innermost last
	deep    bool   // deeper than any body should be
	pos     int    // bytes seen
	safe    int    // the text may be cut here and closed with the stack
	inStr   bool
	value   bool // the string is a value, or a value is due
	escape  int  // bytes of an escape that are still due; from is where it began
	from    int
	key     []byte // of the string at the top level that may be a key
	models  int    // members of the top level that some engine reads as "model"
	pending bool   // key holds a string that a colon makes a key
	naming  bool   // the next value of the top level is the model's name
	named   bool   // the model's name is complete
}

// maxTrackedKey bounds the keys that are compared, escapes included, in bytes:
// "model" has 30 where each letter is an escape.
const maxTrackedKey = 32

// feed goes on with the next piece.
func (t *tracker) feed(p []byte) {
	for i := 0; i < len(p); {
		if t.inStr {
			i = t.inString(p, i)
			continue
		}
		at := t.pos + i
		switch c := p[i]; c {
		case '"':
			t.inStr = true
			t.key, t.pending = t.key[:0], false
		case '{', '[':
			t.open(c)
			t.safe = at + 1
		case '}', ']':
			if n := len(t.stack); n > 0 {
				t.stack = t.stack[:n-1]
			}
			t.value, t.safe = false, at+1
		case ',':
			t.safe = at
			t.value = t.inArray()
		case ':':
			t.value = true
			t.member()
		}
		i++
	}
	t.pos += len(p)
}

func (t *tracker) open(c byte) {
	if len(t.stack) >= 512 {
		t.deep = true
		return
	}
	t.stack = append(t.stack, c+2) // '{' and '}' lie two apart, as do '[' and ']'
	t.value = c == '['
}

func (t *tracker) inArray() bool {
	n := len(t.stack)
	return n > 0 && t.stack[n-1] == ']'
}

// topKey reports whether a string here may be a key of the top level.
func (t *tracker) topKey() bool { return len(t.stack) == 1 && !t.value }

// inString goes on in a string from p[i].
func (t *tracker) inString(p []byte, i int) int {
	if t.escape > 0 {
		c := p[i]
		t.escape--
		if t.escape == 0 && c == 'u' && t.pos+i == t.from+1 {
			t.escape = 4
		}
		t.take(p[i : i+1])
		return i + 1
	}
	end := i + quoteOrEscape(p[i:])
	t.take(p[i:end])
	if end == len(p) {
		return end
	}
	if p[end] == '\\' {
		t.escape, t.from = 1, t.pos+end
		t.take(p[end : end+1])
		return end + 1
	}
	t.inStr = false
	if t.value {
		t.safe = t.pos + end + 1
		t.named = t.named || t.naming
	} else {
		t.pending = t.topKey()
	}
	return end + 1
}

// take keeps the bytes of what may be a key.
func (t *tracker) take(b []byte) {
	if t.topKey() && len(t.key) <= maxTrackedKey {
		t.key = append(t.key, b[:min(len(b), maxTrackedKey+1)]...)
	}
}

// quoteOrEscape returns the index of the first quote or backslash, len(p) where
// there is none.
func quoteOrEscape(p []byte) int {
	q := bytes.IndexByte(p, '"')
	if q < 0 {
		q = len(p)
	}
	if e := bytes.IndexByte(p[:q], '\\'); e >= 0 {
		return e
	}
	return q
}

// member looks at the key that a colon followed.
func (t *tracker) member() {
	if !t.pending {
		return
	}
	t.pending, t.naming = false, false
	key := string(t.key)
	if strings.Contains(key, `\`) && json.Unmarshal([]byte(`"`+key+`"`), &key) != nil {
		return
	}
	if strings.EqualFold(key, "model") {
		t.models++
		t.naming = true
	}
}

// complete returns where what came so far may be cut, and what closes it there. ok
// is false where it cannot be closed.
func (t *tracker) complete() (cut int, closing []byte, ok bool) {
	if t.deep || len(t.stack) == 0 || t.models > 1 {
		return 0, nil, false
	}
	cut = t.safe
	if t.inStr && t.value {
		cut = t.pos
		if t.escape > 0 {
			cut = t.from
		}
		closing = append(closing, '"')
	}
	for i := len(t.stack) - 1; i >= 0; i-- {
		closing = append(closing, t.stack[i])
	}
	return cut, closing, true
}
