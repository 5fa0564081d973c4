// SPDX-License-Identifier: Apache-2.0

package share

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/testinput"
)

// redisServer is a server of this test's own, which it may kill.
type redisServer struct {
	t    *testing.T
	addr string
	cmd  *exec.Cmd
}

func startRedis(t *testing.T) *redisServer {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server on this machine")
	}
	s := &redisServer{t: t, addr: fmt.Sprintf("127.0.0.1:%d", testinput.Port(t))}
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *redisServer) start() {
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return
		}
	}
	s.t.Fatal("redis-server does not listen")
}

func (s *redisServer) kill() {
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// gateways are meters that share a server's limits, as processes would.
func gateways(t *testing.T, s *redisServer, n int, limits ...Limit) []*Meter {
	var out []*Meter
	for range n {
		m := NewMeter(Options{
			Policy: &Policy{Tenants: map[string]*Tenant{"acme": {Name: "acme", Limits: limits}}},
			Clock:  func() fleet.Time { return fleet.At(time.Now()) },
			Store:  NewRedis(RedisOptions{Addr: s.addr}),
		})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		t.Cleanup(func() { cancel(); <-done })
		out = append(out, m)
	}
	return out
}

// use runs requests of 10 to 30 tokens over the gateways until stop says so; a third
// of them is given up half way. It returns the tokens that were used.
func use(ms []*Meter, clients int, stop func() bool) (tokens, requests int64) {
	var used, let atomic.Int64
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(c), 7))
			for !stop() {
				m := ms[rng.IntN(len(ms))]
				out := 10 + rng.IntN(21)
				ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
				l, no := m.Reserve(ctx, Ask{Tenant: "acme", Key: "k", Model: "m", Prompt: 5, MaxTokens: out})
				cancel()
				if no != nil {
					time.Sleep(5 * time.Millisecond)
					continue
				}
				if rng.IntN(3) == 0 {
					out /= 2
				}
				for i := range out {
					if i%8 == 0 {
						time.Sleep(time.Millisecond)
					}
					l.Count(1)
				}
				l.Settle(admit.Usage{Requests: 1, Prompt: 5, Output: int64(out)}, false)
				used.Add(int64(out) + 5)
				let.Add(1)
			}
		})
	}
	wg.Wait()
	return used.Load(), let.Load()
}

const testLimit = 20000

func tokensAnHour() Limit {
	return Limit{Rule: admit.Rule{Measure: admit.TotalTokens, Limit: testLimit, Per: time.Hour}}
}

// refilled is what an hourly limit of testLimit regains since a moment.
func refilled(since time.Time) int64 {
	return int64(testLimit*time.Since(since).Hours()) + 2
}

// usedUp says to stop after d, once nearly all of testLimit was charged and the store is up,
// and half a second more has passed in which whoever may get in does. A slow machine takes
// longer to come there.
func usedUp(ms []*Meter, d time.Duration) func() bool { return usedUpTo(ms, d, testLimit*97/100, true) }

// usedUpTo is usedUp for so many tokens, with or without a store.
func usedUpTo(ms []*Meter, d time.Duration, tokens int64, store bool) func() bool {
	var over atomic.Bool
	go func() {
		began := time.Now()
		var since time.Time
		for !over.Load() {
			time.Sleep(20 * time.Millisecond)
			charged, up := int64(0), true
			for _, m := range ms {
				st := m.Stats()
				up = up && st.Store.Up
				if len(st.Balances) > 0 {
					charged += st.Balances[0].Charged
				}
			}
			if since.IsZero() && (up || !store) && charged >= tokens {
				since = time.Now()
			}
			done := !since.IsZero() && time.Since(since) > 500*time.Millisecond && time.Since(began) > d
			over.Store(done || time.Since(began) > 2*time.Minute)
		}
	}()
	return over.Load
}

// While the store is up two gateways together let exactly the limit in.
func TestSharedLimitIsExact(t *testing.T) {
	s := startRedis(t)
	ms := gateways(t, s, 2, tokensAnHour(), Limit{Rule: admit.Rule{Measure: admit.Concurrent, Limit: 100}})
	from := time.Now()
	used, n := use(ms, 200, usedUp(ms, time.Second))
	most := testLimit + refilled(from)
	t.Logf("%d tokens of %d in %d requests", used, testLimit, n)
	if used > most {
		t.Errorf("%d tokens were used, at most %d", used, most)
	}
	if used < testLimit*97/100 {
		t.Errorf("only %d of %d tokens could be used", used, testLimit)
	}
	for i, m := range ms {
		st := m.Stats()
		if st.Open != 0 || !st.Store.Up || st.Store.Gateways != 2 {
			t.Errorf("gateway %d: %d open, %+v", i, st.Open, st.Store)
		}
		t.Logf("gateway %d: %d exchanges", i, st.Store.Exchanges)
	}
}

