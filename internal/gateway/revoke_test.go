// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/dispatch"
	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
)

// A request that runs when its key is revoked finishes, or, where that is configured,
// ends: a stream with an error event, one that waits with 401, one in the middle of an
// answer as a whole by being cut. The streams of other keys go on.
func TestRevokedKeyEndsStreams(t *testing.T) {
	for _, end := range []bool{true, false} {
		goOn := make(chan bool)
		u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
			io.WriteString(c, sseHead+chunk(token)+chunk(token))
			<-goOn
			io.WriteString(c, chunk(finish)+chunk(done)+"0\r\n\r\n")
			return true
		})
		k := newKeyFile(t)
		id, key := k.add(identity.Key{Tenant: "acme"})
		_, other := k.add(identity.Key{Tenant: "acme"})
		keys := k.load()
		f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: keys}, EndStreams: end}}, u.url)
		texts := make([]chan string, 2)
		for i, key := range []string{key, other} {
			texts[i] = make(chan string, 1)
			go func() {
				_, text := f.chat(streamReq, "Authorization", "Bearer "+key)
				texts[i] <- text
			}()
		}
		f.waitFor("two streams", func() bool { return u.seen.Load() == 2 && f.flow.Stats().Endpoints[0].Streams == 2 })
		open := func(id string) bool { return keys.Open(id, time.Now()) }
		if n := f.h.Door().Watches.End(open); n != 0 {
			t.Fatalf("%d ended with open keys", n)
		}
		if err := k.f.Revoke(id); err != nil {
			t.Fatal(err)
		}
		k.f.Save(k.path)
		if err := keys.Reload(); err != nil {
			t.Fatal(err)
		}
		if n := f.h.Door().Watches.End(open); (n == 1) != end {
			t.Fatalf("%d ended", n)
		}
		if end {
			text := <-texts[0]
			if strings.Count(text, `"content"`) != 2 || !strings.Contains(text, "the API key was closed") || strings.Contains(text, `"finish_reason":"stop"`) {
				t.Errorf("the stream ended with %q", text)
			}
		}
		close(goOn)
		for i := range texts {
			if i == 0 && end {
				continue
			}
			if text := <-texts[i]; !strings.Contains(text, "[DONE]") || strings.Contains(text, `"error"`) {
				t.Errorf("stream %d with end %v: %q", i, end, text)
			}
		}
		f.settled()
	}
}

// Whoever waits when the key is revoked gets what a new request gets.
func TestRevokedKeyEndsWaiting(t *testing.T) {
	u := says(t, jsonAnswer(200, okBody))
	k := newKeyFile(t)
	_, key := k.add(identity.Key{Tenant: "acme"})
	f := newFixture(t, setup{options: Options{Auth: &entry.Guard{Keys: k.load()}, EndStreams: true}, dispatch: dispatch.Options{HoldFor: time.Minute}})
	f.observe(fleet.PhaseLoading, u.url)
	status := make(chan int, 1)
	go func() {
		res, _ := f.chat(chatBody, "Authorization", "Bearer "+key)
		status <- res.StatusCode
	}()
	f.waitFor("the queue", func() bool { return f.flow.Stats().Totals.Held == 1 })
	if n := f.h.Door().Watches.End(func(string) bool { return false }); n != 1 {
		t.Fatalf("%d ended", n)
	}
	if got := <-status; got != http.StatusUnauthorized {
		t.Errorf("it got %d", got)
	}
	f.settled()
	if u.seen.Load() != 0 {
		t.Error("it was sent nevertheless")
	}
}

// An answer as a whole that an engine works on when the key is revoked is charged with
// what was made of it, as that of a client that leaves.
func TestRevokedKeyPays(t *testing.T) {
	here := make(chan struct{})
	u := scripted(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		close(here)
		c.Read(make([]byte, 1))
		return false
	})
	m := metered(hourly(admit.OutputTokens, 1000), hourly(admit.PromptTokens, 1000))
	f := newFixture(t, setup{options: Options{Auth: everybody{tenant: "acme", key: "k1"}, Quotas: m, EndStreams: true}}, u.url)
	status := make(chan int, 1)
	go func() {
		res, _ := f.chat(strings.TrimSuffix(chatBody, "}") + `,"max_tokens":50}`)
		status <- res.StatusCode
	}()
	<-here
	time.Sleep(110 * time.Millisecond) // four tokens at the usual pace
	if n := f.h.Door().Watches.End(func(string) bool { return false }); n != 1 {
		t.Fatalf("%d ended", n)
	}
	if got := <-status; got != http.StatusUnauthorized {
		t.Errorf("it got %d", got)
	}
	f.settled()
	if used := f.used(m); used["output tokens"] < 4 || used["output tokens"] > 50 || used["prompt tokens"] <= 0 {
		t.Errorf("charged %v", used)
	}
}
