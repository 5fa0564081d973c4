// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/extproc"
)

func envoyCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "envoy",
		Short: "Write the Envoy configuration that an endpoint picker needs",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(envoyBootstrapCmd(e))
	return c
}

func envoyBootstrapCmd(e *Env) *cobra.Command {
	b := extproc.Bootstrap{}
	c := &cobra.Command{
		Use:   "bootstrap",
		Short: "Print an Envoy configuration in which fail-open and the pick hold as promised",
		Long: `Print a complete Envoy configuration for a pool with Penstock as its endpoint
picker. It holds the parts that people leave out and then miss in an incident:
a gRPC health check of the picker with a panic threshold of 0 (else fail-open
answers 500 to every request with a body), a stream idle timeout (else a picker
that hangs hangs the request), the client's own destination header removed before
the picker sees it, and a load balancer that never leaves the pool.`,
		Example: `  penstock envoy bootstrap --picker 127.0.0.1:9002 \
    --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000 --fail-open > envoy.yaml`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&b.Listen, "listen", "0.0.0.0:8081", "`ip:port` for clients")
	f.StringVar(&b.Admin, "admin", "127.0.0.1:9901", "`ip:port` of Envoy's admin interface; empty: none")
	f.StringArrayVar(&b.Pickers, "picker", []string{"127.0.0.1:9002"}, "`ip:port` of an endpoint picker; repeat for several that share the load")
	f.BoolVar(&b.PickerTLS, "picker-tls", false, "the pickers speak TLS")
	f.StringArrayVar(&b.Endpoints, "endpoint", nil, "`ip:port` of a member of the pool; repeat")
	f.BoolVar(&b.FailOpen, "fail-open", false, "with the picker down, let Envoy pick; else answer 500")
	f.BoolVar(&b.NoResponseBodies, "no-response-bodies", false, "do not show answers to the picker: cheaper, a dying picker cuts no stream, but usage and the end of streams stay unseen")
	f.DurationVar(&b.IdleTimeout, "idle-timeout", 5*time.Minute, "end a stream without any byte for this long")
	f.IntVar(&b.Retries, "retries", 2, "how many further endpoints of the pick to try when one does not answer")
	c.RunE = func(*cobra.Command, []string) error {
		if len(b.Endpoints) == 0 {
			return usagef("name the members of the pool: --endpoint 10.0.0.1:8000 --endpoint ...", "--endpoint is missing")
		}
		y, err := b.YAML()
		if err != nil {
			return &Fault{Code: ExitUsage, Err: err, Hint: "a static Envoy configuration needs addresses, not names"}
		}
		_, err = e.Stdout.Write(y)
		return err
	}
	return c
}
