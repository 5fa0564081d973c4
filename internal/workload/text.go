// SPDX-License-Identifier: Apache-2.0

package workload

// BytesPerToken is the length of one token of synthetic text, its space included.
// It is also what the simulated replica takes for a token.
const BytesPerToken = 4

// words are common English words of three letters: with their space each is one
// token of the usual byte-pair vocabularies, and none needs an escape in JSON.
const words = "the and for are but not you all any can her was one our out day " +
	"get has him his how man new now old see two way who boy did its " +
	"let put say she too use act add age ago aid aim air arm art ask " +
	"bad bag bar bed bet bid big bit box bus buy car cat cup cut dad " +
	"die dog dry due eat end eye far few fit fix fly fun gas god got " +
	"gun guy hat hit hot ice ill job key kid lab law lay leg lie lot " +
	"low map may mix mom mum net nor off oil pay per pop pot pro raw " +
	"red rid row run sea set sit six sky son sun tax tea ten tie top "

const numWords = len(words) / BytesPerToken

// AppendText appends the text of tokens tokens of segment id to dst. Equal ids
// give equal text, and a shorter text is the beginning of a longer one.
func AppendText(dst []byte, id uint64, tokens int) []byte {
	const perDraw = 8 // words a draw: 7 bits each
	h := mix(id + 0x632be59bd9b4e019)
	for i := 0; i < tokens; i += perDraw {
		bits := mix(h + uint64(i))
		for n := min(perDraw, tokens-i); n > 0; n-- {
			w := int(bits&0x7f) % numWords * BytesPerToken
			dst = append(dst, words[w:w+BytesPerToken]...)
			bits >>= 7
		}
	}
	return dst
}

// AppendText appends the text of the segment to dst.
func (s *Segment) AppendText(dst []byte) []byte {
	for off := 0; off < int(s.Tokens); {
		id, _, n := s.piece(off)
		dst = AppendText(dst, id, n)
		off += n
	}
	return dst
}

// AppendPrompt appends the text of all segments, roles ignored: the prompt of a
// completion request.
func (t *Turn) AppendPrompt(dst []byte) []byte {
	for i := range t.Prompt {
		dst = t.Prompt[i].AppendText(dst)
	}
	return dst
}

// AppendMessages appends the prompt as the JSON array of a chat request: one
// message for each run of segments of the same role.
func (t *Turn) AppendMessages(dst []byte) []byte {
	dst = append(dst, '[')
	for i := 0; i < len(t.Prompt); {
		role := t.Prompt[i].Role
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"role":"`...)
		dst = append(dst, chatRole(role)...)
		dst = append(dst, `","content":"`...)
		for ; i < len(t.Prompt) && t.Prompt[i].Role == role; i++ {
			dst = t.Prompt[i].AppendText(dst)
		}
		dst = append(dst, `"}`...)
	}
	return append(dst, ']')
}

// chatRole names the role in a chat request. A tool result goes as a user message:
// a message of role tool would need the id of a tool call that never was.
func chatRole(r Role) string {
	if r == RoleTool {
		return "user"
	}
	return r.String()
}
