// SPDX-License-Identifier: Apache-2.0

package share

import (
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/fleet"
)

// Names of the headers, in the common style: of the tightest limit on requests and
// of the tightest one on tokens.
var headNames = [2][3]string{
	{"X-Ratelimit-Limit-Requests", "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"},
	{"X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"},
}

// head describes the accounts of a request. m.mu is held.
func (m *Meter) head(now fleet.Time, accounts []int32) []HeadField {
	tight, left := [2]int32{-1, -1}, [2]int64{}
	for _, k := range accounts {
		kind := 1
		switch m.q.Rule(k).Measure {
		case admit.Concurrent, admit.Money:
			continue
		case admit.Requests:
			kind = 0
		}
		n := m.q.Left(now, k)
		if m.remote != nil {
			n += m.remote.elsewhere(k)
		}
		if t := tight[kind]; t < 0 || float64(n)/float64(m.q.Rule(k).Limit) < float64(left[kind])/float64(m.q.Rule(t).Limit) {
			tight[kind], left[kind] = k, n
		}
	}
	var room [64]byte
	text, ends := room[:0], make([]int, 0, 4) // both numbers of both kinds
	for kind, k := range tight {
		if k >= 0 {
			text = strconv.AppendInt(text, m.q.Rule(k).Limit, 10)
			ends = append(ends, len(text))
			text = strconv.AppendInt(text, max(left[kind], 0), 10)
			ends = append(ends, len(text))
		}
	}
	if len(ends) == 0 {
		return nil
	}
	numbers, at := string(text), 0
	out := make([]HeadField, 0, 6)
	for kind, k := range tight {
		if k < 0 {
			continue
		}
		n := &headNames[kind]
		limit, remaining := numbers[at:ends[0]], numbers[ends[0]:ends[1]]
		at, ends = ends[1], ends[2:]
		out = append(out, HeadField{n[0], limit}, HeadField{n[1], remaining},
			HeadField{n[2], m.q.Balance(now, k).Reset.Round(time.Millisecond).String()})
	}
	return out
}

// refused makes the answer to a request that may not enter. m.mu is held.
func (m *Meter) refused(now fleet.Time, no *admit.Refusal, accounts []int32) *Refused {
	r := &Refused{Refusal: *no, Head: m.head(now, accounts)}
	r.Name = no.Rule.Measure.String()
	return r
}

// Message says what limit was hit, for the client.
func (r *Refused) Message() string {
	rule := &r.Rule
	if rule.Measure == admit.Money {
		return fmt.Sprintf("the budget of %s for %s is used up", money(rule.Limit), period(rule))
	}
	msg := fmt.Sprintf("the limit of %d %s %s is reached", rule.Limit, rule.Measure, period(rule))
	if rule.Measure == admit.Concurrent {
		return fmt.Sprintf("the limit of %d requests at a time is reached", rule.Limit)
	}
	if r.RetryAfter == 0 {
		return fmt.Sprintf("the request may use %d %s, more than the limit of %d %s; shorten it or lower max_tokens", r.Need, rule.Measure, rule.Limit, period(rule))
	}
	if rule.Measure != admit.Requests {
		msg += fmt.Sprintf("; this request may use %d, %d are left", r.Need, max(r.Left, 0))
	}
	return msg
}

func money(n int64) string { return strconv.FormatFloat(float64(n)/1e9, 'f', -1, 64) }
