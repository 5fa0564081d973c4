// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/entry"
	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/flow"
	"github.com/penstock-project/penstock/internal/observe"
)

const (
	// tokenizeFor is how long a request waits for its token ids at most.
	tokenizeFor = 250 * time.Millisecond
	// After so many failures in a row prompts go by their text for a while: a
	// tokenizer that is missing must not cost every request a time-out.
	tokenFailures = 3
	tokenRest     = 30 * time.Second
	// tokenMemory bounds the blocks that are remembered by text.
	tokenMemory = 1 << 20
)

// tokenizers ask the replicas of pools with engine.tokens: exact for token ids.
type tokenizers struct {
	s      *server
	client *http.Client
	pools  map[*flow.Flow]*livePool // that go by token ids

	asked, known, failed atomic.Uint64
	spent                atomic.Int64 // nanoseconds in questions

	mu     sync.Mutex
	seen   map[uint64]tokenized // by hash of seed and body
	blocks int
	rest   time.Time // no question before
	bad    int
	next   int
}

type tokenized struct {
	keys          []uint64
	block, tokens int
}

// newTokenizers returns the tokenizers of a server; nil where no pool asks for them.
func newTokenizers(s *server) entry.Tokenizer {
	pools := map[*flow.Flow]*livePool{}
	for _, p := range s.pools {
		if p.cfg.Engine.Tokens == "exact" {
			pools[p.flow] = p
		}
	}
	if len(pools) == 0 {
		return nil
	}
	return &tokenizers{s: s, client: &http.Client{Timeout: tokenizeFor}, pools: pools, seen: map[uint64]tokenized{}}
}

// Keys implements entry.Tokenizer.
func (t *tokenizers) Keys(seed uint64, p *entry.Place, surface fleet.Surface, body []byte) ([]uint64, int, int, bool) {
	if p.Rename || surface != fleet.SurfaceChat && surface != fleet.SurfaceCompletions {
		return nil, 0, 0, false // the engine would not know the name, or has no such question
	}
	lp := t.pool(p.Model)
	if lp == nil {
		return nil, 0, 0, false
	}
	id := xxh3.HashSeed(body, seed)
	t.mu.Lock()
	x, ok := t.seen[id]
	resting := time.Now().Before(t.rest)
	t.mu.Unlock()
	if ok {
		t.known.Add(1)
		return x.keys, x.block, x.tokens, true
	}
	base, block := t.replica(lp)
	if resting || base == "" {
		return nil, 0, 0, false
	}
	start := time.Now()
	tokens, err := t.ask(base, lp.auth, body)
	took := time.Since(start)
	t.asked.Add(1)
	t.spent.Add(int64(took))
	if err != nil {
		t.fail(lp, took, err)
		return nil, 0, 0, false
	}
	x = tokenized{keys: observe.TokenKeys(make([]uint64, 0, len(tokens)/block), seed, tokens, block), block: block, tokens: len(tokens)}
	t.mu.Lock()
	t.bad = 0
	if t.blocks += len(x.keys); t.blocks > tokenMemory {
		clear(t.seen)
		t.blocks = len(x.keys)
	}
	t.seen[id] = x
	t.mu.Unlock()
	return x.keys, x.block, x.tokens, true
}

// pool returns the pool of a model, as the gateway finds it, where it goes by token
// ids; nil otherwise.
func (t *tokenizers) pool(model string) *livePool {
	to, ok := t.s.front.cat.Load().Resolve(model)
	if !ok {
		return nil
	}
	return t.pools[to.Pool]
}

// replica returns a replica to ask, in turn, and the tokens in a block of its cache.
func (t *tokenizers) replica(lp *livePool) (base string, block int) {
	snap := lp.observer.Snapshot()
	if snap == nil || len(snap.Endpoints) == 0 {
		return "", 0
	}
	t.mu.Lock()
	t.next++
	n := t.next
	t.mu.Unlock()
	for i := range snap.Endpoints {
		e := &snap.Endpoints[(n+i)%len(snap.Endpoints)]
		if e.Phase == fleet.PhaseReady && e.BlockSize.OK() && e.BlockSize.V >= 1 {
			return e.URL, int(e.BlockSize.V)
		}
	}
	return "", 0
}

// ask posts the body, whose other fields the engine passes over, to /tokenize.
func (t *tokenizers) ask(base, auth string, body []byte) ([]uint32, error) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenizeFor)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/tokenize", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if auth != "" {
		req.Header.Set("Authorization", auth)
	}
	res, err := t.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/tokenize answers %s", res.Status)
	}
	var a struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return nil, err
	}
	return a.Tokens, nil
}

// fail counts a failure; a row of them is said once, with its cost, and followed by a
// rest.
func (t *tokenizers) fail(lp *livePool, took time.Duration, err error) {
	t.failed.Add(1)
	t.mu.Lock()
	t.bad++
	say := t.bad == tokenFailures
	if t.bad >= tokenFailures {
		t.rest = time.Now().Add(tokenRest)
	}
	t.mu.Unlock()
	if say {
		t.s.log.Warn("token ids cannot be had: prompts go by their text, KV events of single blocks mean nothing",
			"pool", lp.name, "error", err, "cost", took.String(), "again_in", tokenRest.String())
	}
}

// sessionHeaders are the headers that name a session in any pool, in lower case.
func sessionHeaders(pools []*livePool) []string {
	var out []string
	for _, p := range pools {
		for _, h := range p.cfg.Route.SessionHeaders {
			if h = strings.ToLower(h); !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
	}
	return out
}
