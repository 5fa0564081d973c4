// SPDX-License-Identifier: Apache-2.0

package entry

import (
	"cmp"

	"github.com/zeebo/xxh3"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/prefix"
	"github.com/penstock-project/penstock/internal/wire"
)

// Tokenizer turns a body into the token ids that its engine computes.
type Tokenizer interface {
	// Keys returns the keys of the whole blocks of a prompt's tokens, chained from
	// seed, how many tokens a block has and how many the prompt. false: it cannot be
	// told, or not in time; the prompt then goes by its text.
	Keys(seed uint64, p *Place, surface fleet.Surface, body []byte) (keys []uint64, block, tokens int, ok bool)
}

// exact replaces what was estimated from a prompt's text by what its engine counts,
// where a tokenizer is asked and knows.
func (d *Door) exact(req *fleet.Request, s *wire.Scan, body []byte, p *Place, salt string) {
	if d.Tokens == nil {
		return
	}
	seed := prefix.Seed(d.HashKey, p.Model, p.Adapter, cmp.Or(salt, string(s.CacheSalt)))
	keys, block, tokens, ok := d.Tokens.Keys(seed, p, s.Surface, body)
	if !ok {
		return
	}
	req.Blocks, req.BlockTokens, req.PromptTokens = keys, float64(block), max(1, tokens)
}

// Hint puts the session that a header names on a request whose body names none. It is
// a hash, and a guess about caches: it decides nothing else.
func (d *Door) Hint(req *fleet.Request, header func(name string) string) {
	if req.Session != 0 {
		return
	}
	for _, name := range d.SessionHeaders {
		if v := header(name); v != "" {
			req.Session = xxh3.HashStringSeed(v, d.HashKey) | 1
			return
		}
	}
}
