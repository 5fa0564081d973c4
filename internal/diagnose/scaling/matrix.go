// SPDX-License-Identifier: Apache-2.0

package scaling

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// FromMatrix reads answers of Prometheus to range queries (one object, or one a
// line) into a table: a column for each metric, series of one metric added up, or
// their largest where they are shares or latencies. It returns nil where the text
// is none.
func FromMatrix(text string) *diagnose.Table {
	type answer struct {
		Data struct {
			ResultType string `json:"resultType"`
			Result     []struct {
				Metric map[string]string `json:"metric"`
				Values [][2]any          `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	values := map[string]map[float64]float64{}
	var names []string
	var times []float64
	dec := json.NewDecoder(strings.NewReader(text))
	for dec.More() {
		var a answer
		if dec.Decode(&a) != nil || a.Data.ResultType != "matrix" {
			return nil
		}
		for _, s := range a.Data.Result {
			name := s.Metric["__name__"]
			if name == "" {
				name = "value"
			}
			if values[name] == nil {
				values[name] = map[float64]float64{}
				names = append(names, name)
			}
			f := diagnose.Fact(name)
			for _, v := range s.Values {
				t, ok := v[0].(float64)
				text, isText := v[1].(string)
				x, err := strconv.ParseFloat(text, 64)
				if !ok || !isText || err != nil || math.IsNaN(x) || math.IsInf(x, 0) {
					continue
				}
				old, seen := values[name][t]
				switch {
				case !seen:
					values[name][t] = x
				case f.Kind == diagnose.KindRatio || f.Kind == diagnose.KindPercent || f.Averaged:
					values[name][t] = math.Max(old, x)
				default:
					values[name][t] = old + x
				}
				times = append(times, t)
			}
		}
	}
	slices.Sort(times)
	times = slices.Compact(times)
	if len(times) == 0 {
		return nil
	}
	t := &diagnose.Table{Columns: append([]string{"t_s"}, names...)}
	for i, at := range times {
		row := []string{strconv.FormatFloat(at-times[0], 'f', -1, 64)}
		for _, n := range names {
			cell := ""
			if v, ok := values[n][at]; ok {
				cell = strconv.FormatFloat(v, 'f', -1, 64)
			}
			row = append(row, cell)
		}
		t.Rows = append(t.Rows, row)
		t.Lines = append(t.Lines, i+1)
	}
	return t
}
