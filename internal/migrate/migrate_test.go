// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/migrate"
)

var update = flag.Bool("update", false, "write the expected parts of testdata anew")

// TestCases converts the first file of each case. A case is KIND-what.txtar; the second
// file is what comes out, the third the list of notes.
func TestCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal("no cases", err)
	}
	env := func(name string) string {
		return map[string]string{"VLLM_URL": "http://10.0.0.7:8000/v1", "VLLM_KEY": "s3cret-value"}[name]
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			kind, _, _ := strings.Cut(filepath.Base(path), "_")
			in := migrate.Input{Name: a.Files[0].Name, Data: a.Files[0].Data, Getenv: env}
			var got, notes string
			res, err := migrate.Convert(kind, in)
			var nothing *migrate.NothingError
			switch {
			case errors.As(err, &nothing):
				got, notes = "error: "+err.Error()+"\n", list(nothing.Notes)
			case err != nil:
				got = "error: " + err.Error() + "\n"
			default:
				got, notes = string(res.Config), list(res.Notes)
				again, err := migrate.Convert(kind, in)
				if err != nil || string(again.Config) != got {
					t.Errorf("the second time it is another: %v\n%s", err, again.Config)
				}
			}
			if strings.Contains(got+notes, "s3cret") {
				t.Errorf("a secret came out:\n%s%s", got, notes)
			}
			if *update {
				a.Files = append(a.Files[:1], txtar.File{Name: "penstock.yaml", Data: []byte(got)}, txtar.File{Name: "notes", Data: []byte(notes)})
				if err := os.WriteFile(path, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if len(a.Files) != 3 || string(a.Files[1].Data) != got || string(a.Files[2].Data) != notes {
				t.Errorf("got\n%s\n-- notes --\n%s", got, notes)
			}
		})
	}
}

func list(notes []migrate.Note) string {
	var b strings.Builder
	for _, n := range notes {
		fmt.Fprintf(&b, "%d %s %s\n", n.Line, n.Kind, n.Key)
	}
	return b.String()
}

// TestEveryKeyIsToldOf puts a key that nobody knows at each place of a source, and known
// ones where they say nothing; each must be on the list.
func TestEveryKeyIsToldOf(t *testing.T) {
	for _, c := range []struct {
		kind, source string
		want         []string
	}{
		{"litellm", `model_list:
  - model_name: a
    zzz_1: 1
    litellm_params: {model: hosted_vllm/m, api_base: "http://h:1", zzz_2: {deep: [1]}}
    model_info: {zzz_3: x, mode: chat}
  - {model_name: any, litellm_params: {model: "ollama/*", api_base: "http://h:2", input_cost_per_token: 1e-7}}
  - {model_name: none, litellm_params: {model: hosted_vllm/, api_base: "http://h:3"}}
router_settings:
  zzz_4: [1, 2]
  model_group_alias: {b: {model: a, zzz_5: 1}}
  fallbacks: [{a: [zzz_6]}, {zzz_7: [a]}]
litellm_settings: {zzz_8: true, drop_params: true, context_window_fallbacks: []}
general_settings: {zzz_9: 1}
zzz_10: {a: {b: 1}}
`, []string{"[0].zzz_1", "zzz_2", "zzz_3", "zzz_4", "zzz_5", "fallbacks[0].a[0]", "zzz_7", "zzz_8", "zzz_9", "zzz_10.a", "drop_params",
			"[1].litellm_params.input_cost_per_token", "model_list[2]", "context_window_fallbacks"}},
		{"smg", "--worker-urls http://h:1 --zzz-1 --policy zzz --prometheus-host 10.0.0.1 --selector zzz --service-discovery",
			[]string{"--zzz-1", "--policy", "--prometheus-host", "--selector", "--service-discovery"}},
		{"kubeai", `{apiVersion: kubeai.org/v1, kind: Model, zzz_1: 1, metadata: {name: m}, spec: {zzz_2: 1, adapters: [{name: a, zzz_3: 1}], loadBalancing: {strategy: PrefixHash, zzz_4: 1}}}`,
			[]string{"zzz_1", "zzz_2", "zzz_3", "zzz_4"}},
		{"llm-d", `
{kind: InferencePool, metadata: {name: p}}
---
{kind: InferenceModel, zzz_1: 1, metadata: {name: a}, spec: {modelName: a, zzz_2: 1, poolRef: {name: p}}}
---
{kind: InferenceModel, metadata: {name: b}, spec: {modelName: a, poolRef: {name: p}, targetModels: [{name: b}]}}
---
{kind: ConfigMap, metadata: {name: c}, data: {one: "{kind: EndpointPickerConfig, zzz_3: 1, plugins: [{type: zzz}]}", zzz_4: text}}
---
{kind: zzz_5}
`, []string{"Model a zzz_1", "zzz_2", "Model b spec.modelName", "zzz_3", "plugins[0]", "data.zzz_4", "zzz_5"}},
	} {
		res, err := migrate.Convert(c.kind, migrate.Input{Name: "c", Data: []byte(c.source)})
		if err != nil {
			t.Errorf("%s: %v", c.kind, err)
			continue
		}
		told := list(res.Notes)
		for _, want := range c.want {
			if !strings.Contains(told, want+"\n") {
				t.Errorf("%s: %s is not on the list:\n%s", c.kind, want, told)
			}
		}
	}
}

