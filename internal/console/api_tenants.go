// SPDX-License-Identifier: Apache-2.0

package console

import (
	"net/http"
	"time"
)

// TenantsSchema is the schema name of TenantList.
const TenantsSchema = "penstock/tenants/v1"

// TenantList is the answer of /api/v1/tenants.
type TenantList struct {
	Schema  string        `json:"schema"`
	Time    time.Time     `json:"time"`
	Store   *QuotaStore   `json:"store"` // null where the limits are this gateway's own
	Tenants []TenantState `json:"tenants"`
}

// QuotaStore is the store that several gateways share, as this one sees it.
type QuotaStore struct {
	Up       bool   `json:"up"`
	Gateways int    `json:"gateways"`
	Borrowed int64  `json:"borrowed"` // units in use that it did not lend
	Failures uint64 `json:"failures"`
}

// TenantState is one tenant: what it may use, what it used, and what was refused.
type TenantState struct {
	Name      string            `json:"name"`
	Weight    float64           `json:"weight"`
	Logging   string            `json:"logging"`
	CacheSalt string            `json:"cache_salt"`
	Pools     []string          `json:"pools,omitempty"` // that its prompts may reach; absent: all
	Quotas    []QuotaState      `json:"quotas"`
	Refused   map[string]uint64 `json:"refused"` // by reason, since the start
}

// QuotaState is one limit. Amounts of a budget are in units of currency.
type QuotaState struct {
	Measure  string  `json:"measure"`
	Period   string  `json:"period,omitempty"`
	Model    string  `json:"model,omitempty"` // absent: all together
	Key      string  `json:"key,omitempty"`   // public id, of a limit by key
	Limit    float64 `json:"limit"`
	Used     float64 `json:"used"`     // of the limit now: what is not left and not reserved
	Reserved float64 `json:"reserved"` // by requests that run
	Left     float64 `json:"left"`     // negative: debt
	Charged  float64 `json:"charged"`  // since the start
	ResetS   float64 `json:"reset_s"`  // until it is full again
}

func (s *Server) tenants(w http.ResponseWriter, _ *http.Request) {
	l := s.o.Tenants()
	l.Schema, l.Time = TenantsSchema, s.o.Clock().Wall().UTC()
	if l.Tenants == nil {
		l.Tenants = []TenantState{}
	}
	writeJSON(w, http.StatusOK, l)
}
