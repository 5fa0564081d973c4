// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestMixedConnection answers usual and unusual requests over one connection: the
// first unusual one takes it from the loop to net/http.
func TestMixedConnection(t *testing.T) {
	u := scripted(t, func(c net.Conn, req *http.Request, body []byte) bool {
		answer := okBody
		if len(req.TransferEncoding) > 0 || req.Header.Get("Expect") != "" {
			answer = `{"unexpected":true}`
		}
		io.WriteString(c, jsonAnswer(200, answer))
		return true
	})
	f := newFixture(t, setup{}, u.url)
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	r := bufio.NewReader(c)
	usual := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody)
	for i, request := range []string{
		usual, usual, "GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", usual,
		fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", len(chatBody), chatBody), usual,
	} {
		io.WriteString(c, request)
		res, err := http.ReadResponse(r, nil)
		for err == nil && res.StatusCode == http.StatusContinue {
			res, err = http.ReadResponse(r, nil)
		}
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || strings.HasPrefix(request, "POST") && string(b) != okBody {
			t.Fatalf("request %d: %d %q %v", i, res.StatusCode, b, err)
		}
	}
	if n := f.h.conns.count(); n != 1 {
		t.Errorf("%d connections are counted while there is one", n)
	}
	c.Close()
	for end := time.Now().Add(time.Minute); f.h.conns.count() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a connection that is closed is counted still")
		}
	}
	if (f.srv.running() != nil) != testEpoll {
		t.Error("the loop goes with the epoll set")
	}
}
