// SPDX-License-Identifier: Apache-2.0

package diagnose_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/penstock-project/penstock/internal/diagnose"
)

var update = flag.Bool("update", false, "write the pages of docs/reference/findings anew")

const docsDir = "../../docs/reference/findings"

// TestFindingPages holds the reference pages to the rule table: one page a code,
// generated from it, and no page beside them.
//
//	go test ./internal/diagnose -run FindingPages -update
func TestFindingPages(t *testing.T) {
	examples := firstExamples(t)
	pages := map[string]string{"index.md": indexPage()}
	for _, r := range diagnose.Rules() {
		if r.Title == "" || r.Means == "" || r.Fires == "" || r.Quiet == "" || r.Remedy == "" || r.Area == "" {
			t.Errorf("%s: the rule table lacks a text", r.Code)
		}
		pages[r.Code+".md"] = page(r, examples[r.Code])
	}
	if *update {
		if err := os.MkdirAll(docsDir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range pages {
		p := filepath.Join(docsDir, name)
		if *update {
			if err := os.WriteFile(p, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(p)
		if err != nil || string(got) != want {
			t.Errorf("%s is not what the rule table says; run go test ./internal/diagnose -run FindingPages -update (%v)", name, err)
		}
	}
	files, _ := filepath.Glob(filepath.Join(docsDir, "*.md"))
	for _, f := range files {
		if _, ok := pages[filepath.Base(f)]; !ok {
			t.Errorf("%s belongs to no rule", f)
		}
	}
}

// firstExamples returns the first input of the rule tests for each code.
func firstExamples(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, _ := filepath.Glob("../manifest/testdata/rules/*.txtar")
	for _, f := range files {
		a, err := txtar.ParseFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range a.Files {
			code, rest, _ := strings.Cut(x.Name, "/")
			if strings.HasPrefix(rest, "fires/1-") {
				if out[code] != "" {
					out[code] += "---\n"
				}
				out[code] += string(x.Data)
			}
		}
	}
	return out
}

func page(r diagnose.Rule, example string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s. Severity: %s. Area: %s.\n\n%s\n\n", r.Code, r.Title, r.Severity, r.Area, r.Means)
	fmt.Fprintf(&b, "**Fires when:** %s\n\n**Does not fire when:** %s\n\n**What to do:** %s\n", r.Fires, r.Quiet, r.Remedy)
	if example != "" {
		fmt.Fprintf(&b, "\n## Example\n\n```yaml\n%s```\n", example)
	}
	fmt.Fprintf(&b, "\n[All findings](index.md)\n")
	return b.String()
}

func indexPage() string {
	var b strings.Builder
	b.WriteString("# Findings\n\nWhat `penstock lint` and `penstock diagnose` report. Each finding carries its evidence and a remedy;\nthe pages say when a rule fires and when it does not.\n")
	for _, area := range [...][2]string{
		{"scaling", "Autoscalers and their histories"}, {"serving", "Pods, probes, commands"}, {"rollout", "Rollouts and disruption"},
		{"routing", "Pools, routes, monitors, Envoy"}, {"start", "Starts"}, {"traffic", "Decisions and the running system"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| code | severity | what |\n|---|---|---|\n", area[1])
		for _, r := range diagnose.Rules() {
			if r.Area == area[0] {
				fmt.Fprintf(&b, "| [%s](%s.md) | %s | %s |\n", r.Code, r.Code, r.Severity, r.Title)
			}
		}
	}
	b.WriteString(`
## Adding a rule

1. A row in the table of its area (internal/diagnose/rules*.go): code, severity, texts.
2. A pure function over the plain values in a rule_*.go file, called from Lint, or from the
   sub-package whose input it judges. It computes its evidence and, where it can, edits.
3. Inputs in internal/manifest/testdata/rules: one where it fires and one where it must not.
   The test applies the edits and expects the finding to go away.
4. ` + "`go test ./internal/diagnose -run FindingPages -update`" + ` writes the page.
`)
	return b.String()
}

// TestRuleTable holds the table to its form.
func TestRuleTable(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range diagnose.Rules() {
		if seen[r.Code] {
			t.Errorf("%s is there twice", r.Code)
		}
		seen[r.Code] = true
		if strings.ToLower(r.Code) != r.Code || strings.ContainsAny(r.Code, " _.") {
			t.Errorf("%q is no code", r.Code)
		}
	}
}
