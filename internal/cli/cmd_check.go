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
	f := &checkFlags{}
	c := grouped(groupAsk, &cobra.Command{
		Use:   "check --config FILE",
		Short: "Check that what Penstock relies on is there",
		Long: `Check that what a configuration relies on is there: replicas that answer, metrics
that are fresh, in a cluster the rights of the account, the metrics API, and that
nobody else scales the same object. Each line that fails says what to do.

With --production the checklist of a production system instead: readiness that
means loaded weights, no scaling by CPU, prefix cache, direct scrapes, adapters,
failure mode with a drill of the last 90 days, a logging policy, keys.

It changes nothing. It exits with 3 when a check fails.`,
		Example: `  penstock check --config penstock.yaml
  penstock check --config penstock.yaml --production --drill drill.json
  penstock check stack --namespace models
  penstock check epp 127.0.0.1:9002`,
		Args: noArgs,
	})
	fl := c.Flags()
	fl.StringVarP(&f.config, "config", "c", "", "configuration file")
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: $KUBECONFIG, ~/.kube/config or the service account)")
	fl.BoolVar(&f.production, "production", false, "the checklist of a production system")
	fl.StringVar(&f.drill, "drill", "", "with --production: `file` with the report of penstock drill epp -o json")
	fl.DurationVar(&f.wait, "wait", 5*time.Second, "longest wait for the replicas of a pool to answer")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if f.config == "" {
			return usagef("penstock check --config penstock.yaml; or one of its subcommands epp and stack", "name the configuration to check")
		}
		return runCheck(c, e, f, *out)
	}
	c.AddCommand(checkEPPCmd(e), checkStackCmd(e))
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
