// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Table is a table of text with named columns: a history, a list of decisions. An
// empty cell is unknown.
type Table struct {
	Columns []string // in the order of the file, names as written
	Rows    [][]string
	Lines   []int // line of each row
}

// maxRows bounds a table; what is longer is cut at the start, so that the most
// recent rows stay.
const maxRows = 1 << 20

// ParseTable reads CSV or TSV with a header, a JSON list of objects, an object of
// columns ({"t": [...], "replicas": [...]}), or JSON lines.
func ParseTable(text string) (*Table, error) {
	text = strings.TrimPrefix(text, "\ufeff")
	trimmed := strings.TrimSpace(text)
	if trimmed == "" {
		return nil, errors.New("the table is empty")
	}
	if trimmed[0] == '[' || trimmed[0] == '{' {
		return parseJSONTable(trimmed)
	}
	return parseCSV(text)
}

func parseCSV(text string) (*Table, error) {
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	r.LazyQuotes = true
	first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	switch {
	case strings.Contains(first, "\t"):
		r.Comma = '\t'
	case strings.Contains(first, ";") && !strings.Contains(first, ","):
		r.Comma = ';'
	}
	head, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("the header of the table: %w", err)
	}
	t := &Table{}
	for _, h := range head {
		t.Columns = append(t.Columns, strings.TrimSpace(h))
	}
	for {
		row, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := r.FieldPos(0)
		for len(row) < len(t.Columns) {
			row = append(row, "")
		}
		for i := range row {
			row[i] = strings.TrimSpace(row[i])
		}
		t.Rows = append(t.Rows, row[:len(t.Columns)])
		t.Lines = append(t.Lines, line)
	}
	t.cut()
	return t, nil
}

func (t *Table) cut() {
	if n := len(t.Rows) - maxRows; n > 0 {
		t.Rows, t.Lines = t.Rows[n:], t.Lines[n:]
	}
}

func parseJSONTable(text string) (*Table, error) {
	var rows []map[string]any
	if text[0] == '[' {
		if err := json.Unmarshal([]byte(text), &rows); err != nil {
			return nil, fmt.Errorf("a list of objects is expected: %w", err)
		}
		return tableOf(rows), nil
	}
	dec := json.NewDecoder(strings.NewReader(text))
	for {
		var m map[string]any
		err := dec.Decode(&m)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		rows = append(rows, m)
	}
	if len(rows) == 1 {
		if t, ok := columnTable(rows[0]); ok {
			return t, nil
		}
		for _, key := range sortedKeys(rows[0]) { // {"history": [{...}]}
			if list, ok := rows[0][key].([]any); ok && len(list) > 0 {
				var inner []map[string]any
				for _, x := range list {
					if m, ok := x.(map[string]any); ok {
						inner = append(inner, m)
					}
				}
				if len(inner) == len(list) {
					return tableOf(inner), nil
				}
			}
		}
	}
	return tableOf(rows), nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func tableOf(rows []map[string]any) *Table {
	t := &Table{}
	for _, r := range rows {
		for _, k := range sortedKeys(r) {
			if !slices.Contains(t.Columns, k) {
				t.Columns = append(t.Columns, k)
			}
		}
	}
	for i, r := range rows {
		cells := make([]string, len(t.Columns))
		for j, c := range t.Columns {
			cells[j] = cell(r[c])
		}
		t.Rows = append(t.Rows, cells)
		t.Lines = append(t.Lines, i+1)
	}
	t.cut()
	return t
}

func columnTable(m map[string]any) (*Table, bool) {
	t := &Table{}
	n := -1
	for _, k := range sortedKeys(m) {
		list, ok := m[k].([]any)
		if !ok || len(list) == 0 {
			return nil, false
		}
		if _, isMap := list[0].(map[string]any); isMap || n >= 0 && len(list) != n {
			return nil, false
		}
		n = len(list)
		t.Columns = append(t.Columns, k)
	}
	for i := range max(n, 0) {
		row := make([]string, len(t.Columns))
		for j, k := range t.Columns {
			row[j] = cell(m[k].([]any)[i])
		}
		t.Rows = append(t.Rows, row)
		t.Lines = append(t.Lines, i+1)
	}
	return t, n > 0
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case bool:
		return strconv.FormatBool(v)
	}
	b, _ := json.Marshal(v)
	return string(b)
}

// Column returns the index of the first column with one of the names, or -1.
// Letter case and separators do not matter.
func (t *Table) Column(names ...string) int {
	for _, n := range names {
		want := normMetric(n)
		for i, c := range t.Columns {
			if normMetric(c) == want {
				return i
			}
		}
	}
	return -1
}

// Float returns a cell as a number, and false where it is empty or no number.
// NaN, infinities and negative readings are no measurements.
func (t *Table) Float(row, col int) (float64, bool) {
	if col < 0 || row < 0 || row >= len(t.Rows) || col >= len(t.Rows[row]) {
		return 0, false
	}
	s := strings.TrimSuffix(strings.TrimSpace(t.Rows[row][col]), "%")
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return 0, false
	}
	return v, true
}

// Text returns a cell, "" where it is empty.
func (t *Table) Text(row, col int) string {
	if col < 0 || row < 0 || row >= len(t.Rows) || col >= len(t.Rows[row]) {
		return ""
	}
	return t.Rows[row][col]
}

// Numbers returns all numbers of a column. It is empty where any cell is text.
func (t *Table) Numbers(column string) []float64 {
	col := slices.Index(t.Columns, column)
	var out []float64
	for i := range t.Rows {
		v, ok := t.Float(i, col)
		if !ok && t.Text(i, col) != "" && !strings.EqualFold(t.Text(i, col), "nan") {
			return nil
		}
		if ok {
			out = append(out, v)
		}
	}
	return out
}

// TimeColumn returns the name of the column that holds the time, "" where none
// does.
func (t *Table) TimeColumn() string {
	if i := t.Column("t_s", "t", "time", "time_s", "timestamp", "ts", "seconds", "elapsed_s", "date", "at", "tick"); i >= 0 {
		return t.Columns[i]
	}
	return ""
}

// Time returns the time of a row in seconds: a number, or a date.
func (t *Table) Time(row int) (float64, bool) {
	col := -1
	if name := t.TimeColumn(); name != "" {
		col = slices.Index(t.Columns, name)
	}
	s := t.Text(row, col)
	if s == "" {
		return 0, false
	}
	if v, ok := ParseTime(s); ok {
		return v, true
	}
	if v, err := strconv.ParseFloat(strings.TrimSuffix(s, "s"), 64); err == nil {
		if v > 1e11 { // milliseconds since 1970
			v /= 1000
		}
		return v, true
	}
	if h, err := clock(s); err == nil {
		return h, true
	}
	return ParseSeconds(s)
}

// clock reads 14:02:10 or 14:02.
func clock(s string) (float64, error) {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, errors.New("no time of day")
	}
	total := 0.0
	for i, p := range parts {
		v, err := strconv.ParseFloat(p, 64)
		if err != nil || v < 0 {
			return 0, errors.New("no time of day")
		}
		total += v * [...]float64{3600, 60, 1}[i]
	}
	return total, nil
}
