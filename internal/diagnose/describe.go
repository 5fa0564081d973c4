// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strconv"
	"strings"
)

// ParseDescribeHPA reads what kubectl describe prints of a HorizontalPodAutoscaler:
// the metrics with current and target, the conditions, the replica counts. It
// reports whether the text has any of these.
func ParseDescribeHPA(text string) (SeenHPA, bool) {
	var h SeenHPA
	section := ""
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		trimmed := strings.TrimSpace(line)
		if trimmed == "" {
			continue
		}
		if key, rest, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			section = strings.TrimSpace(key)
			h.readHead(section, strings.TrimSpace(rest))
			if section == "Metrics" {
				h.Line = n
			}
			continue
		}
		switch section {
		case "Metrics":
			if row, ok := parseHPARow(trimmed); ok {
				row.Line = n
				h.Rows = append(h.Rows, row)
			}
		case "Conditions":
			f := strings.Fields(trimmed)
			if len(f) >= 3 && (f[1] == "True" || f[1] == "False" || f[1] == "Unknown") {
				_, msg, _ := strings.Cut(trimmed, f[2])
				h.Conditions = append(h.Conditions, Condition{Type: f[0], Status: f[1], Reason: f[2], Message: strings.TrimSpace(msg), Line: n})
			}
		}
	}
	return h, len(h.Rows) > 0
}

func (h *SeenHPA) readHead(key, rest string) {
	num := func(s string) Field[int] {
		if i, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
			return Field[int]{V: i, Set: true, Text: s}
		}
		return Field[int]{}
	}
	switch key {
	case "Name":
		h.Object = rest
	case "Max replicas":
		h.Max = num(rest)
	}
	if strings.HasSuffix(key, "pods") { // "Deployment pods:  3 current / 3 desired"
		for part := range strings.SplitSeq(rest, "/") {
			f := strings.Fields(part)
			if len(f) == 2 && f[1] == "current" {
				h.Spec = num(f[0])
			}
			if len(f) == 2 && f[1] == "desired" {
				h.Recommendation = num(f[0])
			}
		}
	}
}

// parseHPARow reads one row under "Metrics:":
//
//	"vllm_num_requests_waiting" on pods:  <unknown> / 5
//	resource cpu on pods  (as a percentage of request):  15% (90m) / 70%
//	"queue" (target average value):  3 / 4
func parseHPARow(s string) (HPARow, bool) {
	i := strings.LastIndex(s, ":")
	if i < 0 || !strings.Contains(s[i:], "/") {
		return HPARow{}, false
	}
	head, vals := strings.TrimSpace(s[:i]), s[i+1:]
	cur, target, _ := strings.Cut(vals, "/")
	row := HPARow{Current: strings.TrimSpace(cur), Target: strings.TrimSpace(target)}
	switch {
	case strings.HasPrefix(head, `"`):
		name, rest, ok := strings.Cut(head[1:], `"`)
		if !ok {
			return HPARow{}, false
		}
		row.Name = name
		switch rest = strings.TrimSpace(rest); {
		case strings.HasPrefix(rest, "on pods"):
			row.Kind = "pods"
		case strings.HasPrefix(rest, "on "):
			row.Kind = "object"
		default:
			row.Kind = "external"
		}
	case strings.HasPrefix(head, "resource "):
		row.Kind = "resource"
		row.Name = strings.Fields(head)[1]
	default:
		return HPARow{}, false
	}
	return row, row.Name != ""
}

// Unknown reports whether the row has no current value.
func (r *HPARow) Unknown() bool { return strings.HasPrefix(r.Current, "<") }
