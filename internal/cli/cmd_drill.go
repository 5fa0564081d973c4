// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func drillCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "drill",
		Short: "Break a part of a test pool and say what clients saw",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(drillEPPCmd(e))
	return c
}

// drillFlags are the flags of `penstock drill epp`.
type drillFlags struct {
	local, envoy, envoyAdmin string
	pid                      int
	restart                  string
	failOpen, yes            bool
	idle, watch, limit       time.Duration
	model, cluster           string
}

func drillEPPCmd(e *Env) *cobra.Command {
	f := &drillFlags{}
	c := &cobra.Command{
		Use:   "epp (--local ENVOY | --envoy URL --envoy-admin URL --picker-pid PID --yes)",
		Short: "Prove fail-open and fail-close of an endpoint picker behind Envoy",
		Long: `Stop, freeze and kill the endpoint picker of a test pool under load, and say for
each what clients saw: until Envoy noticed, from then on, and when the picker is
back. It also looks whether a client can name its own destination meanwhile, and
whether the alerts of deploy/alerts/penstock-epp.rules.yaml fire on Envoy's own
counters: a picker that is dead counts nothing.

With --local it starts everything itself on this machine: simulated replicas, a
picker, and two Envoys from ` + "`penstock envoy bootstrap`" + `, one that fails open and
one that fails closed. With --envoy it drills a pool that runs: the process of
--picker-pid is really ended. Whoever supervises it has to start it again, or
--restart-command does.

Exit code 3 says that a promise does not hold.`,
		Example: `  penstock drill epp --local $(command -v envoy)
  penstock drill epp --envoy http://127.0.0.1:8081 --envoy-admin http://127.0.0.1:9901 --fail-open \
    --picker-pid $(pgrep -x penstock) --restart-command 'systemctl start penstock-epp' --model llama-3.1-8b --yes`,
		Args: noArgs,
	}
	fl := c.Flags()
	fl.StringVar(&f.local, "local", "", "path of an `Envoy` binary: start own replicas, picker and Envoys")
	fl.StringVar(&f.envoy, "envoy", "", "`URL` where clients of the test pool connect")
	fl.StringVar(&f.envoyAdmin, "envoy-admin", "", "`URL` of that Envoy's admin interface")
	fl.IntVar(&f.pid, "picker-pid", 0, "process `id` of the picker on this machine")
	fl.StringVar(&f.restart, "restart-command", "", "`command` that starts the picker again (default: its supervisor does)")
	fl.BoolVar(&f.failOpen, "fail-open", false, "what is promised: failure_mode_allow is true in that Envoy")
	fl.BoolVar(&f.yes, "yes", false, "really end the process of --picker-pid")
	fl.StringVar(&f.model, "model", "", "`model` to ask for, with --envoy")
	fl.StringVar(&f.cluster, "picker-cluster", "picker", "`name` of the picker's cluster in that Envoy")
	fl.DurationVar(&f.idle, "idle-timeout", 0, "stream_idle_timeout of that Envoy (--local: 4s); 0: it has none")
	fl.DurationVar(&f.watch, "watch", 2*time.Second, "how long to look at requests once Envoy has noticed")
	fl.DurationVar(&f.limit, "limit", 30*time.Second, "how long to wait until Envoy notices, and until the picker is back")
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		rules, err := envoyAlerts()
		if err != nil {
			return err
		}
		d := &drill{model: f.model, cluster: f.cluster, limit: f.limit, watch: f.watch, log: e.Stderr, rules: rules,
			client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
		if f.local != "" {
			stop, err := d.startLocal(c.Context(), f)
			defer stop()
			if err != nil {
				return err
			}
		} else {
			d.attach(f)
		}
		rep, err := d.run(c.Context())
		if err != nil {
			return err
		}
		return f.print(e.Stdout, *out, rep)
	}
	return c
}

func (f *drillFlags) print(w io.Writer, out string, rep *DrillReport) error {
	if out == "json" {
		if err := printJSON(w, rep); err != nil {
			return err
		}
	} else {
		printDrill(w, rep)
	}
	if rep.Failed > 0 {
		return errSilent(ExitFindings)
	}
	return nil
}

func (f *drillFlags) check() error {
	if f.local != "" {
		if f.envoy != "" || f.envoyAdmin != "" || f.pid != 0 {
			return usagef("", "--local and --envoy exclude each other")
		}
		return nil
	}
	switch {
	case f.envoy == "" || f.envoyAdmin == "" || f.pid == 0:
		return usagef("`penstock drill epp --local /path/to/envoy` needs nothing else", "name a test pool: --envoy, --envoy-admin and --picker-pid")
	case f.pid < 2:
		return usagef("", "--picker-pid %d is no process of a picker", f.pid)
	case f.model == "":
		return usagef("", "--model is missing: the drill sends requests")
	case !f.yes:
		return usagef("add --yes where the pool is a test pool", "this ends process %d, and requests through %s will fail", f.pid, f.envoy)
	}
	return nil
}

// attach drills a pool that runs.
func (d *drill) attach(f *drillFlags) {
	d.envoys = []*drillEnvoy{{name: mode(f.failOpen), url: trimURL(f.envoy), admin: trimURL(f.envoyAdmin), failOpen: f.failOpen, idle: f.idle}}
	d.picker = &foreignPicker{pid: f.pid, restart: f.restart}
}

func trimURL(u string) string {
	if !strings.Contains(u, "://") {
		u = "http://" + u
	}
	return strings.TrimRight(u, "/")
}
