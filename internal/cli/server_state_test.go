// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/replica"
)

// startReplicas starts simulated replicas that run so many times faster than their
// accelerator.
func startReplicas(t *testing.T, n int, change func(i int, o *replica.Options)) (urls []string, all []*replica.Server) {
	t.Helper()
	for i := range n {
		o := replica.Options{Models: []string{"m"}, Listen: "127.0.0.1:0", Speed: 50}
		if change != nil {
			change(i, &o)
		}
		r, err := replica.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		urls, all = append(urls, r.URL()), append(all, r)
	}
	return urls, all
}

// turn asks for turn n of conversation c, whose prompt grows by about 750 tokens a
// turn, and returns the tokens of the prompt and how many of them were cached.
func turn(t *testing.T, base string, c, n int) (prompt, cached int) {
	t.Helper()
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var ms []message
	for k := range n {
		ms = append(ms, message{"user", strings.Repeat(fmt.Sprintf("conversation %d turn %d. ", c, k), 120)})
		if k < n-1 {
			ms = append(ms, message{"assistant", "yes"})
		}
	}
	b, err := json.Marshal(map[string]any{"model": "m", "messages": ms, "max_tokens": 4})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(base+"/v1/chat/completions", "application/json", strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ = io.ReadAll(res.Body)
	var a struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(b, &a); err != nil || a.Usage.Prompt == 0 {
		t.Fatalf("%d %s %v", res.StatusCode, b, err)
	}
	return a.Usage.Prompt, a.Usage.Details.Cached
}

// round lets every conversation take its turn n and returns the share of the prompts'
// tokens that came from a cache.
func round(t *testing.T, base string, conversations, n int) float64 {
	t.Helper()
	prompt, cached := 0, 0
	for c := range conversations {
		p, k := turn(t, base, c, n)
		prompt, cached = prompt+p, cached+k
	}
	return float64(cached) / float64(prompt)
}

// TestWarmAfterRestart: a router that finds its index again sends each conversation
// where it was; the hit ratio right after a restart is within 5 % of what the turn
// would have had. One that does not find it scatters them.
func TestWarmAfterRestart(t *testing.T) {
	const conversations = 24
	ratio := func(state bool) (before, after float64) {
		urls, _ := startReplicas(t, 4, nil)
		dir := ""
		if state {
			dir = t.TempDir()
		}
		keep := func(c *config.Config) { c.StateDir = dir }
		s, stop := runServer(t, keep, urls...)
		round(t, s.GatewayURL(), conversations, 3)
		before = round(t, s.GatewayURL(), conversations, 4)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		s, _ = runServer(t, keep, urls...)
		return before, round(t, s.GatewayURL(), conversations, 5)
	}
	before, after := ratio(true)
	t.Logf("hit ratio of turn 4 %.3f, of turn 5 after the restart %.3f", before, after)
	// Turn 4 finds 3 of 4 parts, turn 5 finds 4 of 5.
	if want := before / 0.75 * 0.8; after < 0.95*want {
		t.Errorf("hit ratio after the restart %.3f, want about %.3f", after, want)
	}
	if _, cold := ratio(false); cold > 0.9*after {
		t.Errorf("without its state a router finds %.3f: the test shows nothing", cold)
	} else {
		t.Logf("without its state %.3f", cold)
	}
}

// TestStateOfAnotherProcess: what a replica cached is not believed in once its process
// is another one.
func TestStateOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "index-chat.bin")
	if err := os.WriteFile(file, []byte("PSPXnonsense that is long enough to be read"), 0o600); err != nil {
		t.Fatal(err)
	}
	urls, _ := startReplicas(t, 1, nil)
	keep := func(c *config.Config) { c.StateDir = dir }
	s, stop := runServer(t, keep, urls...)
	if _, cached := turn(t, s.GatewayURL(), 1, 2); cached != 0 {
		t.Errorf("%d tokens cached at first", cached)
	}
	turn(t, s.GatewayURL(), 1, 2)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(file); err != nil || len(b) < 100 {
		t.Errorf("saved %d bytes, %v", len(b), err)
	}
}

// twoRouters returns what starts either of two routers with one secret that tell each
// other what they send.
func twoRouters(t *testing.T, replicas ...string) func(i int) (*server, func() error) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("what two routers know\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	addr := []string{unusedAddr(t), unusedAddr(t)}
	return func(i int) (*server, func() error) {
		return runServer(t, func(c *config.Config) {
			c.Share.Peers, c.Share.Listen, c.Share.SecretFile = strings.Join(addr, ","), addr[i], secret
		}, replicas...)
	}
}

