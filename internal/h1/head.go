// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"net/http"
	"net/textproto"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// head is the head of a usual request: POST in HTTP/1.1 with one Content-Length and
// one Host. Its memory is used again for the next request.
type head struct {
	path, query string
	host        string
	length      int64
	header      http.Header
	values      []string // that header points into
}

// usualFields is for how many fields there is memory at once.
const usualFields = 16

// parse reads a head with its empty line. It reports false for whatever is not usual,
// right or wrong: that is for net/http to judge. What it accepts it reads as net/http
// does.
func (h *head) parse(s string) bool {
	if h.header == nil || cap(h.values) > 4*usualFields {
		// The first one, or one after a head of many fields, whose room is not kept.
		h.header, h.values = make(http.Header, usualFields), make([]string, 0, usualFields)
	}
	clear(h.header)
	clear(h.values)
	h.values, h.host, h.length = h.values[:0], "", -1
	line, rest, ok := cutLine(s)
	if !ok || !h.requestLine(line) {
		return false
	}
	for {
		if line, rest, ok = cutLine(rest); !ok {
			return false
		}
		if line == "" {
			return rest == "" && h.host != "" && h.length >= 0
		}
		if !h.field(line) {
			return false
		}
	}
}

// cutLine cuts at the first end of a line, which is CR LF.
func cutLine(s string) (line, rest string, ok bool) {
	i := strings.IndexByte(s, '\n')
	if i < 1 || s[i-1] != '\r' {
		return "", "", false
	}
	return s[:i-1], s[i+1:], true
}

const method = "POST "

// requestLine reads POST, a plain path with or without a query, and the version.
func (h *head) requestLine(line string) bool {
	rest, ok := strings.CutPrefix(line, method)
	if !ok {
		return false
	}
	target, ok := strings.CutSuffix(rest, " HTTP/1.1")
	if !ok {
		return false
	}
	h.path, h.query = target, ""
	if i := strings.IndexByte(target, '?'); i >= 0 {
		h.path, h.query = target[:i], target[i+1:]
		if h.query == "" {
			return false
		}
	}
	if len(h.path) < 2 || h.path[0] != '/' || h.path[1] == '/' {
		return false
	}
	for i := range len(h.path) {
		if c := h.path[i]; !letter(c) && c != '/' && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	for i := range len(h.query) {
		if c := h.query[i]; c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	return true
}

func letter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// field reads one line of the header.
func (h *head) field(line string) bool {
	i := strings.IndexByte(line, ':')
	if i < 1 {
		return false
	}
	name := line[:i]
	value := strings.Trim(line[i+1:], " \t")
	if !httpguts.ValidHeaderFieldValue(value) {
		return false
	}
	key := common[name]
	if key == "" {
		if !httpguts.ValidHeaderFieldName(name) {
			return false
		}
		key = textproto.CanonicalMIMEHeaderKey(name)
	}
	switch key {
	case "Host":
		ok := h.host == "" && plainHost(value)
		h.host = value
		return ok // it stands beside the header
	case "Content-Length":
		if h.length >= 0 || !h.readLength(value) {
			return false
		}
	case "Connection":
		if !strings.EqualFold(value, "keep-alive") {
			return false
		}
	case "Transfer-Encoding", "Expect", "Upgrade", "Trailer", "Pragma", "Http2-Settings":
		return false
	}
	h.add(key, value)
	return true
}

func (h *head) add(key, value string) {
	if old := h.header[key]; old != nil {
		h.header[key] = append(old, value)
		return
	}
	n := len(h.values)
	h.values = append(h.values, value)
	h.header[key] = h.values[n : n+1 : n+1]
}

// readLength reads a length of at most 18 digits.
func (h *head) readLength(s string) bool {
	if s == "" || len(s) > 18 {
		return false
	}
	n := int64(0)
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		n = n*10 + int64(s[i]-'0')
	}
	h.length = n
	return true
}

// plainHost accepts names and addresses with or without a port.
func plainHost(s string) bool {
	for i := range len(s) {
		if c := s[i]; !letter(c) && c != '.' && c != '-' && c != '_' && c != ':' && c != '[' && c != ']' {
			return false
		}
	}
	return s != ""
}

// common are the names of usual fields as clients spell them, with their canonical
// form: finding it there takes no memory.
var common = func() map[string]string {
	m := map[string]string{}
	for _, k := range []string{"Host", "Content-Length", "Content-Type", "Connection", "Accept", "Accept-Encoding", "Accept-Language",
		"Authorization", "User-Agent", "X-Request-Id", "Traceparent", "Tracestate", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host",
		"X-Real-Ip", "X-Api-Key", "Api-Key", "Anthropic-Version", "Openai-Organization", "X-Stainless-Lang", "X-Stainless-Package-Version", "X-Stainless-Os",
		"X-Stainless-Arch", "X-Stainless-Runtime", "X-Stainless-Runtime-Version", "X-Stainless-Async", "X-Stainless-Retry-Count",
		"X-Stainless-Read-Timeout", "X-Session-Id", "X-Prompt-Logging", "Cookie"} {
		m[k], m[strings.ToLower(k)] = k, k
	}
	return m
}()
