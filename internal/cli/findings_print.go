// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock-project/penstock/internal/diagnose"
)

// printFindings writes findings for people: the place, the harm, one sentence, the
// numbers it rests on, what to do.
func printFindings(w io.Writer, found []diagnose.Finding) {
	for i := range found {
		f := &found[i]
		place := f.File
		if f.Line > 0 {
			place = fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		head := strings.TrimSpace(fmt.Sprintf("%s  %s  %s", f.Severity, f.Code, f.Object))
		if place != "" {
			head = place + "  " + head
		}
		fmt.Fprintln(w, head)
		for _, l := range wrap(f.Message, 96) {
			fmt.Fprintln(w, "    "+l)
		}
		if ev := evidenceText(f.Evidence); ev != "" {
			for j, l := range wrap(ev, 86) {
				label := "evidence: "
				if j > 0 {
					label = "          "
				}
				fmt.Fprintln(w, "    "+label+l)
			}
		}
		for j, l := range strings.Split(f.Remedy, "\n") {
			label := "remedy:   "
			if j > 0 {
				label = "          "
			}
			fmt.Fprintln(w, "    "+label+l)
		}
		fmt.Fprintf(w, "    docs:     %s\n\n", f.Docs)
	}
}

// evidenceText writes evidence on one line. Tables stay in the JSON.
func evidenceText(ev []diagnose.Evidence) string {
	var parts []string
	for _, x := range ev {
		v, ok := valueText(x.Value)
		if !ok {
			continue
		}
		s := x.Name + " " + v
		if x.Unit != "" && x.Value != nil {
			if s += " " + x.Unit; x.Value == 1 {
				s = strings.TrimSuffix(s, "s")
			}
		}
		if x.Age != "" {
			s += " (" + x.Age + ")"
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, ", ")
}

func valueText(v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return "unknown", true
	case float64:
		return diagnose.Num(v), true
	case int:
		return fmt.Sprint(v), true
	case bool:
		return fmt.Sprint(v), true
	case string:
		if len(v) > 120 {
			v = v[:117] + "..."
		}
		return strings.Join(strings.Fields(v), " "), true
	case []string:
		return strings.Join(v, ", "), true
	case []int:
		return strings.Trim(fmt.Sprint(v), "[]"), true
	}
	return "", false
}

// wrap breaks a text at spaces so that no line is longer than width, where words
// allow it.
func wrap(s string, width int) []string {
	var out []string
	line := ""
	for w := range strings.FieldsSeq(s) {
		if line != "" && len(line)+1+len(w) > width {
			out = append(out, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	if line != "" {
		out = append(out, line)
	}
	return out
}

// printGitHub writes findings as workflow commands, which GitHub shows as
// annotations at the lines.
func printGitHub(w io.Writer, found []diagnose.Finding) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	prop := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for i := range found {
		f := &found[i]
		level := map[diagnose.Severity]string{diagnose.Error: "error", diagnose.Warning: "warning", diagnose.Note: "notice"}[f.Severity]
		_, err := fmt.Fprintf(w, "::%s file=%s,line=%d,title=%s::%s\n", level, prop.Replace(f.File), max(f.Line, 1), prop.Replace(f.Code),
			data.Replace(f.Message+"\n"+f.Remedy))
		if err != nil {
			return err
		}
	}
	return nil
}

// The types below are the part of SARIF 2.1.0 that code hosts read.
type sarifLog struct {
	Schema  string     `json:"$schema"`
	Version string     `json:"version"`
	Runs    []sarifRun `json:"runs"`
}

type sarifRun struct {
	Tool    sarifTool     `json:"tool"`
	Results []sarifResult `json:"results"`
}

type sarifTool struct {
	Driver sarifDriver `json:"driver"`
}

type sarifDriver struct {
	Name    string      `json:"name"`
	Version string      `json:"version"`
	URI     string      `json:"informationUri"`
	Rules   []sarifRule `json:"rules"`
}

type sarifRule struct {
	ID      string    `json:"id"`
	Short   sarifText `json:"shortDescription"`
	Full    sarifText `json:"fullDescription"`
	Help    sarifText `json:"help"`
	HelpURI string    `json:"helpUri"`
}

type sarifText struct {
	Text string `json:"text"`
}

type sarifResult struct {
	RuleID    string          `json:"ruleId"`
	RuleIndex int             `json:"ruleIndex"`
	Level     string          `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations"`
}

type sarifLocation struct {
	Physical sarifPhysical `json:"physicalLocation"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   sarifRegion   `json:"region"`
}

type sarifArtifact struct {
	URI string `json:"uri"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

// projectURL is where the pages of the findings can be read.
const projectURL = "https://github.com/penstock-project/penstock"

func sarifOf(found []diagnose.Finding) sarifLog {
	run := sarifRun{Tool: sarifTool{Driver: sarifDriver{Name: "penstock", Version: buildVersion().Version, URI: projectURL}}, Results: []sarifResult{}}
	index := map[string]int{}
	for _, r := range diagnose.Rules() {
		index[r.Code] = len(run.Tool.Driver.Rules)
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
			ID: r.Code, Short: sarifText{r.Title}, Full: sarifText{r.Means}, Help: sarifText{r.Remedy},
			HelpURI: projectURL + "/blob/main/" + diagnose.DocsOf(r.Code),
		})
	}
	for i := range found {
		f := &found[i]
		run.Results = append(run.Results, sarifResult{
			RuleID: f.Code, RuleIndex: index[f.Code], Level: f.Severity.String(), Message: sarifText{f.Message + "\n" + f.Remedy},
			Locations: []sarifLocation{{Physical: sarifPhysical{Artifact: sarifArtifact{strings.TrimPrefix(f.File, "./")}, Region: sarifRegion{max(f.Line, 1)}}}},
		})
	}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}
