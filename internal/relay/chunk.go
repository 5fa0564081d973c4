// SPDX-License-Identifier: Apache-2.0

package relay

import "errors"

var errFraming = errors.New("the chunked framing of the answer is broken")

// chunks follows the chunked framing of an answer over any splitting into reads.
// Extensions and trailers are dropped: both belong to one hop.
type chunks struct {
	state  chunkState
	digits int
	left   int64
	line   int // bytes of the current extension or of all trailers
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExt
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	trailerStart
	trailerLine
	trailerLF
)

// maxChunkLine bounds an extension, and all trailers together, in bytes.
const maxChunkLine = 8 << 10

// decode removes the framing of b in place. It returns the payload, which lies in
// b, how much of b belongs to this answer, and whether the answer is complete.
func (c *chunks) decode(b []byte) (payload []byte, used int, done bool, err error) {
	start, end := 0, 0 // the payload so far is b[start:end]
	i := 0
	for i < len(b) {
		if c.state == chunkData {
			n := int(min(c.left, int64(len(b)-i)))
			if start == end {
				start, end = i, i+n
			} else {
				end += copy(b[end:], b[i:i+n])
			}
			i += n
			if c.left -= int64(n); c.left == 0 {
				c.state = chunkDataCR
			}
			continue
		}
		if done, err = c.step(b[i]); err != nil {
			return b[start:end], i, false, err
		}
		i++
		if done {
			return b[start:end], i, true, nil
		}
	}
	return b[start:end], i, false, nil
}

// step takes one byte of framing.
func (c *chunks) step(b byte) (done bool, err error) {
	ok := true
	switch c.state {
	case chunkSize:
		ok = c.size(b)
	case chunkExt:
		c.line++
		ok = c.line < maxChunkLine && b != '\n'
		if b == '\r' {
			c.state = chunkSizeLF
		}
	case chunkSizeLF:
		ok = b == '\n'
		c.line = 0
		if c.state = chunkData; c.left == 0 {
			c.state = trailerStart
		}
	case chunkDataCR:
		ok = b == '\r'
		c.state = chunkDataLF
	case chunkDataLF:
		ok = b == '\n'
		c.state, c.digits = chunkSize, 0
	case trailerStart:
		if c.state = trailerLine; b == '\r' {
			c.state = trailerLF
		}
	case trailerLine:
		c.line++
		ok = c.line < maxChunkLine
		if b == '\n' {
			c.state = trailerStart
		}
	case trailerLF:
		ok, done = b == '\n', b == '\n'
	}
	if !ok {
		return false, errFraming
	}
	return done, nil
}

func (c *chunks) size(b byte) bool {
	var d byte
	switch {
	case b >= '0' && b <= '9':
		d = b - '0'
	case b|0x20 >= 'a' && b|0x20 <= 'f':
		d = b | 0x20 - 'a' + 10
	case c.digits == 0:
		return false
	case b == '\r':
		c.state = chunkSizeLF
		return true
	case b == ';' || b == ' ' || b == '\t':
		c.state = chunkExt
		return true
	default:
		return false
	}
	c.left = c.left<<4 | int64(d)
	c.digits++
	return c.digits <= 15
}
