// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"time"

	"github.com/spf13/cobra"
)

func eppCmd(e *Env) *cobra.Command {
	f := &serveFlags{}
	c := grouped(groupRun, &cobra.Command{
		Use:   "epp (--replica URL... | --config FILE)",
		Short: "Run only the endpoint picker behind an Envoy gateway",
		Long: `Run the endpoint picker of the Gateway API Inference Extension: Envoy asks it by
ext-proc where each request goes. It decides with the same router as serve, keeps
the same records, and opens no gateway of its own.

Its gRPC health is SERVING once a replica can be picked. SIGTERM drains: health
says NOT_SERVING at once, requests are still picked for --drain-delay so that the
proxy can look elsewhere, and running streams finish, up to --drain-timeout; a
second signal ends at once.

Without a certificate (tls in the configuration) it speaks plaintext; the proxy's
cluster must agree. The certificate is read again when its file changes.`,
		Example: `  penstock epp --replica http://10.0.0.1:8000 --replica http://10.0.0.2:8000
  penstock epp --config penstock.yaml --epp 0.0.0.0:9002
  penstock check epp 127.0.0.1:9002 --model llama-3.1-8b`,
		Args: noArgs,
	})
	fl := c.Flags()
	fl.StringVar(&f.epp, "epp", "127.0.0.1:9002", "address of the endpoint picker")
	f.register(fl)
	fl.Lookup("drain-delay").DefValue = "2s" // longer than a proxy's health check interval
	f.drainDelay = 2 * time.Second
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := f.load(e, c)
		if err != nil {
			return err
		}
		if cfg.Listen.EPP == "" {
			cfg.Listen.EPP = f.epp
		}
		cfg.Listen.HTTP = "" // whatever the file says: that is what serve is for
		log, err := newLog(e.Stderr, f.logFormat, f.logLevel)
		if err != nil {
			return err
		}
		return serve(c.Context(), f, cfg, log)
	}
	return c
}
