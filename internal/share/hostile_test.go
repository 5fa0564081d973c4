// SPDX-License-Identifier: Apache-2.0

package share

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/dispatch"
)

// listening runs the listening side of a handshake, and reads one frame behind it.
func listening(t *testing.T, secret string) (c net.Conn, result chan error) {
	t.Helper()
	a, b := net.Pipe()
	result = make(chan error, 1)
	go func() {
		f, _, err := accepted(b, []byte(secret), hello{Router: "listener"})
		if err == nil {
			_, err = f.read()
		}
		result <- err
		b.Close()
	}()
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, result
}

// TestReflection: the listener's own proof, sent back to it, proves nothing.
func TestReflection(t *testing.T) {
	c, result := listening(t, "s")
	nonce := bytes.Repeat([]byte{7}, nonceSize)
	_, _ = c.Write(append([]byte(connMagic), nonce...))
	answer := make([]byte, 4+nonceSize+32)
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = c.Write(answer[4+nonceSize:]) }()
	if err := <-result; err != errSecret {
		t.Errorf("%v", err)
	}
}

// TestReplayedConnection: what was recorded of one connection passes in no other one,
// and a frame does not pass twice.
func TestReplayedConnection(t *testing.T) {
	var record bytes.Buffer
	c, result := listening(t, "s")
	f, _, err := dialled(tee{c, &record}, []byte("s"), hello{Router: "dialler"})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.write([]byte("notes")); err != nil || <-result != nil {
		t.Fatal(err)
	}
	said := record.Bytes()
	c, result = listening(t, "s")
	go func() { _, _ = io.Copy(io.Discard, c) }()
	go func() { _, _ = c.Write(said) }()
	if err := <-result; err != errSecret {
		t.Errorf("a recorded connection: %v", err)
	}
	in, out := net.Pipe()
	r := &framer{c: in, r: bufio.NewReader(in), inKey: []byte("k")}
	w := &framer{c: out, outKey: []byte("k")}
	go func() { _ = w.write([]byte("a")); w.out = 0; _ = w.write([]byte("a")) }()
	if _, err := r.read(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.read(); err == nil {
		t.Error("a frame passes twice")
	}
}

type tee struct {
	net.Conn
	w io.Writer
}

func (t tee) Write(p []byte) (int, error) {
	_, _ = t.w.Write(p)
	return t.Conn.Write(p)
}

// TestStrangersAreBounded: connections that prove nothing are closed beyond a number,
// and do not fill the log; a router still gets in once they are gone.
func TestStrangersAreBounded(t *testing.T) {
	ln := port(t)
	var log lockedBuffer
	r := &fakeRouter{pool: &fakePool{heard: map[int32][]dispatch.Note{}}}
	r.x = NewExchange(ExchangeOptions{Router: "a", Secret: []byte("s"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	r.pool.sink = r.x.Add("chat", r.pool)
	done := make(chan struct{})
	go func() { defer close(done); r.x.Run(t.Context(), ln) }()
	var open []net.Conn
	for range 3 * handshakesMost {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	closed := make(chan bool, len(open))
	for _, c := range open {
		go func() { _, _ = c.Read(make([]byte, 1)); closed <- true }()
	}
	for range 2 * handshakesMost { // all but those in the handshake, at once
		<-closed
	}
	for _, c := range open {
		c.Close()
	}
	if n := strings.Count(log.String(), "refused a router"); n > 90 {
		t.Errorf("%d lines", n)
	}
	rb := startRouter(t, "b", port(t), "s", 1, ln.Addr().String())
	_ = rb
	eventually(t, "a router gets in", func() bool { return r.pool.ranked() == [2]int{0, 2} })
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestNumbersAreUsedAgain: routers that come under new names do not pile up.
func TestNumbersAreUsedAgain(t *testing.T) {
	x := NewExchange(ExchangeOptions{Router: "a"})
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	c := tcpish{a}
	for i := range 100 {
		in := x.join(hello{Router: strings.Repeat("r", i%60+1)}, c)
		x.leave(strings.Repeat("r", i%60+1), in)
		in.last = time.Now().Add(-2 * forgetAfter)
		if in.number > 2 {
			t.Fatalf("number %d", in.number)
		}
	}
	if s, _ := x.States(); len(s) != 0 {
		t.Errorf("%d are still listed", len(s))
	}
}

type tcpish struct{ net.Conn }

func (tcpish) RemoteAddr() net.Addr { return &net.TCPAddr{} }
