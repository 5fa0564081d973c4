// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/penstock-project/penstock/internal/console"
)

// printShadow says how the shadow policy of a pool compares.
func printShadow(w io.Writer, s *console.ShadowState) {
	if s == nil {
		return
	}
	fmt.Fprintf(w, "shadow %s", s.Policy)
	if s.Agrees == nil {
		fmt.Fprintln(w, "  no pick yet")
		return
	}
	fmt.Fprintf(w, "  agrees on %s of %s picks", percent(*s.Agrees), withCommas(int(s.Picks)))
	if s.ExtraMS != nil {
		word := "dearer"
		if *s.ExtraMS < 0 {
			word = "cheaper"
		}
		fmt.Fprintf(w, "  predicted %.1f ms %s a request (+/- %.1f)", max(*s.ExtraMS, -*s.ExtraMS), word, *s.Interval)
	}
	fmt.Fprintln(w)
}
