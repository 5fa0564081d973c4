// SPDX-License-Identifier: Apache-2.0

package route

import (
	"math"
	"sort"
)

// ring is a consistent-hashing ring over the endpoints of the last pick. It is
// rebuilt when they change.
type ring struct {
	vnodes int
	keys   []uint64 // of the slots when it was built; 0: not on the ring
	points []ringPoint
}

type ringPoint struct {
	at   uint64
	slot int32
}

// use makes the ring fit the endpoints that are open.
func (r *ring) use(in *Input, d *Decision) {
	same := len(r.keys) == len(in.Slots)
	for i := 0; same && i < len(r.keys); i++ {
		same = r.keys[i] == openKey(in, d, i)
	}
	if same {
		return
	}
	r.keys, r.points = r.keys[:0], r.points[:0]
	for i := range in.Slots {
		k := openKey(in, d, i)
		r.keys = append(r.keys, k)
		for v := 0; k != 0 && v < r.vnodes; v++ {
			r.points = append(r.points, ringPoint{at: Mix(k, uint64(v)+1), slot: int32(i)})
		}
	}
	sort.Slice(r.points, func(a, b int) bool {
		if r.points[a].at != r.points[b].at {
			return r.points[a].at < r.points[b].at
		}
		return r.points[a].slot < r.points[b].slot
	})
}

// openKey is the key of a slot that takes this request, 0 where it does not.
func openKey(in *Input, d *Decision, i int) uint64 {
	if d.Candidates[i].Drop != DropNone {
		return 0
	}
	return in.Slots[i].Key | 1
}

// walk visits the endpoints clockwise from key until visit returns true.
func (r *ring) walk(key uint64, visit func(slot int32) bool) {
	n := len(r.points)
	at := sort.Search(n, func(i int) bool { return r.points[i].at >= key })
	for i := range n {
		if visit(r.points[(at+i)%n].slot) {
			return
		}
	}
}

// hashKey is what these policies hash: the beginning of the prompt up to and
// including block n (from 0) or the last one; a number of its own for a prompt
// without a whole block.
func hashKey(in *Input, n int) uint64 {
	if b := in.Request.Blocks; len(b) > 0 {
		return Mix(b[min(n, len(b)-1)], 3)
	}
	return Mix(in.Arrival, 4)
}

// meanLoad is the mean number of requests at the open candidates.
func meanLoad(in *Input, d *Decision, open int) float64 {
	sum := 0.0
	for i := range d.Candidates {
		if c := &d.Candidates[i]; c.Drop == DropNone {
			sum += requests(in, c, &in.Slots[i])
		}
	}
	return sum / float64(open)
}

// Constants of KubeAI's consistent hashing with bounded loads.
const (
	chwblLoad   = 1.25 // times the mean
	chwblVnodes = 256
)

// Reasons of the hashing policies.
const (
	WhyRing  = "first on the ring within the load bound"
	WhyBound = "the home of the prefix is over the load bound"
)

// CHWBL returns consistent hashing with bounded loads: the first endpoint on the
// ring from the prompt's beginning on that would have at most 1.25 times the mean
// number of requests. KubeAI hashes the first 100 characters of the first user
// message; a router of hashes takes the second block, which lies behind the
// beginning that all prompts share.
//
// Source: KubeAI docs, load balancing strategy PrefixHash (meanLoadFactor 125,
// replication 256, prefixCharLength 100); Mirrokni et al. for the method.
func CHWBL(seed uint64) Policy {
	r := &ring{vnodes: chwblVnodes}
	return &simple{PolicyCHWBL, func(_ *state, in *Input, d *Decision, open int) (int32, string) {
		r.use(in, d)
		bound := math.Ceil((meanLoad(in, d, open)*float64(open) + 1) / float64(open) * chwblLoad)
		pick := int32(-1)
		r.walk(hashKey(in, 1), func(slot int32) bool {
			if pick < 0 {
				pick = slot // where nobody is within the bound
			}
			if requests(in, &d.Candidates[slot], &in.Slots[slot])+1 <= bound {
				pick = slot
				return true
			}
			return false
		})
		return pick, WhyRing
	}, state{seed: seed}}
}

// Constants of smg's prefix_hash.
const (
	prefixHashLoad   = 1.25
	prefixHashVnodes = 150
	prefixHashTokens = 256
)

// PrefixHash returns smg's prefix_hash: the endpoint on the ring for the first 256
// tokens of the prompt, or the one with the fewest requests where that one has more
// than 1.25 times the mean.
//
// Source: lightseekorg/smg model_gateway/src/policies prefix_hash (150 virtual
// nodes, 256 tokens, load factor 1.25).
func PrefixHash(seed uint64) Policy {
	r := &ring{vnodes: prefixHashVnodes}
	return &simple{PolicyPrefixHash, func(g *state, in *Input, d *Decision, open int) (int32, string) {
		r.use(in, d)
		last := max(0, int(prefixHashTokens/max(1, in.BlockTokens))-1)
		pick := int32(-1)
		r.walk(hashKey(in, last), func(slot int32) bool {
			pick = slot
			return true
		})
		if requests(in, &d.Candidates[pick], &in.Slots[pick]) > prefixHashLoad*meanLoad(in, d, open) {
			return leastOf(g, in, d, requests, nil), WhyBound
		}
		return pick, WhyHome
	}, state{seed: seed}}
}
