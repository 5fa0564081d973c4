// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/penstock-project/penstock"

func root(t *testing.T) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("cannot find the repository root")
	}
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// source is one parsed Go file of the main module.
type source struct {
	rel  string // path from the root, with slashes
	pkg  string // first folder under internal, "" elsewhere
	test bool
	file *ast.File
	fset *token.FileSet
	text []byte
}

// parsed are the sources, read once for all tests.
var parsed []source

func sources(t *testing.T) []source {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	top := root(t)
	var out []source
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules" ||
				rel == "build" || rel == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, rel, text, parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{rel: rel, test: strings.HasSuffix(rel, "_test.go"), file: f, fset: fset, text: text}
		if rest, ok := strings.CutPrefix(rel, "internal/"); ok {
			s.pkg, _, _ = strings.Cut(rest, "/")
		}
		out = append(out, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	parsed = out
	return out
}

func rowOf(pkg string) int {
	for i, r := range Rows {
		for _, p := range r.Packages {
			if p == pkg {
				return i
			}
		}
	}
	return -1
}

func isCore(pkg string) bool {
	i := rowOf(pkg)
	return i >= 0 && Rows[i].Core
}

func imports(s source) []string {
	var out []string
	for _, im := range s.file.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		out = append(out, p)
	}
	return out
}

func TestImportsGoOneWay(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "" || s.test || Unplaced[s.pkg] != "" {
			continue
		}
		from := rowOf(s.pkg)
		if from < 0 {
			t.Errorf("%s: package %s stands in no row: place it in internal/arch/doc.go", s.rel, s.pkg)
			continue
		}
		for _, p := range imports(s) {
			rest, ok := strings.CutPrefix(p, module+"/internal/")
			if !ok {
				continue
			}
			to, _, _ := strings.Cut(rest, "/")
			if to == s.pkg {
				continue
			}
			switch at := rowOf(to); {
			case Unplaced[to] != "":
				t.Errorf("%s imports %s: %s", s.rel, to, Unplaced[to])
			case at > from:
				t.Errorf("%s: %s (row %q) imports %s (row %q): imports go down only, so that the lower row can be understood and tested alone",
					s.rel, s.pkg, Rows[from].Name, to, Rows[at].Name)
			case at == from && !contains(Rows[from].SameRow[s.pkg], to):
				t.Errorf("%s: %s imports %s in the same row %q: declare the interface where it is used and let cli wire it",
					s.rel, s.pkg, to, Rows[from].Name)
			}
		}
	}
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

func TestBans(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, p := range imports(s) {
			for _, b := range Bans {
				to := b.To
				if !strings.Contains(to, ".") {
					to = module + "/internal/" + to
				}
				if s.pkg == b.From && (p == to || strings.HasPrefix(p, to+"/")) {
					t.Errorf("%s imports %s: %s", s.rel, p, b.Why)
				}
			}
		}
	}
}

