// SPDX-License-Identifier: Apache-2.0

package migrate_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
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

// TestEveryKeyIsToldOf puts a key that nobody knows at each place of a source; each must
// be on the list.
func TestEveryKeyIsToldOf(t *testing.T) {
	const source = `model_list:
  - model_name: a
    zzz_1: 1
    litellm_params: {model: hosted_vllm/m, api_base: "http://h:1", zzz_2: {deep: [1]}}
    model_info: {zzz_3: x, mode: chat}
router_settings:
  zzz_4: [1, 2]
  model_group_alias: {b: {model: a, zzz_5: 1}}
  fallbacks: [{a: [zzz_6]}, {zzz_7: [a]}]
litellm_settings: {zzz_8: true, drop_params: true}
general_settings: {zzz_9: 1}
zzz_10: {a: {b: 1}}
`
	res, err := migrate.Convert("litellm", migrate.Input{Name: "c", Data: []byte(source)})
	if err != nil {
		t.Fatal(err)
	}
	told := list(res.Notes)
	for _, want := range []string{"[0].zzz_1", "zzz_2", "zzz_3", "zzz_4", "zzz_5", "fallbacks[0].a[0]", "zzz_7", "zzz_8", "zzz_9", "zzz_10", "drop_params"} {
		if !strings.Contains(told, want) {
			t.Errorf("%s is not on the list:\n%s", want, told)
		}
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
