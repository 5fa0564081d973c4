// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"
)

// result is what is known of an answer at some moment.
type result struct {
	call    *call
	prompt  int
	cached  int
	output  int
	block   int   // tokens a KV block
	created int64 // Unix seconds
}

func (r *result) total() int { return r.prompt + r.output }

// format writes the answer of one API. The append functions add complete frames to b.
type format interface {
	appendStart(b []byte, r *result) []byte
	appendDelta(b []byte, r *result, text []byte) []byte
	appendEnd(b []byte, r *result, text []byte) []byte // text is what no delta has carried yet
	appendFailure(b []byte, e *apiError) []byte        // an error in a stream that has begun
	whole(r *result, text []byte) []byte               // the answer that is not streamed
	refusal(e *apiError) []byte
}

// serve runs one request: refuse, or submit and write what the engine produces.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, c *call, f format, err *apiError) {
	if refused := s.gate(); refused != nil {
		err = refused
	}
	if err != nil {
		writeJSON(w, err.status, f.refusal(err))
		return
	}
	j := s.job(c)
	if j.asked, err = s.asked(r.Header); err != nil {
		writeJSON(w, err.status, f.refusal(err))
		return
	}
	if !s.submit(j) {
		writeJSON(w, errBusy.status, f.refusal(errBusy))
		return
	}
	defer s.abandon(j) // does nothing once the engine is through with it
	res := &result{call: c, prompt: len(c.tokens), block: s.profile.BlockTokens, created: time.Now().Unix()}
	if c.stream {
		s.serveStream(w, r, j, f, res)
		return
	}
	for j.state.Load() == jobRunning {
		select {
		case <-j.notify:
		case <-r.Context().Done():
			return
		}
	}
	if j.state.Load() == jobLost {
		s.lost(w, f, false)
		return
	}
	s.mangle(int(j.produced.Load()))
	res.cached, res.output = int(j.cached.Load()), int(j.produced.Load())
	writeJSON(w, http.StatusOK, f.whole(res, c.text(nil, 0, res.output)))
}

func (s *Server) serveStream(w http.ResponseWriter, r *http.Request, j *job, f format, res *result) {
	c := res.call
	out := http.NewResponseController(w)
	var buf, text []byte
	for {
		select {
		case <-j.notify:
		case <-r.Context().Done():
			return
		}
		state, n := j.state.Load(), int(j.produced.Load())
		if state == jobLost {
			s.lost(w, f, res.output > 0)
			return
		}
		buf = buf[:0]
		if res.output == 0 && n > 0 {
			res.cached = int(j.cached.Load())
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			buf = f.appendStart(buf, res)
		}
		text = text[:0]
		if n > res.output {
			text = c.text(text, res.output, n)
			res.output = n
		}
		if state == jobDone {
			buf = f.appendEnd(buf, res, text)
		} else if len(text) > 0 {
			buf = f.appendDelta(buf, res, text)
		}
		if len(buf) > 0 {
			if _, err := w.Write(buf); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
		if state == jobDone {
			return
		}
		s.mangle(n)
	}
}

// lost ends the answer of a job that the engine lost: a draining server says so, one
// that restarted or died just breaks the connection.
func (s *Server) lost(w http.ResponseWriter, f format, begun bool) {
	s.mu.Lock()
	draining := s.draining
	s.mu.Unlock()
	switch {
	case !draining:
		panic(http.ErrAbortHandler)
	case begun:
		_, _ = w.Write(f.appendFailure(nil, errEngine)) // the client may be gone
	default:
		writeJSON(w, errEngine.status, f.refusal(errEngine))
	}
}

// requestID makes the id of an answer: the client's X-Request-Id where it sent one.
func requestID(r *http.Request, prefix string) string {
	if id := r.Header.Get("X-Request-Id"); id != "" && len(id) <= 128 && printable(id) {
		return prefix + id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + hex.EncodeToString(b[:])
}

func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7e || s[i] == '"' || s[i] == '\\' {
			return false
		}
	}
	return true
}

// appendString appends text as a JSON string. Filler needs no escape but the line
// feed; model names may need more.
func appendString(b, text []byte) []byte {
	for _, ch := range text {
		if ch < 0x20 && ch != '\n' || ch >= 0x7f || ch == '"' || ch == '\\' {
			q, err := json.Marshal(string(text))
			if err != nil {
				return append(b, `""`...)
			}
			return append(b, q...)
		}
	}
	b = append(b, '"')
	for _, ch := range text {
		if ch == '\n' {
			b = append(b, '\\', 'n')
		} else {
			b = append(b, ch)
		}
	}
	return append(b, '"')
}
