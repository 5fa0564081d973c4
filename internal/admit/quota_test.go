// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-project/penstock/internal/fleet"
)

const second = fleet.Time(time.Second)

func minute(m Measure, limit int64) Rule { return Rule{Measure: m, Limit: limit, Per: time.Minute} }

func TestReserveAndSettle(t *testing.T) {
	var q Quotas
	a := q.Account(0, "tokens", minute(TotalTokens, 600))
	l, no := q.Reserve(0, []int32{a}, Usage{Requests: 1, Prompt: 100, Output: 400}, Price{})
	if no != nil || q.Balance(0, a).Left != 100 {
		t.Fatalf("refused %+v, left %d", no, q.Balance(0, a).Left)
	}
	_, no = q.Reserve(0, []int32{a}, Usage{Prompt: 110}, Price{})
	if no == nil || no.RetryAfter != time.Second || no.Left != 100 {
		t.Fatalf("10 tokens are missing, at 10 a second: %+v", no)
	}
	q.Settle(0, l, Usage{Requests: 1, Prompt: 100, Output: 50})
	q.Settle(0, l, Usage{Requests: 1, Prompt: 100, Output: 50})
	if b := q.Balance(0, a); b.Left != 450 || b.Charged != 150 || b.Reserved != 0 || b.Reset != 15*time.Second {
		t.Errorf("%+v", b)
	}
	if b := q.Balance(5*second, a); b.Left != 500 {
		t.Errorf("after 5 s: %+v", b)
	}
	if b := q.Balance(1000*second, a); b.Left != 600 {
		t.Errorf("after long: %+v", b)
	}
}

// A stream that goes beyond its reservation runs on; the next request waits for the
// debt. Only a hard limit ends it.
func TestDebt(t *testing.T) {
	for _, hard := range []bool{false, true} {
		var q Quotas
		r := minute(OutputTokens, 60)
		r.Hard = hard
		a := q.Account(0, "out", r)
		l, _ := q.Reserve(0, []int32{a}, Usage{Output: 50}, Price{})
		if q.Count(0, l, Usage{Output: 60}) {
			t.Error("stopped with nothing left, but no debt")
		}
		if q.Count(0, l, Usage{Output: 90}) != hard {
			t.Errorf("hard %v", hard)
		}
		q.Settle(0, l, Usage{Output: 90})
		_, no := q.Reserve(0, []int32{a}, Usage{Output: 10}, Price{})
		if no == nil || no.Left != -30 || no.RetryAfter != 40*time.Second {
			t.Errorf("%+v", no)
		}
		// Even what needs nothing waits until the debt is paid.
		if _, no := q.Reserve(29*second, []int32{a}, Usage{}, Price{}); no == nil {
			t.Error("entered in debt")
		}
		if _, no := q.Reserve(31*second, []int32{a}, Usage{}, Price{}); no != nil {
			t.Errorf("%+v", no)
		}
	}
}

func TestAllOrNothing(t *testing.T) {
	var q Quotas
	a := q.Account(0, "requests", minute(Requests, 10))
	b := q.Account(0, "concurrent", Rule{Measure: Concurrent, Limit: 1})
	both := []int32{a, b}
	l, no := q.Reserve(0, both, Usage{Requests: 1}, Price{})
	if no != nil {
		t.Fatal(no)
	}
	_, no = q.Reserve(0, both, Usage{Requests: 1}, Price{})
	if no == nil || no.Account != b || no.RetryAfter <= 0 {
		t.Fatalf("%+v", no)
	}
	if got := q.Balance(0, a).Left; got != 9 {
		t.Errorf("a refused request took a request: %d left", got)
	}
	q.Settle(0, l, Usage{}) // no engine had it
	if got := q.Balance(0, a).Left; got != 10 {
		t.Errorf("%d left", got)
	}
	if _, no = q.Reserve(0, both, Usage{Requests: 1}, Price{}); no != nil {
		t.Errorf("%+v", no)
	}
}

func TestLargerThanTheLimit(t *testing.T) {
	var q Quotas
	a := q.Account(0, "tokens", minute(TotalTokens, 100))
	if _, no := q.Reserve(0, []int32{a}, Usage{Prompt: 101}, Price{}); no == nil || no.RetryAfter != 0 {
		t.Errorf("%+v", no)
	}
}

func TestMoneyByTheMonth(t *testing.T) {
	var q Quotas
	at := func(s string) fleet.Time {
		w, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return fleet.At(w)
	}
	a := q.Account(at("2026-02-10T00:00:00Z"), "budget", Rule{Measure: Money, Limit: 1000, Every: Month})
	p := Price{Prompt: 2, Cached: 1, Output: 10}
	now := at("2026-02-27T12:00:00Z")
	l, no := q.Reserve(now, []int32{a}, Usage{Prompt: 100, Output: 80}, p)
	if no != nil {
		t.Fatalf("%+v", no)
	}
	q.Settle(now, l, Usage{Prompt: 100, Cached: 40, Output: 90})
	if b := q.Balance(now, a); b.Left != 1000-(60*2+40+900) || b.Left >= 0 {
		t.Errorf("%+v", b)
	}
	_, no = q.Reserve(now, []int32{a}, Usage{Prompt: 1}, p)
	if no == nil || no.RetryAfter != 36*time.Hour {
		t.Errorf("%+v", no)
	}
	if b := q.Balance(at("2026-03-01T00:00:00Z"), a); b.Left != 940 {
		t.Errorf("debt is carried, once: %+v", b)
	}
	if b := q.Balance(at("2026-04-01T00:00:00Z"), a); b.Left != 1000 {
		t.Errorf("%+v", b)
	}
}

