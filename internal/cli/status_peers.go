// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-project/penstock/internal/console"
)

// printPeers prints what this router and others know of each other.
func printPeers(w io.Writer, p *console.PeersStatus) {
	if p == nil {
		return
	}
	fmt.Fprint(w, "\nother routers")
	if p.Listen != "" {
		fmt.Fprintf(w, "  listening on %s", p.Listen)
	} else {
		fmt.Fprint(w, "  share.listen is not set: nothing is heard")
	}
	if p.Fault != "" {
		fmt.Fprintf(w, "  %s", p.Fault)
	}
	fmt.Fprintln(w)
	if len(p.Peers) == 0 {
		fmt.Fprintln(w, "none found: this router goes on alone")
		return
	}
	t := newTable("ROUTER", "ADDRESS", "TELLS US", ">AGE", ">IN FLIGHT", ">HELD", "HEARS US", "NOTE")
	for i := range p.Peers {
		x := &p.Peers[i]
		var note []string
		if x.Fault != "" {
			note = append(note, x.Fault)
		}
		if x.OtherKey {
			note = append(note, "other secret for prompts: only its load counts")
		}
		if x.Unknown > 0 {
			note = append(note, withCommas(int(x.Unknown))+" notes on replicas that are not listed here")
		}
		flight, held := "-", "-"
		if x.Heard {
			flight, held = withCommas(x.InFlight), withCommas(x.Held)
		}
		t.add(orDash(x.Router), orDash(x.Address), yesNo(x.Heard), ageOrDash(x.AgeMS), flight, held, yesNo(x.Telling), strings.Join(note, "; "))
	}
	t.write(w)
}

func yesNo(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}
