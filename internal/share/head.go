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
	var tight [2]*admit.Balance
	for _, k := range accounts {
		b := m.q.Balance(now, k)
		kind := 1
		switch b.Rule.Measure {
		case admit.Concurrent, admit.Money:
			continue
		case admit.Requests:
			kind = 0
		}
		if m.remote != nil {
			b.Left += m.remote.elsewhere(k)
		}
		if t := tight[kind]; t == nil || float64(b.Left)/float64(b.Rule.Limit) < float64(t.Left)/float64(t.Rule.Limit) {
			tight[kind] = &b
		}
	}
	var out []HeadField
	for kind, b := range tight {
		if b == nil {
			continue
		}
		n := &headNames[kind]
		out = append(out, HeadField{n[0], strconv.FormatInt(b.Rule.Limit, 10)},
			HeadField{n[1], strconv.FormatInt(max(b.Left, 0), 10)},
			HeadField{n[2], b.Reset.Round(time.Millisecond).String()})
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
