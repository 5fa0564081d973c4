// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/deploy/alerts"
)

// alertRule is a rule on Envoy's own series, as far as a drill evaluates one.
type alertRule struct {
	Name     string
	series   string   // name of the metric
	labels   []string // name="value", all of which must be there
	increase bool     // the expression is about the growth over the drill's step
	op       string   // > or ==
	bound    float64
}

// The two shapes of expressions that can be decided from two looks at a process.
var (
	increaseExpr = regexp.MustCompile(`^increase\(([a-z_]+)(?:\{([^}]*)\})?\[[0-9a-z]+\]\) (>|==) ([0-9.]+)$`)
	instantExpr  = regexp.MustCompile(`^([a-z_]+)(?:\{([^}]*)\})? (>|==) ([0-9.]+)$`)
)

// envoyAlerts reads the rules on Envoy's series from the file that ships.
func envoyAlerts() ([]alertRule, error) {
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal(alerts.EPP, &file); err != nil {
		return nil, err
	}
	var out []alertRule
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if !strings.Contains(r.Expr, "envoy_") {
				continue
			}
			rule := alertRule{Name: r.Alert}
			m := increaseExpr.FindStringSubmatch(r.Expr)
			if rule.increase = m != nil; m == nil {
				m = instantExpr.FindStringSubmatch(r.Expr)
			}
			if m == nil {
				return nil, fmt.Errorf("alert %s: the drill cannot evaluate %q", r.Alert, r.Expr)
			}
			rule.series, rule.op = m[1], m[3]
			if m[2] != "" {
				rule.labels = strings.Split(m[2], ",")
			}
			var err error
			if rule.bound, err = strconv.ParseFloat(m[4], 64); err != nil {
				return nil, err
			}
			out = append(out, rule)
		}
	}
	return out, nil
}

// value returns the sum of the rule's series in a Prometheus exposition, and whether
// there is any.
func (r *alertRule) value(exposition string) (sum float64, ok bool) {
	for line := range strings.Lines(exposition) {
		rest, found := strings.CutPrefix(line, r.series)
		if !found || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		labels, number := "", rest
		if i := strings.LastIndexByte(rest, '}'); i >= 0 {
			labels, number = rest[:i], rest[i+1:]
		}
		all := true
		for _, l := range r.labels {
			all = all && strings.Contains(labels, strings.TrimSpace(l))
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if all && err == nil {
			sum, ok = sum+v, true
		}
	}
	return sum, ok
}

// fires says whether the alert holds, from an exposition before what happened and
// one after. A counter that was not there before cannot fire: that is how
// Prometheus sees it, too.
func (r *alertRule) fires(before, after string) bool {
	v, ok := r.value(after)
	if !ok {
		return false
	}
	if r.increase {
		b, ok := r.value(before)
		if !ok {
			return false
		}
		v -= b
	}
	if r.op == ">" {
		return v > r.bound
	}
	return v == r.bound
}