// A store that is killed, away for a while and back without its memory neither opens
// nor closes the gate.
func TestStoreKilledAndRestarted(t *testing.T) {
	s := startRedis(t)
	ms := gateways(t, s, 2, tokensAnHour())
	from := time.Now()
	var wg sync.WaitGroup
	var used int64
	wg.Go(func() { used, _ = use(ms, 100, usedUp(ms, 2*time.Second)) })
	time.Sleep(60 * time.Millisecond)
	s.kill()
	time.Sleep(time.Second)
	eventually(t, "the outage is noticed", func() bool {
		return !slices.ContainsFunc(ms, func(m *Meter) bool { return m.Stats().Store.Up })
	})
	away := int64(0)
	for _, m := range ms {
		away += m.Stats().Balances[0].Charged
	}
	s.start()
	wg.Wait()
	most := testLimit + int64(FallbackShare*testLimit) + refilled(from)
	t.Logf("%d tokens of %d, %d of them before the store was back", used, testLimit, away)
	if used > most {
		t.Errorf("%d tokens were used, at most %d", used, most)
	}
	if used < testLimit*97/100 {
		t.Errorf("only %d of %d tokens could be used", used, testLimit)
	}
	for _, m := range ms {
		eventually(t, "the store is up, and nothing borrowed from it any more", func() bool {
			st := m.Stats().Store
			return st.Up && st.Borrowed == 0
		})
	}
	// What was used during the outage is debt in the store now: nothing is left.
	if _, no := ms[0].Reserve(context.Background(), Ask{Tenant: "acme", Key: "k", Model: "m", Prompt: 500, MaxTokens: 500}); no == nil {
		t.Error("a request got in after the limit was used up")
	}
}

// Without a store from the start, a part of the limit is served.
func TestStoreNeverThere(t *testing.T) {
	s := &redisServer{t: t, addr: "127.0.0.1:1"}
	ms := gateways(t, s, 1, tokensAnHour())
	from := time.Now()
	used, _ := use(ms, 20, usedUpTo(ms, time.Second, int64(FallbackShare*testLimit)*9/10, false))
	most := int64(FallbackShare*testLimit) + refilled(from)
	if used > most || used < most*9/10 {
		t.Errorf("%d tokens were used, want about %d", used, most)
	}
}

// What a gateway held when it died is lent again; what it gave back is there at
// once.
func TestDeadGatewayLeaksNothing(t *testing.T) {
	s := startRedis(t)
	st := NewRedis(RedisOptions{Addr: s.addr})
	defer st.Close()
	ctx := context.Background()
	rule := admit.Rule{Measure: admit.Concurrent, Limit: 10}
	ask := func(gw string, it Item) Grant {
		t.Helper()
		it.Account, it.Rule = "a", rule
		g, err := st.Exchange(ctx, gw, []Item{it})
		if err != nil {
			t.Fatal(err)
		}
		return g[0]
	}
	a := ask("one", Item{One: 8, All: 8})
	if a.Lent != 8 || a.Left != 2 {
		t.Fatalf("%+v", a)
	}
	if g := ask("two", Item{One: 3, All: 3}); g.Lent != 0 {
		t.Fatalf("%+v", g)
	}
	if g := ask("one", Item{Lent: 8, Back: 5, Gen: a.Gen}); g.Left != 7 {
		t.Fatalf("%+v", g)
	}
	// An answer that was lost: the gateway does not know that it was lent 4 more.
	ask("one", Item{Lent: 8, Back: 5, One: 4, All: 4, Gen: a.Gen})
	if g := ask("one", Item{Lent: 8, Back: 5, Gen: a.Gen}); g.Left != 7 {
		t.Fatalf("%+v", g)
	}
	// It falls silent: as if its last word were long ago.
	c, err := st.connect()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(ctx, c.B().Hset().Key("penstock:quota:{a}").FieldValue().FieldValue("g:one", "8 0 5 1").Build()).Error(); err != nil {
		t.Fatal(err)
	}
	if g := ask("two", Item{Gen: a.Gen}); g.Left != 10 || g.Gateways != 1 {
		t.Fatalf("%+v", g)
	}
	// It was alive after all.
	if g := ask("one", Item{Lent: 8, Back: 5, Gen: a.Gen}); g.Left != 7 || g.Gateways != 2 {
		t.Fatalf("%+v", g)
	}
}

// A cluster with a password: the exchange of an account stays one script at its node.
func TestClusterWithPassword(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	port, bus := strconv.Itoa(testinput.Port(t)), strconv.Itoa(testinput.Port(t))
	addr := "127.0.0.1:" + port
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--cluster-enabled", "yes", "--cluster-port", bus, "--dir", t.TempDir(), "--requirepass", "sesame")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	c := NewRedis(RedisOptions{Addr: addr, Password: "sesame"})
	t.Cleanup(c.Close)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		client, err := c.connect()
		if err == nil {
			if err = client.Do(t.Context(), client.B().ClusterAddslotsrange().StartSlotEndSlot().StartSlotEndSlot(0, 16383).Build()).Error(); err == nil {
				break
			}
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	item := Item{Account: "acme|requests", Rule: admit.Rule{Measure: admit.Requests, Limit: 10, Per: time.Hour}, One: 3, All: 3}
	wrong := NewRedis(RedisOptions{Addr: addr, Password: "open"})
	t.Cleanup(wrong.Close)
	if _, err := wrong.Exchange(t.Context(), "gw", []Item{item}); err == nil {
		t.Error("a wrong password opens")
	}
	st := NewRedis(RedisOptions{Addr: addr, Password: "sesame", Cluster: true})
	t.Cleanup(st.Close)
	other := item
	other.Account = "acme|tokens"
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		g, err := st.Exchange(t.Context(), "gw", []Item{item, other})
		if err == nil {
			if g[0].Lent != 3 || g[0].Left != 7 || g[1].Lent != 3 {
				t.Errorf("%+v", g)
			}
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
