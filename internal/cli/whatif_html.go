// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

// whatifSizes are the fleets that a page shows measured beside the one asked for.
var whatifSizes = []int{1, 2, 4, 8, 16, 32}

// whatifSlot is where the page expects what was measured.
var whatifSlot = []byte(`<script type="application/json" id="measured">null</script>`)

// writeWhatIfPage writes the what-if page as one file that works offline, with what
// the simulator measures for the share and several sizes of the fleet.
func (e *Env) writeWhatIfPage(name string, p engine.Profile, replicas int, shared float64, requests int, seed uint64) error {
	page, ok := console.WhatIfPage()
	if !ok || !bytes.Contains(page, whatifSlot) {
		return failf("build it with `make build` where Node.js 20 or later is installed", "this binary was built without the pages of the console")
	}
	sizes := slices.Clone(whatifSizes)
	if i := slices.Index(sizes, replicas); i >= 0 {
		sizes = slices.Delete(sizes, i, i+1)
	}
	var measured []sim.WhatIf
	for _, n := range append([]int{replicas}, sizes...) {
		r, err := sim.AskWhatIf(p, sim.WhatIfAsk{Replicas: n, Shared: shared, Requests: requests, Seed: seed})
		if err != nil {
			return failf("", "%v", err)
		}
		measured = append(measured, r)
	}
	b, err := json.Marshal(measured) // escapes <, so that no text ends the script
	if err != nil {
		return err
	}
	filled := bytes.Replace(page, whatifSlot, slices.Concat([]byte(`<script type="application/json" id="measured">`), b, []byte(`</script>`)), 1)
	if err := os.WriteFile(name, filled, 0o644); err != nil {
		return failf("", "%v", err)
	}
	fmt.Fprintf(e.Stdout, "%s: open it in a browser; it needs no network\n", name)
	return nil
}
