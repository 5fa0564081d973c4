// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/coldstart"
	"github.com/penstock-project/penstock/internal/manifest"
)

// startFlags are the flags of `penstock diagnose start`.
type startFlags struct {
	events, manifests []string
	total, compare    string
}

func diagnoseStartCmd(e *Env) *cobra.Command {
	f := &startFlags{}
	c := &cobra.Command{
		Use:   "start [LOG|DIR|-]...",
		Short: "Break a slow start down into stages",
		Long: `Break the start of a replica down into stages that add up to its length: node,
image pull, process, weights, compile, graph capture, readiness, and what no line
explains. Reads container logs of vLLM (all generations), SGLang, TGI, llama.cpp and
Ollama, with or without colours, collectors' prefixes and JSON, and pod events as
kubectl describe, kubectl get events (text, JSON or YAML) or a pod with its status
show them. The largest stage that can be removed comes first.`,
		Example: `  kubectl logs chat-0 > engine.log; kubectl describe pod chat-0 > events.txt
  penstock diagnose start engine.log --events events.txt
  penstock diagnose start engine.log --total 59s -o json`,
	}
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.StringArrayVar(&f.events, "events", nil, "a `file` with the pod's events or its status; repeat")
	fl.StringVar(&f.total, "total", "", "the whole `time` as measured, from container start to first answer, such as 59s")
	fl.StringArrayVar(&f.manifests, "manifest", nil, "compare the probes of this `file` with the start; repeat")
	fl.StringVar(&f.compare, "compare", "", "another `log`: show what became longer or shorter")
	c.RunE = func(_ *cobra.Command, args []string) error {
		in, files, err := e.startInput(f, args)
		if err != nil {
			return err
		}
		rep := coldstart.Analyse(in)
		if err := e.startProbes(rep, len(in.Events), append(f.manifests, files...)); err != nil {
			return err
		}
		if *out == "json" {
			if err := printJSON(e.Stdout, rep); err != nil {
				return err
			}
			return foundCode(rep.Findings)
		}
		printStart(e.Stdout, rep, e.width())
		if f.compare != "" {
			b, err := e.readInput(f.compare)
			if err != nil {
				return err
			}
			printStartDiff(e.Stdout, rep, coldstart.Analyse(coldstart.Input{Logs: []coldstart.Log{{Name: f.compare, Text: string(b)}}}), f.compare)
		}
		return foundCode(rep.Findings)
	}
	return c
}

func (e *Env) width() int {
	if e.Terminal == nil {
		return 80
	}
	_, w := e.Terminal()
	return min(max(w, 60), 120)
}

// givenTotal finds a time that somebody wrote down: "container start to first
// answered request: 59 s".
var givenTotal = regexp.MustCompile(`(?i)(?:start|total|ready|answer)[^\n]*?(\d+(?:\.\d+)?\s*(?:s|sec|secs|seconds|m|min|minutes)?(?:\s*\d+\s*s)?)\b`)

// startInput sorts what was given: logs, events, a total, manifests.
func (e *Env) startInput(f *startFlags, args []string) (in coldstart.Input, files []string, err error) {
	g, err := e.gather(args)
	if err != nil {
		return in, nil, err
	}
	for _, t := range g.texts {
		evs := manifest.Events(t.name, []byte(t.text))
		switch lines := strings.Count(t.text, "\n") + 1; {
		case len(evs) > 0 && len(evs)*3 >= lines:
			in.Events, in.EventsFile = append(in.Events, evs...), t.name
		case lines <= 3 && givenTotal.MatchString(t.text) && len(evs) == 0:
			if v, ok := diagnose.ParseSeconds(givenTotal.FindStringSubmatch(t.text)[1]); ok && in.Total == 0 {
				in.Total = v
			}
		default:
			in.Logs = append(in.Logs, coldstart.Log{Name: t.name, Text: t.text})
		}
	}
	for _, t := range g.tables { // a log in JSON lines
		if strings.HasSuffix(t.name, ".jsonl") {
			if b, err := e.readInput(t.name); err == nil {
				in.Logs = append(in.Logs, coldstart.Log{Name: t.name, Text: string(b)})
			}
		}
	}
	for _, m := range g.manifests {
		if evs := manifest.Events(m.Name, m.Data); len(evs) > 0 {
			in.Events, in.EventsFile = append(in.Events, evs...), m.Name
		} else if !strings.HasSuffix(m.Name, ".json") {
			files = append(files, m.Name)
		}
	}
	for _, name := range f.events {
		b, err := e.readInput(name)
		if err != nil {
			return in, nil, err
		}
		evs := manifest.Events(name, b)
		if len(evs) == 0 {
			return in, nil, usagef("it is read as kubectl describe, kubectl get events (text, -o json, -o yaml) or a pod with status", "%s holds no event", name)
		}
		in.Events, in.EventsFile = append(in.Events, evs...), name
	}
	if f.total != "" {
		v, ok := diagnose.ParseSeconds(f.total)
		if !ok || v <= 0 {
			return in, nil, usagef("write --total 59s", "--total %q is no time", f.total)
		}
		in.Total = v
	}
	if len(in.Logs) == 0 && len(in.Events) == 0 {
		return in, nil, usagef("example: penstock diagnose start engine.log --events events.txt", "%w", errNothing)
	}
	return in, files, nil
}

