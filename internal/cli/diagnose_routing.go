// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/diagnose"
	"github.com/penstock-project/penstock/internal/diagnose/routing"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

func diagnoseRoutingCmd(e *Env) *cobra.Command {
	var journals, tables []string
	var block float64
	c := &cobra.Command{
		Use:   "routing [FILE|DIR|-]...",
		Short: "Find scattered caches and sessions, hot prefixes, herds, blind indexes",
		Long: `Judge routing decisions: from Penstock's journal, or from a table that any router can be
made to write, one row a decision (t_s, endpoint, prompt_tokens, cached_tokens,
prefix or session, router, ttft_ms, e2e_ms; what is absent is unknown), from counts of
decisions, from a stream of KV events, or from the running Penstock where no file is
given.`,
		Example: `  penstock diagnose routing --journal /var/lib/penstock/journal
  penstock diagnose routing --csv decisions.csv
  penstock diagnose routing                       the last decisions of the running Penstock`,
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.Flags().StringArrayVar(&journals, "journal", nil, "a journal `file` or directory; repeat")
	c.Flags().StringArrayVar(&tables, "csv", nil, "a table `file` of decisions; repeat")
	c.Flags().Float64Var(&block, "block-tokens", 0, "tokens in a block of the index (default: from the files, else unknown)")
	c.RunE = func(c *cobra.Command, args []string) error {
		in, err := e.routingInput(journals, tables, args)
		if err != nil {
			return err
		}
		if len(journals)+len(tables)+len(args) == 0 {
			cl, err := e.client(*server)
			if err != nil {
				return err
			}
			var list console.Decisions
			if err := cl.get(c.Context(), "/api/v1/decisions?limit=1000", &list); err != nil {
				return err
			}
			in = []routing.Input{{Records: list.Decisions, File: "decisions of " + cl.base}}
		}
		return e.printRouting(*out, in, block)
	}
	return c
}

// routingInput sorts what was given into inputs: each table is judged alone, all
// records together.
func (e *Env) routingInput(journals, tables, args []string) ([]routing.Input, error) {
	var out []routing.Input
	var records []*route.Record
	var rest []string
	for _, a := range args {
		recs, err := readJournal(a)
		if err == nil && len(recs) > 0 {
			records = append(records, recs...)
			continue
		}
		rest = append(rest, a)
	}
	for _, j := range journals {
		recs, err := readJournal(j)
		if err != nil {
			return nil, usagef("give a journal file or directory", "%w", err)
		}
		records = append(records, recs...)
	}
	g, err := e.gather(rest)
	if err != nil {
		return nil, err
	}
	set := g.set(func(s string) { fmt.Fprint(e.Stderr, s) })
	for _, name := range tables {
		t, err := e.oneTable(name)
		if err != nil {
			return nil, err
		}
		g.tables = append(g.tables, namedTable{name, t})
	}
	for _, t := range g.tables {
		// Settings belong to every table, findings on manifests are said once.
		out = append(out, routing.Input{Table: t.table, File: t.name, Set: &diagnose.Set{Seen: diagnose.Observed{Settings: set.Seen.Settings}}})
	}
	if len(records) > 0 || len(journals) > 0 {
		out = append(out, routing.Input{Records: records, File: strings.Join(journals, ", ")})
	}
	if set.Objects > 0 || len(out) == 0 && !set.Empty() {
		out = append(out, routing.Input{Set: set})
	}
	if len(out) == 0 && len(args) > 0 {
		return nil, usagef("a table has a header such as t_s,endpoint,prompt_tokens,cached_tokens", "%w", errNothing)
	}
	return out, nil
}

// readJournal reads all records of a journal file or directory. A file that is no
// journal gives an error or no record.
func readJournal(path string) ([]*route.Record, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = journal.Files(path); err != nil {
			return nil, err
		}
	}
	var out []*route.Record
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for rec, err := range journal.Read(name, f) {
			if err != nil {
				f.Close()
				return out, err
			}
			out = append(out, rec)
		}
		f.Close()
	}
	return out, nil
}

func (e *Env) printRouting(format string, inputs []routing.Input, block float64) error {
	all := &routing.Report{Schema: diagnose.Schema, Findings: []diagnose.Finding{}, Facts: map[string]any{}}
	for _, in := range inputs {
		in.BlockTokens = block
		r := routing.Analyse(in)
		all.Checked += r.Checked
		all.Findings = append(all.Findings, r.Findings...)
		for k, v := range r.Facts {
			if _, ok := all.Facts[k]; !ok || len(inputs) == 1 {
				all.Facts[k] = v
			}
		}
	}
	diagnose.SortByHarm(all.Findings)
	if format == "json" {
		if err := printJSON(e.Stdout, all); err != nil {
			return err
		}
		return foundCode(all.Findings)
	}
	printFindings(e.Stdout, all.Findings)
	for _, k := range [...]string{"measured_hit", "affinity_hit", "predicted_hit", "observed_hit", "turns_away_from_warm"} {
		if v, ok := all.Facts[k].(float64); ok {
			fmt.Fprintf(e.Stdout, "%s: %s %%\n", strings.ReplaceAll(k, "_", " "), diagnose.Num(diagnose.Round(v*100, 1)))
		}
	}
	fmt.Fprintln(e.Stdout, summary(all.Checked, "decision", all.Findings))
	return foundCode(all.Findings)
}

func diagnoseRequestCmd(e *Env) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "request ID",
		Short: "Say what one request's time went into and what went wrong",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("the ID is the x-request-id of the answer; `penstock explain --last` shows the newest", "give the ID of one request")
			}
			return nil
		},
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.Flags().StringVar(&dir, "journal", "", "journal file or directory to read instead of asking a server")
	c.RunE = func(c *cobra.Command, args []string) error {
		rec := new(route.Record)
		if dir != "" {
			var err error
			rec, err = journal.Find(dir, journal.ByID(args[0]))
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return usagef("", "%s does not exist", dir)
			case err != nil:
				return failf("", "%v", err)
			case rec == nil:
				return failf("", "%s holds no record of request %q", dir, args[0])
			}
		} else {
			cl, err := e.client(*server)
			if err != nil {
				return err
			}
			if err := cl.get(c.Context(), "/api/v1/decisions/"+url.PathEscape(args[0]), rec); err != nil {
				return err
			}
		}
		rep := routing.Request(rec)
		if *out == "json" {
			if err := printJSON(e.Stdout, rep); err != nil {
				return err
			}
			return foundCode(rep.Findings)
		}
		if rec.Outcome == nil {
			fmt.Fprintln(e.Stdout, "the request has not ended yet")
		}
		for _, p := range rep.Parts {
			fmt.Fprintf(e.Stdout, "  %-26s  %10s\n", p.Name, diagnose.Seconds(p.MS/1000))
		}
		fmt.Fprintln(e.Stdout)
		printFindings(e.Stdout, rep.Findings)
		fmt.Fprintln(e.Stdout, summary(1, "request", rep.Findings))
		fmt.Fprintf(e.Stdout, "next: penstock explain %s\n", args[0])
		return foundCode(rep.Findings)
	}
	return c
}