// TestKeysThatNotesNameExist looks up each key of Penstock in a text of this package.
func TestKeysThatNotesNameExist(t *testing.T) {
	type schema struct {
		Properties map[string]*schema
		Items      *schema
	}
	var top schema
	if err := json.Unmarshal(config.Schema(config.Options{}), &top); err != nil {
		t.Fatal(err)
	}
	pool := top.Properties["pools"].Items
	paths := regexp.MustCompile(`(?:^|[^/\w.-])([a-zA-Z]+(?:\[\])?(?:\.[a-zA-Z]+(?:\[\])?)+)`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			for _, m := range paths.FindAllStringSubmatch(text.Value, -1) {
				keys := strings.Split(strings.ReplaceAll(m[1], "[]", ""), ".")
				at := &top
				if at.Properties[keys[0]] == nil {
					at = pool
				}
				if at.Properties[keys[0]] == nil {
					continue // of the other router
				}
				seen++
				for _, k := range keys {
					if at.Items != nil {
						at = at.Items
					}
					if at = at.Properties[k]; at == nil {
						t.Errorf("%s: a text names %s, which is no key of the configuration", file, m[1])
						break
					}
				}
			}
			return true
		})
	}
	if seen < 30 {
		t.Errorf("only %d keys found", seen)
	}
}

func TestWords(t *testing.T) {
	words, lines := migrate.Words("smg launch \\\n  --a 'b c' \"d\\\"e\" # rest\n--f=g\\ h ''")
	want := []string{"smg", "launch", "--a", "b c", `d"e`, "--f=g h", ""}
	if fmt.Sprint(words) != fmt.Sprint(want) || len(words) != len(want) || lines[2] != 2 || lines[5] != 3 {
		t.Errorf("%q %v", words, lines)
	}
}

func TestAnchorsAreBounded(t *testing.T) {
	src := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		src += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	if _, err := migrate.Convert("litellm", migrate.Input{Name: "bomb", Data: []byte(src)}); err == nil || !strings.Contains(err.Error(), "too") {
		t.Error(err)
	}
}

// FuzzConvert: whatever comes in, what comes out is valid, or an error that is no
// defect.
func FuzzConvert(f *testing.F) {
	paths, _ := filepath.Glob("testdata/*.txtar")
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		kind, _, _ := strings.Cut(filepath.Base(path), "_")
		f.Add(kind, a.Files[0].Data)
	}
	f.Fuzz(func(t *testing.T, kind string, data []byte) {
		res, err := migrate.Convert(kind, migrate.Input{Name: "fuzz", Data: data, Getenv: func(s string) string { return s }})
		if err != nil {
			if strings.Contains(err.Error(), "defect") {
				t.Fatal(err)
			}
			return
		}
		if _, err := config.Parse("out", res.Config, config.Options{}); err != nil {
			t.Fatalf("%v\n%s", err, res.Config)
		}
	})
}
