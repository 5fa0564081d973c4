// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Dashboard returns the dashboard as Grafana imports it.
func Dashboard() []byte {
	var panels []any
	y, id := 0, 1
	for _, row := range Rows() {
		panels = append(panels, map[string]any{
			"id": id, "type": "row", "title": row.Title, "collapsed": false, "panels": []any{}, "gridPos": grid(0, y, 24, 1),
		})
		id++
		y++
		x := 0
		for _, p := range row.Panels {
			w := p.Width
			if w == 0 {
				w = 8
			}
			if x+w > 24 {
				x, y = 0, y+8
			}
			panels = append(panels, panelJSON(&p, id, grid(x, y, w, 8)))
			id++
			x += w
		}
		y += 8
	}
	out := map[string]any{
		"title": "Penstock", "uid": "penstock", "tags": []string{"llm", "inference"}, "schemaVersion": 39, "version": 1, "editable": true,
		"refresh": "10s", "time": map[string]string{"from": "now-30m", "to": "now"}, "timezone": "browser", "graphTooltip": 1,
		"templating": map[string]any{"list": []any{
			map[string]any{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
			variable("job", "Job", "label_values(penstock_build_info, job)"),
			variable("pool", "Pool", `label_values(penstock_pool_requests_total{job=~"$job"}, pool)`),
			variable("model", "Model", `label_values(penstock_gateway_requests_total{job=~"$job"}, model)`),
		}},
		"annotations": map[string]any{"list": []any{
			map[string]any{"name": "Reloads", "datasource": source(), "enable": true, "iconColor": "blue",
				"expr": `changes(penstock_config_last_reload_timestamp_seconds{job=~"$job"}[1m]) > 0`, "titleFormat": "configuration reloaded"},
		}},
		"panels": panels,
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(out); err != nil {
		panic(err) // constant values only
	}
	return b.Bytes()
}

func grid(x, y, w, h int) map[string]int { return map[string]int{"x": x, "y": y, "w": w, "h": h} }

func source() map[string]string {
	return map[string]string{"type": "prometheus", "uid": "${datasource}"}
}

func variable(name, label, query string) map[string]any {
	return map[string]any{
		"name": name, "label": label, "type": "query", "datasource": source(), "definition": query, "query": map[string]any{"query": query, "refId": name},
		"refresh": 2, "includeAll": true, "multi": true, "current": map[string]any{"text": []string{"All"}, "value": []string{"$__all"}}, "sort": 1,
	}
}

func panelJSON(p *Panel, id int, pos map[string]int) map[string]any {
	var targets []any
	for i, q := range p.Queries {
		targets = append(targets, map[string]any{"datasource": source(), "expr": q.Expr, "legendFormat": q.Legend, "refId": string(rune('A' + i)), "range": true})
	}
	custom := map[string]any{"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
	if p.Stack {
		custom["stacking"] = map[string]any{"mode": "normal", "group": "A"}
		custom["fillOpacity"] = 30
	}
	defaults := map[string]any{"unit": p.Unit, "min": 0, "custom": custom}
	if p.Max > 0 {
		defaults["max"] = p.Max
	}
	return map[string]any{
		"id": id, "type": "timeseries", "title": p.Title, "description": p.About, "datasource": source(), "gridPos": pos, "targets": targets,
		"fieldConfig": map[string]any{"defaults": defaults, "overrides": []any{}},
		"options":     map[string]any{"legend": map[string]any{"displayMode": "list", "placement": "bottom"}, "tooltip": map[string]any{"mode": "multi", "sort": "desc"}},
	}
}

// Rules returns the alert rules as a rules file of Prometheus.
func Rules() []byte {
	var b bytes.Buffer
	fmt.Fprint(&b, "# SPDX-License-Identifier: Apache-2.0\n# Prometheus alert rules for a Penstock server. Written from deploy/monitoring; do not edit.\ngroups:\n  - name: penstock\n    rules:\n")
	for _, a := range Alerts() {
		fmt.Fprintf(&b, "      - alert: %s\n        expr: %s\n", a.Name, quote(a.Expr))
		if a.For != "" {
			fmt.Fprintf(&b, "        for: %s\n", a.For)
		}
		fmt.Fprintf(&b, "        labels: {severity: %s}\n        annotations:\n          summary: %s\n          description: %s\n          runbook: %s\n",
			a.Severity, quote(a.Summary), quote(a.Description), a.Runbook)
	}
	return b.Bytes()
}

// quote writes a text as a YAML scalar in double quotes, which JSON's are.
func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)
	return string(bytes.TrimSpace(b.Bytes()))
}
