// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// field is one header line of an answer.
type field struct{ key, value string }

// head is the parsed head of an answer.
type head struct {
	status  int
	http10  bool
	length  int64 // -1: not told
	chunked bool
	close   bool
	keep    int      // seconds of a Keep-Alive header; 0: not told
	named   []string // headers that Connection names
}

var (
	errHead     = errors.New("the head of the answer is broken")
	errHeadLong = errors.New("the head of the answer is too long")
	errFramed   = errors.New("the answer says its length in two ways")
	errSwitch   = errors.New("the replica switched protocols unasked")
)

// headEnd returns the length of the head that b begins with, its empty line
// included; 0 where it is not complete. from is where a search before this one
// stopped. Line ends may be LF alone.
func headEnd(b []byte, from int) int {
	for i := max(from-2, 0); ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n + 1
		if i < len(b) && b[i] == '\n' {
			return i + 1
		}
		if i+1 < len(b) && b[i] == '\r' && b[i+1] == '\n' {
			return i + 2
		}
	}
}

// parseHead parses a complete head. The fields point into one copy of b.
func parseHead(b []byte, fields []field) (head, []field, error) {
	h := head{length: -1}
	rest := string(b)
	line, rest := cutLine(rest)
	if !h.statusLine(line) {
		return h, fields, errHead
	}
	for {
		if line, rest = cutLine(rest); line == "" {
			break
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || !httpguts.ValidHeaderFieldName(key) {
			return h, fields, errHead
		}
		value = strings.Trim(value, " \t")
		if !httpguts.ValidHeaderFieldValue(value) {
			return h, fields, errHead
		}
		f := field{textproto.CanonicalMIMEHeaderKey(key), value}
		keep, err := h.note(f)
		if err != nil {
			return h, fields, err
		}
		if keep {
			fields = append(fields, f)
		}
	}
	if h.chunked {
		if h.length >= 0 {
			h.close = true // the framing is clear, but the replica is not to be trusted further
		}
		h.length = -1
	}
	return h, fields, nil
}

func cutLine(s string) (line, rest string) {
	line, rest, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(line, "\r"), rest
}

func (h *head) statusLine(s string) bool {
	if len(s) < 12 || s[:7] != "HTTP/1." || s[8] != ' ' || len(s) > 12 && s[12] != ' ' {
		return false
	}
	switch s[7] {
	case '1':
	case '0':
		h.http10, h.close = true, true
	default:
		return false
	}
	for _, c := range []byte(s[9:12]) {
		if c < '0' || c > '9' {
			return false
		}
		h.status = h.status*10 + int(c-'0')
	}
	return h.status >= 100 && httpguts.ValidHeaderFieldValue(s[12:])
}

// note reads the fields that frame the answer or belong to this hop, and reports
// whether f goes on to the client.
func (h *head) note(f field) (keep bool, err error) {
	switch f.key {
	case "Content-Length":
		n, err := strconv.ParseUint(f.value, 10, 62)
		if err != nil {
			return false, errHead
		}
		if h.length >= 0 && h.length != int64(n) {
			return false, errFramed
		}
		h.length = int64(n)
		return false, nil
	case "Transfer-Encoding":
		if h.chunked || !strings.EqualFold(f.value, "chunked") {
			return false, errFramed
		}
		h.chunked = true
		return false, nil
	case "Connection":
		for tok := range strings.SplitSeq(f.value, ",") {
			switch tok = strings.TrimSpace(tok); {
			case strings.EqualFold(tok, "close"):
				h.close = true
			case strings.EqualFold(tok, "keep-alive"):
				if h.http10 {
					h.close = false
				}
			case tok != "":
				h.named = append(h.named, textproto.CanonicalMIMEHeaderKey(tok))
			}
		}
		return false, nil
	case "Keep-Alive":
		if _, s, ok := strings.Cut(f.value, "timeout="); ok {
			s, _, _ = strings.Cut(s, ",")
			if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil && n > 0 {
				h.keep = n
			}
		}
		return false, nil
	}
	return !hopByHop(f.key), nil
}

// hopByHop reports whether a header, in canonical form, belongs to one hop.
func hopByHop(key string) bool {
	switch key {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// Request is what goes to a replica. It can be sent several times.
type Request struct {
	Method string
	// Target is the path and query, without the path of the replica's base URL.
	Target string
	// Header is sent without the fields that belong to one hop, and without Host,
	// Content-Length and Expect.
	Header http.Header
	// Body is sent as one. It must not change before the answer is complete.
	Body [3][]byte
	// Polled asks for a connection from which an epoll set can copy the answer.
	Polled bool
	// Waiter is asked now and then while nothing of an answer has come; nil: the
	// limits alone bound the wait.
	Waiter Waiter
	// Informational gets 1xx answers; nil: they are dropped.
	Informational func(status int, h http.Header)
}

// Waiter decides how long a request waits for the first byte of its answer.
type Waiter interface {
	// Patient reports whether to wait on after waited. It must not block.
	Patient(waited time.Duration) bool
}

func (r *Request) bodyLen() int { return len(r.Body[0]) + len(r.Body[1]) + len(r.Body[2]) }

// appendHead appends the request head.
func appendHead(o []byte, rep *replica, r *Request, size int) []byte {
	o = append(o, r.Method...)
	o = append(o, ' ')
	o = append(o, rep.basePath...)
	o = append(o, r.Target...)
	o = append(o, " HTTP/1.1\r\nHost: "...)
	o = append(o, rep.host...)
	o = append(o, "\r\n"...)
	named := namedByConnection(r.Header)
	for k, vs := range r.Header {
		if hopByHop(k) || k == "Host" || k == "Content-Length" || k == "Expect" || named != nil && contains(named, k) {
			continue
		}
		for _, v := range vs {
			o = append(o, k...)
			o = append(o, ": "...)
			o = append(o, v...)
			o = append(o, "\r\n"...)
		}
	}
	if size > 0 || r.Method == http.MethodPost || r.Method == http.MethodPut || r.Method == http.MethodPatch {
		o = append(o, "Content-Length: "...)
		o = strconv.AppendInt(o, int64(size), 10)
		o = append(o, "\r\n"...)
	}
	return append(o, "\r\n"...)
}

// namedByConnection returns the headers that Connection marks as belonging to one
// hop; nil in the usual case.
func namedByConnection(h http.Header) []string {
	var out []string
	for _, v := range h["Connection"] {
		if strings.EqualFold(v, "keep-alive") || strings.EqualFold(v, "close") {
			continue
		}
		for tok := range strings.SplitSeq(v, ",") {
			out = append(out, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(tok)))
		}
	}
	return out
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}
