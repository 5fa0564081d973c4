// SPDX-License-Identifier: Apache-2.0

package h1

import (
	"bufio"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// usual is a head as clients send it.
const usual = "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example:8080\r\nuser-agent: OpenAI/Python 1.0\r\nAccept: */*\r\n" +
	"Authorization: Bearer sk-x\r\nContent-Type: application/json\r\nX-Twice: a\r\nX-Twice: b\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n"

// with puts lines into a usual head.
func with(lines ...string) string {
	return "POST /v1/completions HTTP/1.1\r\n" + strings.Join(append([]string{"Host: a", "Content-Length: 3"}, lines...), "\r\n") + "\r\n\r\n"
}

// sameAsStandard holds what parse accepts to what net/http reads.
func sameAsStandard(t *testing.T, s string) (usual bool) {
	t.Helper()
	var h head
	// A head before it must leave no trace.
	h.parse("POST /other?x=1 HTTP/1.1\r\nHost: b\r\nContent-Length: 9\r\nX-Old: 1\r\nX-Twice: 1\r\n\r\n")
	if !h.parse(s) {
		return false
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(s)))
	if err != nil {
		t.Fatalf("net/http refuses what is taken for usual: %v\n%q", err, s)
	}
	uri := h.path
	if h.query != "" {
		uri += "?" + h.query
	}
	if r.Method != http.MethodPost || r.Proto != "HTTP/1.1" || r.Close || len(r.TransferEncoding) > 0 || len(r.Trailer) > 0 {
		t.Fatalf("net/http reads another kind of request: %+v\n%q", r, s)
	}
	if r.URL.Path != h.path || r.URL.RawQuery != h.query || r.URL.RawPath != "" || r.URL.ForceQuery || r.URL.Host != "" || r.RequestURI != uri {
		t.Fatalf("net/http reads the target %q as %#v\n%q", r.RequestURI, r.URL, s)
	}
	if r.Host != h.host || r.ContentLength != h.length || !reflect.DeepEqual(r.Header, h.header) {
		t.Fatalf("net/http reads host %q, length %d, header %v; read here %q, %d, %v", r.Host, r.ContentLength, r.Header, h.host, h.length, h.header)
	}
	return true
}

func TestHead(t *testing.T) {
	for _, s := range []string{
		usual, with(), with("X-Empty:"), with("X-A:  spaced \t"), with("x-odd_name: 1", "X_B: 2"), with("X-Bytes: \xff\xfe"), with("Accept: a", "accept: b"),
		"POST /v1/x?a=1&b=%zz?c HTTP/1.1\r\nHost: [::1]:80\r\ncontent-length: 000\r\n\r\n",
		with("Content-Encoding: gzip"), with("Cookie: a=b", "Keep-Alive: timeout=5"),
	} {
		if !sameAsStandard(t, s) {
			t.Errorf("not usual: %q", s)
		}
	}
	for _, s := range []string{
		"", "\r\n", strings.Replace(usual, "POST", "GET", 1), strings.Replace(usual, "POST", "post", 1), strings.Replace(usual, "1.1", "1.0", 1),
		strings.ReplaceAll(usual, "\r\n", "\n"), strings.Replace(usual, "POST ", "POST  ", 1), strings.Replace(usual, " HTTP", "  HTTP", 1),
		strings.Replace(usual, "Host: gateway.example:8080\r\n", "", 1), with("Host: b"), with("Content-Length: 3"), with("Content-Length: 4"),
		with("Transfer-Encoding: chunked"), with("transfer-encoding: identity"), with("Expect: 100-continue"), with("Upgrade: h2c"), with("Trailer: x"),
		with("Connection: close"), with("Connection: x-a"), with("Connection: keep-alive, x"), with("Pragma: no-cache"), with("HTTP2-Settings: x"),
		with(" folded: 1"), with("X: 1", "\tfolded"), with("X : 1"), with(": 1"), with("no colon"), with("X: a\x00b"), with("X: a\rb"), with("X\x7f: 1"), with("X\u00e9: 1"),
		"POST //evil HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", "POST /a%2f HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
		"POST /a? HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", "POST /a#b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
		"POST http://b/a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", "POST * HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\n", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999999999999\r\n\r\n", "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a b\r\nContent-Length: 3\r\n\r\n", "POST /a HTTP/1.1\r\nHost:\r\nContent-Length: 3\r\n\r\n",
		"POST /a HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		if sameAsStandard(t, s) {
			t.Errorf("usual: %q", s)
		}
	}
}

// TestRoomOfAHead lets go of the memory that a head of very many fields took.
func TestRoomOfAHead(t *testing.T) {
	var lines []string
	for i := range 500 {
		lines = append(lines, fmt.Sprintf("A%d:", i))
	}
	var h head
	if !h.parse(with(lines...)) || cap(h.values) < 500 {
		t.Fatal("no room for 500 fields")
	}
	if !h.parse(usual) || cap(h.values) > 4*usualFields || len(h.header) != 7 {
		t.Errorf("room for %d fields, %v", cap(h.values), h.header)
	}
}

// TestCommon holds the table of names to what it stands for.
func TestCommon(t *testing.T) {
	for name, key := range common {
		if http.CanonicalHeaderKey(name) != key {
			t.Errorf("%s: %s", name, key)
		}
	}
}

func FuzzHead(f *testing.F) {
	f.Add(usual)
	f.Add(with("X: 1", "x: 2"))
	f.Add(with("Transfer-Encoding: chunked"))
	f.Add("POST /a?b HTTP/1.1\r\nHost: [a]\r\nContent-Length: 1\r\n\r\n")
	f.Fuzz(func(t *testing.T, s string) {
		if n := headEnd([]byte(s), 0); n > 0 {
			sameAsStandard(t, s[:n])
		}
		sameAsStandard(t, s)
	})
}
