// SPDX-License-Identifier: Apache-2.0

package console

import (
	"strings"
	"testing"
)

// A replica's series stand under their own names with where they are from; one that is
// silent has none, and says so.
func TestFederate(t *testing.T) {
	a := newAdmin(t)
	page := func() string { return a.do("GET", "/federate", "").Body.String() }
	text := page()
	for _, want := range []string{
		`penstock_pool="chat",penstock_replica="r0"`, "vllm:", `penstock_replica_up{penstock_pool="chat",penstock_replica="r0",engine="vllm"} 1`, "penstock_replica_scrape_age_seconds{",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%.600s", want, text)
		}
	}
	a.up.Store(false)
	if text = page(); strings.Contains(text, "vllm:") || !strings.Contains(text, `engine="vllm"} 0`) {
		t.Errorf("a silent replica shows\n%.600s", text)
	}
	if text = a.do("GET", "/federate?pool=other", "").Body.String(); strings.Contains(text, "r0") {
		t.Errorf("another pool shows %s", text)
	}
}
