// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/migrate"
)

// ConfigFrom is what `penstock config from -o json` prints.
type ConfigFrom struct {
	Schema string         `json:"schema"` // penstock/config-from/v1
	From   string         `json:"from"`
	Source string         `json:"source"`
	Pools  int            `json:"pools"`
	Config string         `json:"config"`
	Notes  []migrate.Note `json:"notes"`
}

func configFromCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "from " + strings.Join(migrate.Kinds(), "|") + " FILE",
		Short: "Convert what another router is configured by",
		Long: `Read what another router is configured by and print a penstock.yaml with comments.
What did not come over as it was stands at the top of the file, and on standard error,
each key with the reason; nothing is left out in silence. Keys and passwords are not
copied: the file names files that you write.

  litellm            config.yaml of LiteLLM's proxy; os.environ/NAME is read here
  sgl-router, smg    its command line: after --, or in a FILE as in a shell
  kubeai             Model objects
  llm-d              InferencePools, with an EndpointPickerConfig and InferenceModels beside them`,
		Example: `  penstock config from litellm config.yaml > penstock.yaml
  penstock config from smg -- --worker-urls http://10.0.0.1:8000 http://10.0.0.2:8000 --policy cache_aware
  kubectl get models -o yaml | penstock config from kubeai - > penstock.yaml
  penstock config check penstock.yaml`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 || !slices.Contains(migrate.Kinds(), args[0]) {
				return usagef("example: penstock config from litellm config.yaml", "say what to convert from: %s", strings.Join(migrate.Kinds(), ", "))
			}
			return nil
		},
	}
	out := outputFlag(c, "yaml", "json")
	c.RunE = func(_ *cobra.Command, args []string) error {
		in, err := e.foreign(args[0], args[1:])
		if err != nil {
			return err
		}
		res, err := migrate.Convert(args[0], in)
		var nothing *migrate.NothingError
		if errors.As(err, &nothing) {
			printNotes(e.Stderr, nothing.Notes)
		}
		if err != nil {
			return usagef("", "%w", err)
		}
		if *out == "json" {
			r := ConfigFrom{Schema: "penstock/config-from/v1", From: args[0], Source: in.Name, Pools: res.Pools, Config: string(res.Config), Notes: res.Notes}
			if r.Notes == nil {
				r.Notes = []migrate.Note{}
			}
			return printJSON(e.Stdout, r)
		}
		if _, err := e.Stdout.Write(res.Config); err != nil {
			return err
		}
		printNotes(e.Stderr, res.Notes)
		return nil
	}
	return c
}

// foreign reads what is to be converted: a file, standard input, or words.
func (e *Env) foreign(kind string, args []string) (migrate.Input, error) {
	in := migrate.Input{Getenv: e.Getenv}
	words := migrate.CommandLine(kind) && (len(args) > 1 || len(args) == 1 && strings.HasPrefix(args[0], "--"))
	switch {
	case words:
		in.Name, in.Data = "the command line", []byte(shellLine(args))
		return in, nil
	case len(args) != 1:
		return in, usagef("example: penstock config from "+kind+" FILE", "name one file, or - for standard input")
	}
	var err error
	if in.Name = args[0]; args[0] == "-" {
		in.Name = "standard input"
		in.Data, err = io.ReadAll(e.Stdin) // whole, as a file: what is cut off would be left out in silence
	} else {
		in.Data, err = os.ReadFile(args[0])
	}
	if err != nil {
		return in, usagef("", "%w", err)
	}
	return in, nil
}

// shellLine quotes words so that they are read back as they were.
func shellLine(args []string) string {
	var b strings.Builder
	for _, a := range args {
		b.WriteString("'" + strings.ReplaceAll(a, "'", `'\''`) + "' ")
	}
	return b.String()
}

func printNotes(w io.Writer, notes []migrate.Note) {
	if len(notes) == 0 {
		fmt.Fprintln(w, "everything came over")
		return
	}
	t := newTable("KEY", "LINE", "", "WHY")
	for _, n := range notes {
		line := ""
		if n.Line > 0 {
			line = fmt.Sprint(n.Line)
		}
		t.add(n.Key, line, n.Kind, n.Why)
	}
	t.write(w)
}
