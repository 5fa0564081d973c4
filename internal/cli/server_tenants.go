// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/penstock-project/penstock/internal/admit"
	"github.com/penstock-project/penstock/internal/console"
)

// tenantList is what the admin API shows of the tenants.
func (s *server) tenantList() console.TenantList {
	st := s.meter.Stats()
	refused := s.front.h.Refused()
	var l console.TenantList
	if st.Store.Used {
		l.Store = &console.QuotaStore{Up: st.Store.Up, Gateways: st.Store.Gateways, Borrowed: st.Store.Borrowed, Failures: st.Store.Failures}
	}
	by := map[string]*console.TenantState{}
	cfg := s.Config()
	l.Tenants = make([]console.TenantState, len(cfg.Tenants))
	for i := range cfg.Tenants {
		t := &cfg.Tenants[i]
		l.Tenants[i] = console.TenantState{
			Name: t.Name, Weight: t.Weight, Logging: t.Logging, CacheSalt: t.CacheSalt, Pools: t.Pools, Quotas: []console.QuotaState{}, Refused: map[string]uint64{},
		}
		by[t.Name] = &l.Tenants[i]
		if r := refused[t.Name]; r != nil {
			l.Tenants[i].Refused = r
		}
	}
	for i := range st.Balances {
		b := &st.Balances[i]
		p := strings.Split(b.Name, "|") // tenant, measure, period, model, key
		if len(p) != 5 || by[p[0]] == nil {
			continue
		}
		unit := 1.0
		if b.Rule.Measure == admit.Money {
			unit = nano
		}
		amount := func(v int64) float64 { return float64(v) / unit }
		q := console.QuotaState{
			Measure: b.Rule.Measure.String(), Period: p[2], Model: p[3], Key: p[4],
			Limit: amount(b.Rule.Limit), Left: amount(b.Left), Reserved: amount(b.Reserved), Charged: amount(b.Charged),
			Used: amount(b.Rule.Limit - b.Left - b.Reserved), ResetS: b.Reset.Seconds(),
		}
		if st.Store.Used { // what is left here is only what was lent
			q.Used = amount(b.Charged)
		}
		if b.Rule.Measure == admit.Concurrent {
			q.Period = ""
		}
		by[p[0]].Quotas = append(by[p[0]].Quotas, q)
	}
	return l
}