// startProbes compares the probes of manifests with the start that was seen. A log
// without events begins after its container did: what is too long for a probe in the
// log was too long for it in the pod.
func (e *Env) startProbes(rep *coldstart.Report, events int, names []string) error {
	seconds, ok := rep.Facts.Get("container_start_to_ready_s")
	if !ok && events == 0 && rep.Total != nil {
		seconds, ok = *rep.Total, true
	}
	if !ok || len(names) == 0 {
		return nil
	}
	var inputs []manifest.Input
	for _, n := range names {
		b, err := e.readInput(n)
		if err != nil {
			return err
		}
		inputs = append(inputs, manifest.Input{Name: n, Data: b})
	}
	set, _ := manifest.Read(inputs)
	set.Seen.Starts = append(set.Seen.Starts, diagnose.Start{Seconds: seconds})
	for _, f := range diagnose.Lint(set) {
		if f.Code == "startup-budget-too-small" || f.Code == "liveness-kills-start" || f.Code == "cooldown-below-start" || f.Code == "window-below-start" {
			rep.Findings = append(rep.Findings, f)
		}
	}
	return nil
}

// printStart draws the stages as bars, then the levers and the findings.
func printStart(w io.Writer, r *coldstart.Report, width int) {
	head := strings.TrimSpace(r.Engine + " " + r.Version)
	if head == "" {
		head = "start"
	}
	switch {
	case len(r.Stages) == 0:
		printFindings(w, r.Findings)
		fmt.Fprintln(w, summary(r.Checked, "line", r.Findings))
		return
	case r.Total == nil:
		fmt.Fprintf(w, "%s: the whole length is not known\n", head)
	case r.Ready:
		fmt.Fprintf(w, "%s: %s\n", head, diagnose.Seconds(*r.Total))
	default:
		fmt.Fprintf(w, "%s: %s so far\n", head, diagnose.Seconds(*r.Total))
	}
	longest, name := 0.0, 0
	for _, s := range r.Stages {
		name = max(name, utf8.RuneCountInString(stageTitle(s)))
		if s.Seconds != nil && s.In == "" {
			longest = math.Max(longest, *s.Seconds)
		}
	}
	room := max(10, width-name-16)
	for _, s := range r.Stages {
		switch {
		case s.Seconds == nil:
			fmt.Fprintf(w, "  %-*s  %10s  %s\n", name, stageTitle(s), "unknown", evidenceText(s.Evidence))
		case s.In == "":
			n := int(math.Round(*s.Seconds / math.Max(longest, 1e-9) * float64(room)))
			fmt.Fprintf(w, "  %-*s  %10s  %s\n", name, stageTitle(s), secondsText(*s.Seconds), strings.Repeat("#", max(n, min(1, int(math.Ceil(*s.Seconds))))))
		default:
			fmt.Fprintf(w, "  %-*s  %10s\n", name, stageTitle(s), "("+secondsText(*s.Seconds)+")")
		}
	}
	for _, s := range r.Stages {
		if s.Name != "unexplained" {
			continue
		}
		for _, ev := range s.Evidence {
			if ev.Name == "silence" {
				fmt.Fprintf(w, "  silence of %s s %s\n", diagnose.Num(ev.Value.(float64)), ev.Age)
			}
		}
	}
	fmt.Fprintln(w)
	printStartFacts(w, r)
	printFindings(w, r.Findings)
	fmt.Fprintln(w, summary(r.Checked, "line", r.Findings))
}

func stageTitle(s coldstart.Stage) string {
	t := strings.ReplaceAll(s.Name, "_", " ")
	if s.In != "" && !strings.HasPrefix(s.In, "total") {
		return "  in " + strings.ReplaceAll(s.In, "_", " ") + ": " + t
	}
	if s.In != "" {
		return "  " + t + ", the whole"
	}
	return t
}

// secondsText writes seconds to a tenth: bars of one chart are compared.
func secondsText(s float64) string {
	if s < 1 {
		return diagnose.Num(diagnose.Round(s, 2)) + " s"
	}
	return fmt.Sprintf("%.1f s", s)
}

func printStartFacts(w io.Writer, r *coldstart.Report) {
	line := func(format string, names ...string) {
		var vals []any
		for _, n := range names {
			v, ok := r.Facts.Get(n)
			if !ok {
				return
			}
			vals = append(vals, diagnose.Num(v))
		}
		fmt.Fprintf(w, "  "+format+"\n", vals...)
	}
	line("image: %s GiB at %s MB/s", "image_gib", "mb_per_s")
	line("KV cache: %s tokens", "kv_tokens")
	line("startup probe: at least %s s from the start of the container, which took %s s to ready", "startup_probe_budget_s", "container_start_to_ready_s")
	line("lead time of an autoscaler: %s s", "autoscaler_lead_time_s")
	fmt.Fprintln(w)
}

// printStartDiff shows two starts side by side, largest difference first.
func printStartDiff(w io.Writer, a, b *coldstart.Report, name string) {
	fmt.Fprintf(w, "\nagainst %s\n", name)
	t := newTable("stage", ">here", ">there", ">difference")
	seen := map[string]bool{}
	for _, r := range [...]*coldstart.Report{a, b} {
		for _, s := range r.Stages {
			if seen[s.Name] {
				continue
			}
			seen[s.Name] = true
			x, y := seconds(a.Stage(s.Name)), seconds(b.Stage(s.Name))
			diff := "unknown"
			if !math.IsNaN(x) && !math.IsNaN(y) {
				diff = fmt.Sprintf("%+.1f s", x-y)
			}
			t.add("  "+strings.ReplaceAll(s.Name, "_", " "), orUnknown(x), orUnknown(y), diff)
		}
	}
	t.write(w)
}

func seconds(s *coldstart.Stage) float64 {
	if s == nil {
		return 0
	}
	if s.Seconds == nil {
		return math.NaN()
	}
	return *s.Seconds
}

func orUnknown(v float64) string {
	if math.IsNaN(v) {
		return "unknown"
	}
	return secondsText(v)
}
