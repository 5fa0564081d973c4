// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"testing"

	"github.com/penstock-project/penstock/internal/engine"
)

func TestAnswerWhatIf(t *testing.T) {
	p, _ := engine.Lookup(engine.DefaultProfile)
	q := WhatIfQuestion{Replicas: 8, Shared: 0.7, Load: 0.5, Requests: 3000, Seed: 1, Policies: []string{"random", "penstock"}}
	a, err := AnswerWhatIf(p, q)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.Results) != 2 || a.Results[0].Policy != "random" || a.Results[1].HitRatio <= a.Results[0].HitRatio || a.Results[0].Requests < 3000 {
		t.Errorf("%+v", a)
	}
	if a.Isolation != nil {
		t.Error("isolation was not asked for")
	}
	q.Tenants = 5
	if a, err = AnswerWhatIf(p, q); err != nil || len(a.Isolation.Runs) != 3 || len(a.Results) != 2 {
		t.Errorf("%+v, %v", a.Isolation, err)
	}
	for _, bad := range []func(*WhatIfQuestion){
		func(q *WhatIfQuestion) { q.Replicas = 0 }, func(q *WhatIfQuestion) { q.Shared = 1 }, func(q *WhatIfQuestion) { q.Load = 9 },
		func(q *WhatIfQuestion) { q.Requests = 1e9 }, func(q *WhatIfQuestion) { q.Policies = nil }, func(q *WhatIfQuestion) { q.Policies = []string{"x"} },
		func(q *WhatIfQuestion) { q.Tenants = -1 }, func(q *WhatIfQuestion) { q.Users = MostIsolated + 1 },
	} {
		w := q
		bad(&w)
		if _, err := AnswerWhatIf(p, w); err == nil {
			t.Errorf("%+v was taken", w)
		}
	}
}