// A clock that steps back gives nothing and takes nothing.
func TestClockBack(t *testing.T) {
	var q Quotas
	a := q.Account(100*second, "r", minute(Requests, 60))
	l, _ := q.Reserve(100*second, []int32{a}, Usage{Requests: 30}, Price{})
	q.Settle(50*second, l, Usage{Requests: 30})
	if b := q.Balance(50*second, a); b.Left != 30 {
		t.Errorf("%+v", b)
	}
	if b := q.Balance(101*second, a); b.Left != 31 {
		t.Errorf("%+v", b)
	}
}

// TestChargedIsUsed runs any interleaving of reserve, count, settle and waiting on
// accounts of every measure: what is charged is what was used, no reservation is
// left, and no limit lets in more than it has plus what refilled.
func TestChargedIsUsed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q Quotas
		rules := []Rule{minute(Requests, 20), minute(PromptTokens, 5000), minute(OutputTokens, 3000), minute(TotalTokens, 7000),
			{Measure: Concurrent, Limit: 4}, {Measure: Money, Limit: 90000, Every: Day}}
		var all []int32
		for i, r := range rules {
			r.Limit = rapid.Int64Range(1, r.Limit).Draw(t, "limit")
			rules[i] = r
			all = append(all, q.Account(0, r.Measure.String(), r))
		}
		price := Price{Prompt: 3, Cached: 1, Output: 10}
		type running struct {
			id         Lease
			most, used Usage
		}
		var open []running
		var total Usage
		used := make([]int64, len(rules))
		admitted := make([]int64, len(rules)) // reservations of those that stayed within, and their excess
		now := fleet.Time(0)
		end := func(k int) {
			r := open[k]
			q.Settle(now, r.id, r.used)
			for i := range rules {
				used[i] += rules[i].Measure.of(r.used, price)
			}
			total.Requests += r.used.Requests
			open = append(open[:k], open[k+1:]...)
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 3).Draw(t, "op"); {
			case op == 0:
				most := Usage{Requests: 1, Prompt: rapid.Int64Range(0, 800).Draw(t, "prompt"), Output: rapid.Int64Range(0, 400).Draw(t, "output")}
				if id, no := q.Reserve(now, all, most, price); no == nil {
					open = append(open, running{id: id, most: most, used: Usage{Requests: 1, Prompt: most.Prompt}})
					for i := range rules {
						admitted[i] += q.accounts[all[i]].need(most, price)
					}
				}
			case op == 1 && len(open) > 0:
				k := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				r := &open[k]
				r.used.Output = min(r.most.Output, r.used.Output+rapid.Int64Range(0, 200).Draw(t, "more"))
				q.Count(now, r.id, r.used)
			case op == 2 && len(open) > 0:
				k := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				if rapid.Bool().Draw(t, "engine never had it") {
					open[k].used = Usage{}
				}
				end(k)
			default:
				now += fleet.Time(rapid.Int64Range(0, int64(30*second)).Draw(t, "wait"))
			}
			for i, a := range all {
				b := q.Balance(now, a)
				if b.Left < 0 {
					t.Fatalf("%s in debt although nobody used more than reserved: %+v", b.Name, b)
				}
				if b.Left > b.Rule.Limit {
					t.Fatalf("%s has more than its limit: %+v", b.Name, b)
				}
				if rules[i].Measure == Concurrent && int64(len(open)) > rules[i].Limit {
					t.Fatalf("%d at a time, limit %d", len(open), rules[i].Limit)
				}
				if rules[i].Every == Rolling && rules[i].Measure != Concurrent {
					most := rules[i].Limit + int64(math.Ceil(float64(rules[i].Limit)*float64(now)/float64(rules[i].Per)))
					if got := b.Charged + b.Reserved; got > most {
						t.Fatalf("%s: %d charged and reserved by %v, at most %d", b.Name, got, time.Duration(now), most)
					}
				}
			}
		}
		for len(open) > 0 {
			end(0)
		}
		if q.Open() != 0 {
			t.Fatalf("%d leases are open", q.Open())
		}
		for i, a := range all {
			if b := q.Balance(now, a); b.Charged != used[i] || b.Reserved != 0 {
				t.Fatalf("%s: charged %d, used %d, reserved %d", b.Name, b.Charged, used[i], b.Reserved)
			}
		}
	})
}

func TestCap(t *testing.T) {
	for _, c := range [][4]int{{100, 0, 0, 100}, {100, 50, 0, 50}, {100, 50, 20, 20}, {0, 0, 20, 20}, {0, 0, 0, DefaultOutput}} {
		if got := Cap(c[0], c[1], c[2]); got != c[3] {
			t.Errorf("Cap%v = %d", c[:3], got)
		}
	}
}

func TestLengths(t *testing.T) {
	var l Lengths
	for i := range 5000 {
		if l.Expect() != 0 && i < lengthLeast {
			t.Fatal("an opinion too early")
		}
		l.Add(1 + (i*7919)%1000) // evenly up to 1000: the percentile is 950
	}
	if got := l.Expect(); got < 1600 || got > 2200 {
		t.Errorf("reserves %d, want about twice 950", got)
	}
}
