// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/eppcheck"
)

func checkCmd(e *Env) *cobra.Command {
	c := grouped(groupAsk, &cobra.Command{
		Use:   "check",
		Short: "Check a component from the outside",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(checkEPPCmd(e))
	return c
}

func checkEPPCmd(e *Env) *cobra.Command {
	o := eppcheck.Options{}
	c := &cobra.Command{
		Use:   "epp ADDR",
		Short: "Play the proxy against any endpoint picker and say what holds",
		Long: `Play the proxy against any server of the endpoint picker protocol (ext-proc) and
say, check by check, what holds: order of answers, bodies byte for byte, subset
hints, errors, trailers, health, clients that leave. It tries TLS first, then
plaintext, and needs nothing but the address and, where the picker looks at it, the
name of a model; it sends no request to an engine.`,
		Example: `  penstock check epp 127.0.0.1:9002 --model llama-3.1-8b
  penstock check epp 127.0.0.1:9002 --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000 -o json`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("example: penstock check epp 127.0.0.1:9002", "give one address, host:port, of an endpoint picker")
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&o.Model, "model", "", "a `model` that the pool serves")
	f.StringArrayVar(&o.Endpoints, "endpoint", nil, "`ip:port` of a member of the pool; repeat. Default: learned from picks")
	f.DurationVar(&o.Timeout, "timeout", 3*time.Second, "limit for one exchange")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, args []string) error {
		o.Address = args[0]
		if *out == "table" {
			o.Progress = func(r eppcheck.Result) {
				fmt.Fprintf(e.Stdout, "%s %-26s %s\n", mark(r.Result), r.Name, r.Detail)
			}
		}
		rep, err := eppcheck.Run(c.Context(), o)
		var model *eppcheck.ModelError
		if errors.As(err, &model) {
			return usagef("name a model that the pool serves with --model", "%v", err)
		}
		if err != nil {
			return &Fault{Code: ExitUnreachable, Err: err, Hint: "is the picker running, and is this its gRPC port?"}
		}
		if *out == "json" {
			if err := printJSON(e.Stdout, rep); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(e.Stdout, "%d passed, %d failed, %d skipped against %d endpoints\n", rep.Passed, rep.Failed, rep.Skipped, len(rep.Endpoints))
		}
		if rep.Failed > 0 {
			return errSilent(ExitFindings)
		}
		return nil
	}
	return c
}

// mark is a check's verdict that reads without colour.
func mark(v eppcheck.Verdict) string {
	switch v {
	case eppcheck.Pass:
		return "ok  "
	case eppcheck.Skip:
		return "skip"
	}
	return "FAIL"
}