// TestTwoRouters: each router sees what the other has in flight, and forgets it when
// the other is gone.
func TestTwoRouters(t *testing.T) {
	engine := newEngine(t)
	start := twoRouters(t, engine.URL)
	a, stopA := start(0)
	b, _ := start(1)
	if a.hashKey != b.hashKey {
		t.Fatal("two routers with one secret hash prompts with two keys")
	}
	go func() {
		if res, err := ask(http.DefaultClient, a.GatewayURL(), true); err == nil {
			io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}()
	at := func(s *server) (own, peers int) {
		f, _ := s.Pool("chat")
		for _, e := range f.Stats().Endpoints {
			own, peers = own+e.InFlight, peers+e.PeerInFlight
		}
		return own, peers
	}
	eventually(t, "b sees the stream of a", func() bool { own, peers := at(b); return own == 0 && peers == 1 })
	if own, peers := at(a); own != 1 || peers != 0 {
		t.Errorf("a has %d of its own, %d of others", own, peers)
	}
	st := b.peersStatus()
	if len(st.Peers) != 1 || !st.Peers[0].Heard || !st.Peers[0].Telling || st.Peers[0].InFlight != 1 || st.Peers[0].OtherKey {
		t.Errorf("status %+v", st)
	}
	close(engine.gate)
	eventually(t, "b sees its end", func() bool { _, peers := at(b); return peers == 0 })
	if err := stopA(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b forgets a", func() bool { st := b.peersStatus(); return !st.Peers[0].Heard })
}

// TestShareNeedsASecret: an exchange that others can reach is not open.
func TestShareNeedsASecret(t *testing.T) {
	c := config.Default()
	c.Listen.HTTP, c.Listen.Admin = "127.0.0.1:0", ""
	p := config.DefaultPool("chat")
	p.Replicas.Static = []string{"http://127.0.0.1:1"}
	c.Pools = []config.Pool{p}
	c.Share.Listen = "0.0.0.0:0"
	if s, err := buildServer(serverOptions{Config: c}); err == nil {
		s.Close()
		t.Error("a router listens to everybody")
	} else if !strings.Contains(err.Error(), "without a secret") {
		t.Error(err)
	}
}

// TestIndexFromAPeer: a router that is started anew, without a directory of its own,
// finds in the index of another one where conversations are cached.
func TestIndexFromAPeer(t *testing.T) {
	const conversations = 24
	urls, _ := startReplicas(t, 4, nil)
	start := twoRouters(t, urls...)
	a, stopA := start(0)
	b, _ := start(1)
	blocks := func(s *server) (n int) {
		f, _ := s.Pool("chat")
		for _, e := range f.Stats().Endpoints {
			n += e.CacheBlocks
		}
		return n
	}
	eventually(t, "they hear each other", func() bool {
		p, q := a.peersStatus().Peers, b.peersStatus().Peers
		return len(p) == 1 && len(q) == 1 && p[0].Heard && q[0].Heard
	})
	round(t, b.GatewayURL(), conversations, 3)
	before := round(t, b.GatewayURL(), conversations, 4)
	if err := stopA(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "b forgets a", func() bool { return !b.peersStatus().Peers[0].Heard })
	began := time.Now()
	a, _ = start(0)
	eventually(t, "a takes the index of b", func() bool { return blocks(a) >= blocks(b) })
	took := time.Since(began)
	after := round(t, a.GatewayURL(), conversations, 5)
	t.Logf("hit ratio of turn 4 %.3f, of turn 5 at the restarted router %.3f; warm after %v", before, after, took)
	// Turn 4 finds 3 of 4 parts, turn 5 finds 4 of 5.
	if want := before / 0.75 * 0.8; after < 0.95*want {
		t.Errorf("hit ratio after the restart %.3f, want about %.3f", after, want)
	}
}

// TestShortSecret: what can be guessed is no secret.
func TestShortSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("fifteen bytes..\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Listen.HTTP, c.Listen.Admin, c.Share.SecretFile = "127.0.0.1:0", "", file
	p := config.DefaultPool("chat")
	p.Replicas.Static = []string{"http://127.0.0.1:1"}
	c.Pools = []config.Pool{p}
	if s, err := buildServer(serverOptions{Config: c}); err == nil {
		s.Close()
		t.Error("a secret of fifteen bytes is taken")
	} else if !strings.Contains(err.Error(), "at least 16") {
		t.Error(err)
	}
}
