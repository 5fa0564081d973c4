// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/manifest"
)

// TestRules runs every rule on inputs where it fires and on inputs where it must
// not; a rule without both fails.
func TestRules(t *testing.T) {
	groups := map[string][]manifest.Input{} // CODE/fires/1
	files, _ := filepath.Glob("testdata/rules/*.txtar")
	for _, f := range files {
		a, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range a.Files {
			dir, name := path.Split(x.Name)
			n, base, _ := strings.Cut(name, "-")
			groups[dir+n] = append(groups[dir+n], manifest.Input{Name: base, Data: x.Data})
		}
	}
	fires, quiet := map[string]int{}, map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		parts := strings.Split(key, "/")
		code, mode := parts[0], parts[1]
		t.Run(key, func(t *testing.T) {
			set, problems := manifest.Read(groups[key])
			for _, p := range problems {
				t.Error(p)
			}
			found := diagnose.Lint(set)
			has := slices.Contains(codes(found), code)
			if mode == "fires" && !has || mode == "quiet" && has {
				t.Errorf("got %v\n%s", codes(found), dump(found))
			}
			if mode == "fires" {
				fires[code]++
				checkFix(t, code, groups[key], found)
				return
			}
			quiet[code]++
		})
	}
	history := "never-scaled capped-at-max flapping pending-cascade runaway scaled-late lost-signal-scale-down"
	for _, r := range diagnose.Rules() {
		if r.Area == "start" || r.Area == "traffic" || strings.Contains(history, r.Code) {
			continue // tested where they live
		}
		if fires[r.Code] == 0 || quiet[r.Code] == 0 {
			t.Errorf("%s: %d inputs where it fires and %d where it must not, want one of each", r.Code, fires[r.Code], quiet[r.Code])
		}
	}
}

// checkFix applies the edits of a finding: what comes out must be readable and free
// of that finding.
func checkFix(t *testing.T, code string, in []manifest.Input, found []diagnose.Finding) {
	t.Helper()
	var edits []diagnose.Edit
	for _, f := range found {
		if f.Code == code {
			edits = append(edits, f.Edits...)
		}
	}
	if len(edits) == 0 {
		return
	}
	fixed := slices.Clone(in)
	for i := range fixed {
		fixed[i].Data = []byte(diagnose.Apply(fixed[i].Name, string(fixed[i].Data), edits))
	}
	set, problems := manifest.Read(fixed)
	for _, p := range problems {
		t.Errorf("after the fix: %v\n%s", p, fixed[0].Data)
	}
	if after := diagnose.Lint(set); slices.Contains(codes(after), code) {
		t.Errorf("the fix does not help:\n%s\n%s", fixed[0].Data, dump(after))
	}
}

func FuzzRead(f *testing.F) {
	files, _ := filepath.Glob("testdata/rules/*.txtar")
	for _, name := range files {
		a, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for i, x := range a.Files {
			if i%7 == 0 {
				f.Add(string(x.Data))
			}
		}
	}
	f.Add("a: &a [*a]\n")
	f.Add("apiVersion: v1\nkind: List\nitems: [{kind: X, apiVersion: y, spec: {containers: {}}}]")
	f.Add("{\"status\": \"success\", \"data\": {\"result\": [{\"value\": [1, \"NaN\"]}]}}")
	f.Fuzz(func(t *testing.T, text string) {
		in := []manifest.Input{{Name: "f.yaml", Data: []byte(text)}, {Name: "f.txt", Data: []byte(text)}, {Name: "f.csv", Data: []byte(text)}}
		set, _ := manifest.Read(in)
		found := diagnose.Lint(set)
		var edits []diagnose.Edit
		for _, x := range found {
			edits = append(edits, x.Edits...)
		}
		diagnose.Apply("f.yaml", text, edits)
		manifest.Events("f.yaml", []byte(text))
	})
}

// TestJSONIsNotEdited holds edits away from JSON, where a line of YAML would break
// the file.
func TestJSONIsNotEdited(t *testing.T) {
	text := `{"apiVersion":"keda.sh/v1alpha1","kind":"ScaledObject","metadata":{"name":"a"},"spec":{"scaleTargetRef":{"name":"m"},"maxReplicaCount":5,"cooldownPeriod":3,` +
		`"triggers":[{"type":"prometheus","metadata":{"serverAddress":"http://p","query":"tgi_queue_size","threshold":"10"}}]}}`
	set, _ := manifest.Read([]manifest.Input{{Name: "a.json", Data: []byte(text)}})
	found := diagnose.Lint(set)
	if len(found) < 3 {
		t.Fatalf("found %v", codes(found))
	}
	for _, f := range found {
		if len(f.Edits) > 0 {
			t.Errorf("%s has edits", f.Code)
		}
		if f.Line != 1 {
			t.Errorf("%s is at line %d", f.Code, f.Line)
		}
	}
}
