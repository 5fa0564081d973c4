// SPDX-License-Identifier: Apache-2.0

package doctest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestStepsAndMatch(t *testing.T) {
	page := "x\n```console\n$ echo a \\\n> b\na b\n...\nend ...\n```\n```sh\n$ rm -rf nothing\n```\n"
	steps, err := Steps(page)
	if err != nil || len(steps) != 1 || steps[0].Command != "echo a b" || len(steps[0].Want) != 3 {
		t.Fatalf("got %+v, %v", steps, err)
	}
	if m, ok := Match(steps[0].Want, "a b\nnoise\nend of it\n"); !ok {
		t.Errorf("missing %q", m)
	}
	if _, ok := Match([]string{"a", "c"}, "a\nb\nc\n"); ok {
		t.Error("a skipped line must be asked for with ...")
	}
	if _, err := Steps("```console\n$ a\n"); err == nil {
		t.Error("an open block must be an error")
	}
}

func top(t *testing.T) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

func pages(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(top(t), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == "build" || d.Name() == ".git" || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(p, ".md") {
			out = append(out, p)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	for _, p := range pages(t) {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range Links(string(text)) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(p), filepath.FromSlash(l))); err != nil {
				rel, _ := filepath.Rel(top(t), p)
				t.Errorf("%s links to %s, which does not exist", rel, l)
			}
		}
	}
}

// TestIndexIsWhole holds docs/README.md to its promise: a page that it does not
// name is a page that nobody finds. Findings have an index of their own.
func TestIndexIsWhole(t *testing.T) {
	docs := filepath.Join(top(t), "docs")
	text, err := os.ReadFile(filepath.Join(docs, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{"README.md": true}
	for _, l := range Links(string(text)) {
		named[l] = true
	}
	for _, p := range pages(t) {
		rel, err := filepath.Rel(docs, p)
		if err != nil {
			t.Fatal(err)
		}
		rel = filepath.ToSlash(rel)
		if strings.HasPrefix(rel, "../") || strings.HasPrefix(rel, "reference/findings/") || named[rel] {
			continue
		}
		t.Errorf("docs/README.md does not name %s", rel)
	}
}

// TestMapIsWhole fails when ARCHITECTURE.md leaves out a package.
func TestMapIsWhole(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(top(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(top(t), "internal"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(string(text), "](internal/"+e.Name()+")") {
			t.Errorf("ARCHITECTURE.md does not name internal/%s", e.Name())
		}
	}
}

// TestConsoleBlocks runs only where PENSTOCK_DOCS_BIN names the folder with the
// binary: the layer "docs" sets it.
func TestConsoleBlocks(t *testing.T) {
	bin := os.Getenv("PENSTOCK_DOCS_BIN")
	if bin == "" {
		t.Skip("needs a built binary: run scripts/test.sh docs")
	}
	for _, p := range pages(t) {
		rel, _ := filepath.Rel(top(t), p)
		rel = filepath.ToSlash(rel)
		if rel != "README.md" && !strings.HasPrefix(rel, "docs/tutorial/") {
			continue
		}
		t.Run(rel, func(t *testing.T) {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			steps, err := Steps(string(text))
			if err != nil {
				t.Fatal(err)
			}
			runPage(t, rel, steps, bin)
		})
	}
}

// runPage runs all commands in one shell, so that background processes and
// variables last until the end of the page, and ends what is left.
func runPage(t *testing.T, rel string, steps []Step, bin string) {
	dir := t.TempDir()
	var script bytes.Buffer
	fmt.Fprintln(&script, "trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null' EXIT")
	for i, s := range steps {
		fmt.Fprintf(&script, "{\n%s\n} >%s 2>&1\necho $? >%s\n", s.Command,
			filepath.Join(dir, fmt.Sprintf("out%d", i)), filepath.Join(dir, fmt.Sprintf("rc%d", i)))
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = top(t)
	cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "NO_COLOR=1")
	if err := cmd.Run(); err != nil {
		t.Logf("%s: shell: %v", rel, err)
	}
	for i, s := range steps {
		out, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("out%d", i)))
		rc, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("rc%d", i)))
		if err != nil || strings.TrimSpace(string(rc)) != "0" {
			t.Errorf("%s:%d: `%s` ended with %s\n%s", rel, s.Line, s.Command, strings.TrimSpace(string(rc)), out)
			continue
		}
		if missing, ok := Match(s.Want, string(out)); !ok {
			t.Errorf("%s:%d: `%s` did not print %q but\n%s", rel, s.Line, s.Command, missing, out)
		}
	}
}
