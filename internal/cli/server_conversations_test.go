// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/replica"
)

// words is a text of n bytes that no other call has.
func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%x ", rng.Uint64())
	}
	return b.String()[:n]
}

// talk is the traffic of TestConversations: what its requests had in common with what
// their replica had cached.
type talk struct {
	url     string
	systems [8]string

	prompt, cached atomic.Int64
	failed         atomic.Int64
	took           atomic.Int64 // nanoseconds, of all requests
}

// session holds one conversation of eight turns, with a user who thinks for 20 ms in
// the mean, and no header that names it.
func (k *talk) session(n int) {
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	system := 0
	if n%2 == 1 {
		system = 1 + rng.IntN(len(k.systems)-1)
	}
	ms := []message{{"system", k.systems[system]}}
	for range 8 {
		ms = append(ms, message{"user", words(rng, 200+rng.IntN(601))})
		b, _ := json.Marshal(map[string]any{"model": "m", "messages": ms, "max_tokens": 20})
		var a struct {
			Choices []struct{ Message message }
			Usage   struct {
				Prompt  int64 `json:"prompt_tokens"`
				Details struct {
					Cached int64 `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		begin := time.Now()
		res, err := http.Post(k.url+"/v1/chat/completions", "application/json", bytes.NewReader(b))
		if err == nil {
			b, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if err != nil || json.Unmarshal(b, &a) != nil || len(a.Choices) == 0 {
			k.failed.Add(1)
			return
		}
		k.took.Add(int64(time.Since(begin)))
		k.prompt.Add(a.Usage.Prompt)
		k.cached.Add(a.Usage.Details.Cached)
		ms = append(ms, message{"assistant", a.Choices[0].Message.Content})
		time.Sleep(time.Duration(rng.ExpFloat64() * 20e6))
	}
}

// 300 conversations of eight turns, 32 at a time, with eight system prompts of 4 KiB of
// which half of them have the first, on four replicas whose caches hold 1 MiB of text
// each: conversations find their cache again, and the popular system prompt pulls
// nobody to one replica.
//
// The balance is that of engines whose steps take 2 ms. On a machine that cannot make
// them in time they are others: then it is measured again, three times at most, and what
// the last one says holds.
func TestConversations(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	for again := 2; ; again-- {
		hit, imbalance, mean := converse(t)
		if hit < 0.87 {
			t.Errorf("hit ratio %.3f (at least 0.87)", hit)
		}
		if imbalance <= 1.10 {
			return
		}
		if mean <= conversationMost || again == 0 {
			t.Fatalf("imbalance %.2f (at most 1.10); requests of 45 ms took %v", imbalance, mean.Round(time.Millisecond))
		}
	}
}

// conversationMost is how long a request may take in the mean where engines are as fast
// as they say: one of 20 steps of 2 ms and a part of a prompt takes 45 ms by itself, and
// three times that with the race detector on a machine that does something else, too.
const conversationMost = 180 * time.Millisecond

// converse plays the conversations against a fleet of its own. It returns the share of
// prompt tokens that were cached, the requests of the busiest replica over the mean of
// all, and how long one took.
func converse(t *testing.T) (hit, imbalance float64, mean time.Duration) {
	t.Helper()
	p, _ := engine.Lookup(engine.DefaultProfile)
	p.Name, p.Accelerator = "lab", "none that is known"
	p.Base, p.PTok, p.PAttn, p.DSeq, p.DCtx = 2e-3, 2e-6, 0, 0, 0 // 4 bytes a token: 2 MB/s
	p.BlockTokens, p.KVTokens = 64, 1<<18
	urls, all := startReplicas(t, 4, func(_ int, o *replica.Options) { o.Profile, o.Speed = p, 1 })
	s, stop := runServer(t, nil, urls...)
	k := &talk{url: s.GatewayURL()}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range k.systems {
		k.systems[i] = words(rng, 4096)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for n := next.Add(1); n <= 300; n = next.Add(1) {
				k.session(int(n))
			}
		})
	}
	wg.Wait()
	if n := k.failed.Load(); n > 0 {
		t.Fatalf("%d conversations broke off", n)
	}
	most, sum := 0.0, 0.0
	for _, r := range all {
		n := float64(r.Stats().Finished)
		most, sum = max(most, n), sum+n
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, r := range all {
		r.Close()
	}
	hit, imbalance, mean = float64(k.cached.Load())/float64(k.prompt.Load()), 4*most/sum, time.Duration(float64(k.took.Load())/sum)
	t.Logf("hit ratio %.3f, imbalance %.2f over %.0f requests, which took %v each", hit, imbalance, sum, mean.Round(time.Millisecond))
	return hit, imbalance, mean
}
