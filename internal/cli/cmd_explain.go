// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/journal"
	"github.com/penstock-project/penstock/internal/route"
)

// explainFlags are the flags of `penstock explain`.
type explainFlags struct {
	last                      bool
	request, surface, journal string
	filter, server            string
}

func explainCmd(e *Env) *cobra.Command {
	f := &explainFlags{}
	c := grouped(groupAsk, &cobra.Command{
		Use:   "explain (ID | --last | --request FILE | scale [POOL])",
		Short: "Say why a request went where it went",
		Long: `Say why a request went where it went: every candidate with its cost in expected
milliseconds, term by term, the age of each signal, what was predicted against what
came, and the smallest change that would have decided otherwise.

ID is the x-request-id of an answer. --request asks where a request would go now;
it is not sent. --journal reads the files of a journal instead of asking a server.`,
		Example: `  penstock explain --last
  penstock explain --last --filter 'model=llama-3.1-8b ttft>2s'
  penstock explain --request body.json
  penstock explain scale chat
  penstock explain 7f3a-000012 --journal /var/lib/penstock/journal`,
		Args: atMost(1),
	})
	c.AddCommand(explainScaleCmd(e))
	out := outputFlag(c, "table", "json")
	fl := c.Flags()
	fl.BoolVar(&f.last, "last", false, "the newest request")
	fl.StringVar(&f.request, "request", "", "file with the JSON body of a request, - for standard input")
	fl.StringVar(&f.surface, "surface", "", "API of --request: chat, completions, embeddings, messages, responses (default: by the body)")
	fl.StringVar(&f.filter, "filter", "", "with --last: terms that must hold, such as 'replica=r1 ttft>1s'")
	fl.StringVar(&f.journal, "journal", "", "journal file or directory to read instead of asking a server")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		f.server = *server
		if err := f.check(args); err != nil {
			return err
		}
		rec, err := e.explain(c, f, args)
		if err != nil {
			return err
		}
		if *out == "json" {
			return printJSON(e.Stdout, rec)
		}
		printRecord(e, e.Stdout, rec)
		return nil
	}
	return c
}

func (f *explainFlags) check(args []string) error {
	n := len(args)
	if f.last {
		n++
	}
	if f.request != "" {
		n++
	}
	switch {
	case n == 0:
		return usagef("`penstock explain --last` explains the newest request", "name a request: an ID, --last or --request FILE")
	case n > 1:
		return usagef("", "an ID, --last and --request exclude each other")
	case f.filter != "" && !f.last:
		return usagef("", "--filter goes with --last")
	case f.request != "" && f.journal != "":
		return usagef("", "--request asks a running server, --journal reads files: use one")
	case f.surface != "" && f.request == "":
		return usagef("", "--surface goes with --request")
	}
	return nil
}

func (e *Env) explain(c *cobra.Command, f *explainFlags, args []string) (*route.Record, error) {
	if f.journal != "" {
		return explainFiles(f, args)
	}
	cl, err := e.client(f.server)
	if err != nil {
		return nil, err
	}
	rec := new(route.Record)
	switch {
	case f.request != "":
		body, err := e.readInput(f.request)
		if err != nil {
			return nil, err
		}
		if !json.Valid(body) {
			return nil, usagef("the file holds the body of a request, such as {\"model\": ..., \"messages\": [...]}", "%s is not valid JSON", f.request)
		}
		path := "/api/v1/explain"
		if f.surface != "" {
			path += "?surface=" + url.QueryEscape(f.surface)
		}
		return rec, cl.post(c.Context(), path, body, rec)
	case f.last:
		var list console.Decisions
		if err := cl.get(c.Context(), "/api/v1/decisions?limit=1&filter="+url.QueryEscape(f.filter), &list); err != nil {
			return nil, err
		}
		if len(list.Decisions) == 0 {
			if f.filter != "" {
				return nil, failf("", "no recorded request passes the filter %q", f.filter)
			}
			return nil, failf("send one to the gateway, then ask again", "no request was recorded yet")
		}
		return list.Decisions[0], nil
	}
	return rec, cl.get(c.Context(), "/api/v1/decisions/"+url.PathEscape(args[0]), rec)
}

func explainFiles(f *explainFlags, args []string) (*route.Record, error) {
	filter, what := journal.Filter{}, "a record"
	var err error
	if len(args) > 0 {
		filter, what = journal.ByID(args[0]), fmt.Sprintf("request %q", args[0])
	} else if f.filter != "" {
		if filter, err = journal.ParseFilter(f.filter); err != nil {
			return nil, usagef("", "%v", err)
		}
		what = fmt.Sprintf("a record that passes %q", f.filter)
	}
	rec, err := journal.Find(f.journal, filter)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, usagef("", "%s does not exist", f.journal)
	case err != nil:
		return nil, failf("", "%v", err)
	case rec == nil:
		return nil, failf("", "%s holds no record of %s", f.journal, what)
	}
	return rec, nil
}

// readInput reads a file, or standard input for "-".
func (e *Env) readInput(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(e.Stdin)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("", "%v", err)
	}
	return b, nil
}
