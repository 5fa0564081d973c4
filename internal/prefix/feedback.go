// SPDX-License-Identifier: Apache-2.0

package prefix

const (
	// maxShare is the share of the KV cache that is believed to serve prefixes
	// at most; the rest holds what running requests generate.
	maxShare = 0.9
	// minShare keeps the believed capacity from vanishing when predictions fail
	// for another reason, such as a chat template that differs.
	minShare = 1.0 / 64

	// A finished request with under badShare of the expected cached tokens says
	// that blocks left earlier than believed; shrink and grow are the steps of
	// the believed capacity that balance at one such request in ten.
	badShare = 0.7
	shrink   = 0.98
	grow     = 1.002

	// agreeWindow is the number of last requests that Agreement looks at;
	// agreeMin of them must have had a prediction before it judges, and the
	// index disagrees when under disagreeShare of what was expected was there.
	agreeWindow   = 64
	agreeMin      = 20
	disagreeShare = 0.3
	// sureAgain is the number of good predictions in a row that end doubt.
	sureAgain = 16
)

// Agreement compares what the index expected at a replica with the cached tokens
// that the engine reported, over the last requests with a known answer.
type Agreement struct {
	Requests  int   // requests looked at, at most 64
	Predicted int   // of these with a predicted hit
	Missed    int   // of these the engine had nothing cached
	Expected  int64 // tokens
	Cached    int64 // tokens
	// Disagrees says that predictions fail: routing by prefix gains nothing at
	// this replica. Usual causes: the engine's prefix cache is off, another chat
	// template or salt, an undetected restart.
	Disagrees bool
}

// Ratio returns cached over expected tokens, and false where nothing was expected.
func (a Agreement) Ratio() (float64, bool) {
	if a.Expected == 0 {
		return 0, false
	}
	return float64(a.Cached) / float64(a.Expected), true
}

// window is a ring of the last predictions, with its sums.
type window struct {
	expected, cached [agreeWindow]int32
	n, next          int
	good             int // good predictions in a row since the last doubt
	sum              Agreement
}

// add counts one prediction n times; n is 1 or -1.
func (a *Agreement) add(expected, cached int32, n int) {
	a.Requests += n
	if expected == 0 {
		return
	}
	a.Predicted += n
	if cached == 0 {
		a.Missed += n
	}
	a.Expected += int64(n) * int64(expected)
	a.Cached += int64(n) * int64(min(cached, expected))
}

// Feedback records how many prompt tokens the engine reported as cached for a
// finished request and how many the index had expected when it was sent. Call it
// only where the engine told (unknown is not zero). Where the index is not fed by
// events it corrects the believed capacity: by 0.98 after a bad prediction, by
// 1.002 otherwise.
func (x *Index) Feedback(slot int32, expectedTokens, cachedTokens int) {
	l := x.lane(slot)
	if l == nil || expectedTokens < 0 || cachedTokens < 0 {
		return
	}
	w := &l.agree
	if w.n == agreeWindow {
		w.sum.add(w.expected[w.next], w.cached[w.next], -1)
	}
	w.expected[w.next], w.cached[w.next] = int32(expectedTokens), int32(cachedTokens)
	w.sum.add(w.expected[w.next], w.cached[w.next], 1)
	w.next = (w.next + 1) % agreeWindow
	w.n = min(w.n+1, agreeWindow)
	bad := float64(cachedTokens) < badShare*float64(expectedTokens)
	if bad {
		w.good = 0
	} else if expectedTokens > 0 {
		w.good++
	}
	if l.unsure && w.good >= sureAgain {
		l.unsure = false
	}
	if l.fed {
		return
	}
	top := maxShare * l.kv
	if l.kv == 0 {
		top = DefaultCapacity
	}
	if bad {
		l.capacity = max(l.capacity*shrink, top*minShare, 1)
		x.evict(x.slotLane[slot])
	} else {
		l.capacity = min(l.capacity*grow, top)
	}
}

// Agreement returns how well predictions for the replica fit the engine's reports.
func (x *Index) Agreement(slot int32) Agreement {
	l := x.lane(slot)
	if l == nil {
		return Agreement{}
	}
	a := l.agree.sum
	a.Disagrees = a.Predicted >= agreeMin && float64(a.Cached) < disagreeShare*float64(a.Expected)
	return a
}
