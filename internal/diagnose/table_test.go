// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"math"
	"testing"
)

func TestParseTable(t *testing.T) {
	for _, c := range []struct {
		name, text string
		columns    []string
		rows       int
		col        string
		want       []float64
	}{
		{"csv", "t_s,replicas,waiting\n0,3,\n30,3,4\n", []string{"t_s", "replicas", "waiting"}, 2, "waiting", []float64{4}},
		{"tsv", "time\treplicas\n2026-01-01T00:00:00Z\t3\n", []string{"time", "replicas"}, 1, "replicas", []float64{3}},
		{"semicolons", "t;n\n1;2\n", []string{"t", "n"}, 1, "n", []float64{2}},
		{"negative is unknown", "t,hit\n0,-1\n1,0.5\n", []string{"t", "hit"}, 2, "hit", nil},
		{"percent", "t,cpu\n0,15%\n", []string{"t", "cpu"}, 1, "cpu", []float64{15}},
		{"list of objects", `[{"t":0,"n":1},{"t":1,"m":2}]`, []string{"n", "t", "m"}, 2, "n", []float64{1}},
		{"columns", `{"t":[0,1],"n":[3,4]}`, []string{"n", "t"}, 2, "n", []float64{3, 4}},
		{"wrapped", `{"history":[{"t":0,"n":1}]}`, []string{"n", "t"}, 1, "n", []float64{1}},
		{"lines", "{\"t\":0,\"n\":1}\n{\"t\":1,\"n\":2}\n", []string{"n", "t"}, 2, "n", []float64{1, 2}},
		{"comment", "# made by hand\nt,n\n0,1\n", []string{"t", "n"}, 1, "n", []float64{1}},
	} {
		tb, err := ParseTable(c.text)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if len(tb.Columns) != len(c.columns) || len(tb.Rows) != c.rows {
			t.Errorf("%s: %v with %d rows, want %v with %d", c.name, tb.Columns, len(tb.Rows), c.columns, c.rows)
			continue
		}
		for i := range c.columns {
			if tb.Columns[i] != c.columns[i] {
				t.Errorf("%s: columns %v, want %v", c.name, tb.Columns, c.columns)
			}
		}
		got := tb.Numbers(c.col)
		if len(got) != len(c.want) {
			t.Errorf("%s: %s is %v, want %v", c.name, c.col, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %s is %v, want %v", c.name, c.col, got, c.want)
			}
		}
	}
	if _, err := ParseTable(""); err == nil {
		t.Error("an empty table is no error")
	}
}