func TestCoreIsFunctional(t *testing.T) {
	for _, s := range sources(t) {
		if !isCore(s.pkg) || s.test {
			continue
		}
		for _, p := range imports(s) {
			if strings.HasPrefix(p, module) {
				continue
			}
			if why, banned := CoreStdBans[p]; banned {
				t.Errorf("%s imports %s: %s", s.rel, p, why)
			}
			if strings.Contains(strings.SplitN(p, "/", 2)[0], ".") && CoreImports[p] == "" {
				t.Errorf("%s imports %s: a core uses the standard library and %v only", s.rel, p, keys(CoreImports))
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine in a core package", s.fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				id, ok := n.X.(*ast.Ident)
				if ok && id.Name == "time" && clockFunc[n.Sel.Name] {
					t.Errorf("%s: time.%s in a core package: take now as an argument", s.fset.Position(n.Pos()), n.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestCoreTestsAreSingleThreaded allows the layer that tests the core to leave out the race
// detector: neither the core nor its tests start a goroutine.
func TestCoreTestsAreSingleThreaded(t *testing.T) {
	const why = "tests of a core run without the race detector; test what runs concurrently where the lock is"
	for _, s := range sources(t) {
		if !isCore(s.pkg) || !s.test {
			continue
		}
		for _, p := range imports(s) {
			if p == "sync" || p == "sync/atomic" || p == "testing/synctest" {
				t.Errorf("%s imports %s: %s", s.rel, p, why)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a goroutine: %s", s.fset.Position(n.Pos()), why)
			case *ast.SelectorExpr:
				if n.Sel.Name == "Parallel" || n.Sel.Name == "RunParallel" {
					t.Errorf("%s: %s: %s", s.fset.Position(n.Pos()), n.Sel.Name, why)
				}
			}
			return true
		})
	}
}

var clockFunc = map[string]bool{
	"Now": true, "Since": true, "Until": true, "After": true, "AfterFunc": true, "Sleep": true,
	"Tick": true, "NewTimer": true, "NewTicker": true,
}

func keys(m map[string]string) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	return out
}

func TestPackageDocs(t *testing.T) {
	docs := map[string][]string{}
	dirs := map[string]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		dir := filepath.ToSlash(filepath.Dir(s.rel))
		dirs[dir] = s.file.Name.Name
		if s.file.Doc != nil && strings.TrimSpace(s.file.Doc.Text()) != "" && !strings.HasPrefix(s.file.Doc.Text(), "SPDX") {
			docs[dir] = append(docs[dir], s.rel)
		}
	}
	for dir, name := range dirs {
		if len(docs[dir]) != 1 {
			t.Errorf("%s (package %s) has %d package comments %v, want exactly one whose first sentence is its duty", dir, name, len(docs[dir]), docs[dir])
		}
		switch name {
		case "util", "utils", "common", "helpers", "types", "misc", "base":
			t.Errorf("%s: package name %q says nothing", dir, name)
		}
	}
}

var leftOver = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

func TestFiles(t *testing.T) {
	for _, s := range sources(t) {
		lines := strings.Split(string(s.text), "\n")
		if len(lines) > 601 {
			t.Errorf("%s has %d lines, at most 600: split it by duty", s.rel, len(lines)-1)
		}
		if !strings.Contains(lines[0], "SPDX-License-Identifier: Apache-2.0") && !strings.Contains(lines[0], "Code generated") {
			t.Errorf("%s: the first line is not // SPDX-License-Identifier: Apache-2.0", s.rel)
		}
		if m := leftOver.FindString(string(s.text)); m != "" && s.pkg != "arch" {
			t.Errorf("%s: a left-over %s", s.rel, m)
		}
		if s.test {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line
			if n > 75 {
				t.Errorf("%s: %s has %d lines, about 70 at most", s.fset.Position(f.Pos()), f.Name.Name, n)
			}
		}
	}
}

// TestExportedAreDocumented holds every exported declaration of the core to a
// comment: these packages are the contract that the rest is written against.
func TestExportedAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "" || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Recv == nil && d.Doc == nil {
					t.Errorf("%s: %s has no comment", s.fset.Position(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				if d.Tok != token.TYPE {
					continue
				}
				for _, sp := range d.Specs {
					ts, ok := sp.(*ast.TypeSpec)
					if ok && ts.Name.IsExported() && d.Doc == nil && ts.Doc == nil {
						t.Errorf("%s: type %s has no comment", s.fset.Position(ts.Pos()), ts.Name.Name)
					}
				}
			}
		}
	}
}

var machinePath = regexp.MustCompile(`(^|[^A-Za-z0-9_.])/(root|home/[a-z]+|work)/`)

// TestNoTraceOfAMachine reads every committed text file.
func TestNoTraceOfAMachine(t *testing.T) {
	top := root(t)
	out, err := exec.Command("git", "-C", top, "ls-files", "-z").Output()
	if err != nil {
		t.Skip("not a git checkout:", err)
	}
	for _, rel := range strings.Split(strings.TrimRight(string(out), "\x00"), "\x00") {
		if strings.HasSuffix(rel, ".sum") || strings.HasSuffix(rel, ".png") || strings.HasSuffix(rel, "package-lock.json") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(top, rel))
		if err != nil {
			continue // removed in the work tree
		}
		for i, line := range strings.Split(string(text), "\n") {
			suspect := strings.Contains(line, "/root/") || strings.Contains(line, "/home/") || strings.Contains(line, "/work/")
			if suspect && machinePath.MatchString(line) && !strings.HasPrefix(rel, "internal/arch/") {
				t.Errorf("%s:%d: a path of somebody's machine: %s", rel, i+1, strings.TrimSpace(line))
			}
		}
		if len(text) > 400<<10 {
			t.Errorf("%s has %d KiB: a binary or a trace?", rel, len(text)>>10)
		}
	}
}
