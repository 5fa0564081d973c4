// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-project/penstock/internal/scale"
)

func printZero(w io.Writer, r *zeroReport) {
	fmt.Fprintf(w, "%s\n%.1f days, start %.0f s, wake %.0f s\n\n", r.From, r.SpanS/86400, r.StartS, r.WakeS)
	fmt.Fprintf(w, "%-26s %9s %9s", "VARIANT", "REQ/DAY", "PAUSES/D")
	ways := r.Variants[0].Ways
	for _, k := range ways {
		fmt.Fprintf(w, "  %18s", strings.ToUpper(string(k.Way))+" H/D, P99")
	}
	fmt.Fprintf(w, "  %-8s %s\n", "CHEAPEST", "IF NO ADAPTER")
	days := r.SpanS / 86400
	for i := range r.Variants {
		v := &r.Variants[i]
		fmt.Fprintf(w, "%-26s %9.1f %9.1f", cut(v.Name, 26), v.PerDay, v.Sessions)
		for _, k := range v.Ways {
			fmt.Fprintf(w, "  %18s", fmt.Sprintf("%.2f, %.3g s", k.GPUHours/days, k.FirstP99))
		}
		fmt.Fprintf(w, "  %-8s %s\n", v.Best, v.BestFull)
	}
	fmt.Fprintf(w, "\n%-38s %14s %12s %10s %10s\n", "ALL VARIANTS", "REPLICA H/DAY", "SHARE", "COLD", "STARTS/D")
	for _, k := range r.Totals {
		zeroTotal(w, "all "+string(k.Way), &k, days)
	}
	zeroTotal(w, "cheapest of each", &r.Mixed, days)
	zeroTotal(w, "cheapest of each, no adapters", &r.Full, days)
	fmt.Fprintf(w, "\n%-38s %14s %12s %10s\n", "ONE KEEP TIME FOR ALL, COLD", "", "SHARE", "COLD")
	for _, k := range r.Keeps {
		name := fmt.Sprintf("keep %.0f s", k.KeepS)
		if k.KeepS < 0 {
			name = "learned per variant"
		} else if k.KeepS < r.StartS {
			name += " (shorter than a start)"
		}
		fmt.Fprintf(w, "%-38s %14s %11.1f%% %9.1f%%\n", name, "", 100*k.Share, 100*k.Cold)
	}
	fmt.Fprintf(w, "\n%s\n", r.Verdict)
}

func zeroTotal(w io.Writer, name string, k *scale.Kept, days float64) {
	fmt.Fprintf(w, "%-38s %14.1f %11.1f%% %9.1f%% %10.1f\n", name, k.GPUHours/days, 100*k.Share, 100*k.Cold, k.Starts)
}

// cut keeps the end of a long name: the beginnings of paths are all alike.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "..." + s[len(s)-n+3:]
}

// printZeroConfig writes the choice as pools and adapters of a configuration.
func printZeroConfig(w io.Writer, r *zeroReport) {
	fmt.Fprintf(w, "# %s\n# What each variant costs and waits: penstock whatif zero with the same flags.\n", r.Verdict)
	var adapters []string
	for i := range r.Variants {
		if v := &r.Variants[i]; v.Best == scale.WayAdapter {
			adapters = append(adapters, v.Name)
		}
	}
	fmt.Fprintln(w, "pools:")
	if len(adapters) > 0 {
		fmt.Fprintf(w, "  - name: base # shared by %d adapters\n    models:\n      - name: base-model # as the engines list it\n        adapters:\n", len(adapters))
		for _, a := range adapters {
			fmt.Fprintf(w, "          - %s\n", yamlName(a))
		}
		fmt.Fprintf(w, "    replicas: {static: [\"http://base.example:8000\"]}\n    scale: {min: %.0f, max: %.0f}\n", r.Bases, 2*r.Bases+2)
	}
	for i := range r.Variants {
		v := &r.Variants[i]
		if v.Best == scale.WayAdapter {
			continue
		}
		least, note := 1, "never stops"
		for _, k := range v.Ways {
			if k.Way == v.Best && k.Way != scale.WayWarm {
				least, note = 0, fmt.Sprintf("%s; keep it %.0f s after its last request", wayWord(v.Best), k.KeepS)
			}
		}
		fmt.Fprintf(w, "  - name: %s # %s\n    models: [{name: %s}]\n    replicas: {static: [\"http://%s.example:8000\"]}\n    scale: {min: %d, max: 2}\n",
			hostName(v.Name), note, yamlName(v.Name), hostName(v.Name), least)
	}
}

// yamlName quotes a name that YAML would read as something else.
func yamlName(s string) string {
	for i, c := range s {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || i > 0 && (c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_')
		if !ok {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}

func hostName(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			return c
		}
		return '-'
	}, strings.ToLower(s))
}
