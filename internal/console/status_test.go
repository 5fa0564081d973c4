// SPDX-License-Identifier: Apache-2.0

package console

import (
	"strings"
	"testing"

	"github.com/penstock-project/penstock/internal/fleet"
)

// An adapter that a replica lists is told of before anybody used it.
func TestIdleAdapterIsListed(t *testing.T) {
	e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: "r0", Models: []string{"m", "sql"}, AdapterNames: []string{"sql"}}}
	got := summarize([]ReplicaStatus{replicaStatus(&e, nil, 1)}, nil)
	if len(got) != 1 || got[0].Name != "sql" || got[0].Listed != 1 || got[0].Holders != 0 {
		t.Errorf("got %+v", got)
	}
}

// Half of a split pool looks ready and gets nothing; the row says why.
func TestSplitPoolIsNoted(t *testing.T) {
	for role, want := range map[fleet.Role]string{
		fleet.RoleBoth: "", fleet.RolePrefill: "role prefill of a split pool", fleet.RoleDecode: "role decode of a split pool",
	} {
		e := fleet.EndpointState{Endpoint: fleet.Endpoint{ID: "r0", Role: role}}
		got := strings.Join(replicaStatus(&e, nil, 1).Notes, ";")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%v: notes %q, want %q", role, got, want)
		}
	}
}