func TestTimes(t *testing.T) {
	tb, err := ParseTable("time,n\n14:02:10,1\n2026-01-01T00:00:00Z,2\n1700000000000,3\n90,4\n4m30s,5\n,6\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []float64{50530, 1767225600, 1700000000, 90, 270, math.NaN()}
	for i, w := range want {
		got, ok := tb.Time(i)
		if ok == math.IsNaN(w) || ok && got != w {
			t.Errorf("row %d: %v %v, want %v", i, got, ok, w)
		}
	}
}

func TestQuantities(t *testing.T) {
	for s, want := range map[string]float64{"504m": 0.504, "1k": 1000, "5e-1": 0.5, "40": 40, "1Gi": 1 << 30, "0.8": 0.8, "2E": 2e18, "1E3": 1000, "-1": -1, "100u": 1e-4} {
		if got, ok := ParseQuantity(s); !ok || math.Abs(got-want) > math.Abs(want)*1e-12 {
			t.Errorf("%s is %v %v, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{"", "m", "abc", "1x", "1 2", "."} {
		if v, ok := ParseQuantity(s); ok {
			t.Errorf("%q is read as %v", s, v)
		}
	}
	for s, want := range map[string]float64{"4m47.129s": 287.129, "5m31s": 331, "19s": 19, "250ms": 0.25, "59 s": 59, "2 min": 120, "1h": 3600, "12": 12, "1d2h": 93600} {
		if got, ok := ParseSeconds(s); !ok || math.Abs(got-want) > 1e-9 {
			t.Errorf("%s is %v %v, want %v", s, got, ok, want)
		}
	}
	for _, s := range []string{"14.9 GB", "x", "", "3 apples", "1 2"} {
		if v, ok := ParseSeconds(s); ok {
			t.Errorf("%q is read as %v s", s, v)
		}
	}
}

func TestEvents(t *testing.T) {
	for _, c := range []struct {
		line   string
		reason string
		object string
		msg    string
		count  int
		age    float64
	}{
		{`  Normal   Pulled     19s               kubelet            Successfully pulled image "x" in 4m47.129s`, "Pulled", "", `Successfully pulled image "x" in 4m47.129s`, 1, -19},
		{`  Warning  Unhealthy  16s (x292 over 50m) kubelet  Startup probe failed: refused`, "Unhealthy", "", "Startup probe failed: refused", 292, -16},
		{`2026-02-10T10:00:02Z Normal TriggeredScaleUp pod/chat-70b-x pod triggered scale-up: [a 1->2]`, "TriggeredScaleUp", "pod/chat-70b-x", "pod triggered scale-up: [a 1->2]", 1, 1770717602},
		{`prod        2m          Warning   FailedScheduling   pod/chat-5    0/6 nodes are available`, "FailedScheduling", "pod/chat-5", "0/6 nodes are available", 1, -120},
		{`Warning FailedScheduling pod/chat-new 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.`, "FailedScheduling", "pod/chat-new", "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", 1, 0},
		{`  Normal  SuccessfulRescale  5m (x3 over 10m)  horizontal-pod-autoscaler  New size: 4; reason: above target`, "SuccessfulRescale", "", "New size: 4; reason: above target", 3, -300},
	} {
		got := ParseEvents(c.line + "\n")
		if len(got) != 1 {
			t.Errorf("%q: %d events", c.line, len(got))
			continue
		}
		e := got[0]
		if e.Reason != c.reason || e.Object != c.object || e.Message != c.msg || e.Count != c.count || c.age != 0 && e.At != c.age {
			t.Errorf("%q: %+v", c.line, e)
		}
	}
	if got := ParseEvents("INFO 06-19 23:05:01 [loader.py:447] Loading weights took 0.69 seconds\nNormal people do things\n"); len(got) != 0 {
		t.Errorf("a log is read as events: %+v", got)
	}
}

func TestEdits(t *testing.T) {
	src := "a: 1\nb: {c: 2, d: 3}\ne: 4\n"
	got := Apply("f", src, []Edit{
		{File: "f", Line: 1, Col: 4, Del: 1, Text: "10"}, {File: "f", Line: 2, Col: 5, Text: "x: 9, "}, {File: "f", Line: 2, Col: 8, Del: 1, Text: "20"},
		{File: "f", Line: 2, Whole: true, Text: "new: line"}, {File: "other", Line: 1, Col: 1, Del: 1, Text: "no"}, {File: "f", Line: 99, Col: 1, Del: 1, Text: "no"},
	})
	if want := "a: 10\nb: {x: 9, c: 20, d: 3}\nnew: line\ne: 4\n"; got != want {
		t.Errorf("got\n%s", got)
	}
	if d := Diff("f", src, got); d != "--- f\n+++ f\n@@ -1,3 +1,4 @@\n-a: 1\n-b: {c: 2, d: 3}\n+a: 10\n+b: {x: 9, c: 20, d: 3}\n+new: line\n e: 4\n" {
		t.Errorf("diff\n%s", d)
	}
	if Diff("f", src, src) != "" {
		t.Error("no difference is no diff")
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add("t_s,replicas\n0,1\n")
	f.Add(`{"t":[0,1],"n":[3,4]}`)
	f.Fuzz(func(t *testing.T, text string) {
		tb, err := ParseTable(text)
		if err != nil {
			return
		}
		for i := range tb.Rows {
			tb.Time(i)
			if len(tb.Rows[i]) != len(tb.Columns) {
				t.Fatalf("row %d has %d cells, want %d", i, len(tb.Rows[i]), len(tb.Columns))
			}
		}
		for _, c := range tb.Columns {
			tb.Numbers(c)
		}
	})
}

func FuzzParseEvents(f *testing.F) {
	f.Add("  Warning  Unhealthy  16s (x292 over 50m) kubelet  Startup probe failed\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, e := range ParseEvents(text) {
			if e.Count < 1 || e.Reason == "" {
				t.Fatalf("%+v", e)
			}
		}
		ParseDescribeHPA(text)
	})
}
