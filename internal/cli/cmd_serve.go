// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/route"
)

// serveFlags are the flags of `penstock serve`.
type serveFlags struct {
	config, listen, admin, epp  string
	prometheus                  string
	replicas, models            []string
	selector, namespace         string
	inferencePool, kubeconfig   string
	port                        int
	policy, profile, journalDir string
	stateDir                    string
	apiKeyFile                  string
	logFormat, logLevel         string
	interval                    time.Duration
	drainDelay, drainTimeout    time.Duration
	watch                       time.Duration
}

func serveCmd(e *Env) *cobra.Command {
	f := &serveFlags{}
	c := grouped(groupRun, &cobra.Command{
		Use:   "serve (--replica URL... | --config FILE)",
		Short: "Run the gateway, the router and what the configuration turns on",
		Long: `Run the gateway and the router in front of model servers.

With --replica no file is needed. With --config everything that can change while it
runs stands in the file: it is read again on SIGHUP and when it changes; a file
with errors changes nothing.

Without auth.keysFile or auth.jwt the gateway is anonymous and binds loopback only:
what clients send as credentials goes on to the replicas untouched. With them it
lets in whom they name and keeps the credentials to itself. SIGTERM drains: /readyz says no,
running streams finish, up to --drain-timeout; a second signal ends at once.`,
		Example: `  penstock serve --replica http://127.0.0.1:8000 --replica http://127.0.0.1:8001
  penstock serve --config penstock.yaml --log-format json
  curl http://127.0.0.1:8080/v1/models`,
		Args: noArgs,
	})
	fl := c.Flags()
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8080", "address of the gateway")
	fl.StringVar(&f.epp, "epp", "", "address of the endpoint picker behind Envoy; empty: off")
	f.register(fl)
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := f.load(e, c)
		if err != nil {
			return err
		}
		log, err := newLog(e.Stderr, f.logFormat, f.logLevel)
		if err != nil {
			return err
		}
		return serve(c.Context(), f, cfg, log)
	}
	return c
}

// register adds the flags that serve and epp have in common.
func (f *serveFlags) register(fl *pflag.FlagSet) {
	fl.StringVarP(&f.config, "config", "c", "", "configuration file")
	fl.StringArrayVar(&f.replicas, "replica", nil, "base URL of a replica, without /v1; repeatable")
	fl.StringVar(&f.selector, "selector", "", "`labels` of Kubernetes pods that are the replicas, key=value[,key=value]")
	fl.StringVar(&f.namespace, "namespace", "", "namespace of --selector (default: that of the kubeconfig or of the pod)")
	fl.IntVar(&f.port, "port", 8000, "port of the model server, with --selector")
	fl.StringVar(&f.inferencePool, "inference-pool", "", "InferencePool that names the replicas, `namespace/name`")
	fl.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig `file` (default: $KUBECONFIG, ~/.kube/config or the service account)")
	fl.StringArrayVar(&f.models, "model", nil, "model that the replicas serve; repeatable (default: whatever they list)")
	fl.StringVar(&f.admin, "admin", "127.0.0.1:9900", "address of the admin API; empty turns it off")
	fl.StringVar(&f.prometheus, "prometheus", "", "address of metrics and health for Prometheus and probes, any `host:port`; empty: on the admin API only")
	fl.StringVar(&f.policy, "policy", route.PolicyPenstock, "routing policy: "+strings.Join(route.Names(), ", "))
	fl.StringVar(&f.profile, "profile", "auto", "engine profile of the replicas: auto, a built-in name or a file")
	fl.StringVar(&f.apiKeyFile, "api-key-file", "", "file with the key that the replicas ask for")
	fl.StringVar(&f.journalDir, "journal-dir", "", "keep the records of decisions in this directory, too")
	fl.StringVar(&f.stateDir, "state-dir", "", "keep in this directory what a restart should find again: the prefix index, pauses and pins of the scaler")
	fl.StringVar(&f.logFormat, "log-format", "text", "log format: text or json")
	fl.StringVar(&f.logLevel, "log-level", "info", "log level: debug, info, warn or error")
	fl.DurationVar(&f.interval, "scrape-interval", time.Second, "time between two looks at the metrics of a replica")
	fl.DurationVar(&f.drainDelay, "drain-delay", 0, "on SIGTERM keep taking requests for so long while readiness says no")
	fl.DurationVar(&f.drainTimeout, "drain-timeout", 30*time.Second, "on SIGTERM wait at most so long for running streams")
	fl.DurationVar(&f.watch, "config-interval", 2*time.Second, "time between two looks at the configuration file; 0: SIGHUP only")
}

// load makes the configuration of the file and the flags; flags win.
func (f *serveFlags) load(e *Env, c *cobra.Command) (*config.Config, error) {
	cfg := config.Default()
	if f.config != "" {
		var err error
		if cfg, err = loadConfig(e.Stderr, f.config); err != nil {
			return nil, err
		}
	}
	set := func(name string, to *string, v string) {
		if c.Flags().Lookup(name) != nil && (f.config == "" || c.Flags().Changed(name)) {
			*to = v
		}
	}
	set("listen", &cfg.Listen.HTTP, f.listen)
	set("epp", &cfg.Listen.EPP, f.epp)
	set("admin", &cfg.Listen.Admin, f.admin)
	set("prometheus", &cfg.Listen.Prometheus, f.prometheus)
	set("journal-dir", &cfg.Journal.Dir, f.journalDir)
	set("state-dir", &cfg.StateDir, f.stateDir)
	if len(f.replicas) > 0 || f.selector != "" || f.inferencePool != "" {
		if len(cfg.Pools) > 0 {
			return nil, usagef("put the replicas into the file", "--replica, --selector or --inference-pool and pools in %s exclude each other", f.config)
		}
		p, err := f.pool()
		if err != nil {
			return nil, err
		}
		cfg.Pools = []config.Pool{p}
	} else if len(f.models) > 0 {
		return nil, usagef("", "--model goes with --replica, --selector or --inference-pool; with a file the models stand in it")
	}
	for i := range cfg.Pools {
		if c.Flags().Changed("policy") {
			cfg.Pools[i].Route.Policy = f.policy
		}
	}
	// What the flags made must hold against the same rules as a file.
	if err := recheck(e.Stderr, cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// pool is the pool that --replica and its companions describe.
func (f *serveFlags) pool() (config.Pool, error) {
	p := config.DefaultPool("default")
	for _, r := range f.replicas {
		if !strings.Contains(r, "://") {
			r = "http://" + r
		}
		if err := config.CheckReplicaURL(r); err != nil {
			return p, usagef("write --replica http://127.0.0.1:8000", "--replica %v", err)
		}
		p.Replicas.Static = append(p.Replicas.Static, strings.TrimRight(r, "/"))
	}
	if f.selector != "" {
		p.Replicas.Selector = config.Selector{Namespace: f.namespace, Labels: strings.Split(f.selector, ","), Port: f.port}
	}
	p.Replicas.InferencePool = f.inferencePool
	for _, m := range f.models {
		p.Models = append(p.Models, config.Model{Name: m})
	}
	p.Route.Policy, p.Engine.Profile, p.Engine.APIKeyFile = f.policy, f.profile, f.apiKeyFile
	return p, nil
}

// recheck holds a configuration that flags changed against the rules of a file.
func recheck(w io.Writer, cfg *config.Config) error {
	var b strings.Builder
	if err := cfg.WriteYAML(&b); err != nil {
		return err
	}
	_, err := config.Parse("flags", []byte(b.String()), configOptions())
	if errs, ok := err.(config.Errors); ok {
		for _, e := range errs {
			fmt.Fprintf(w, "penstock: %s: %s\n", e.Path, e.Msg)
		}
		return usagef("run `penstock serve --help`", "the flags do not fit together")
	}
	return err
}

// newLog makes the log. It carries no prompts and no keys: nobody hands it any.
func newLog(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("", "--log-level %q is unknown; use debug, info, warn or error", level)
	}
	o := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, o)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return nil, usagef("", "--log-format %q is unknown; use text or json", format)
}

// serve runs the server until ctx ends.
func serve(ctx context.Context, f *serveFlags, cfg *config.Config, log *slog.Logger) error {
	s, err := buildServer(serverOptions{
		Config: cfg, Log: log, Interval: f.interval, Kubeconfig: f.kubeconfig, DrainDelay: f.drainDelay, DrainTimeout: f.drainTimeout,
	})
	if err != nil {
		return err
	}
	for _, line := range configWarnings(cfg) {
		log.Warn("configuration", "note", line)
	}
	if cfg.Listen.HTTP != "" && !guarded(cfg) {
		log.Warn("the gateway is anonymous: it answers everybody on this machine", "listen", cfg.Listen.HTTP)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The first signal drains; from then on the next one ends the process.
	context.AfterFunc(ctx, func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	if f.config != "" {
		go s.followConfig(ctx, f)
	}
	go followHandover(ctx, log, s.holdsProcesses, cancel)
	go func() {
		s.untilReady(ctx)
		tellReady()
	}()
	if err := s.Run(ctx); err != nil {
		return failf("", "%v", err)
	}
	return nil
}

// settleWait is how long a process that takes over may look for its replicas before it
// says that it serves: where none is ready, the one before it had none either.
const settleWait = 10 * time.Second

// untilReady waits until a request can be served, for settleWait at most.
func (s *server) untilReady(ctx context.Context) {
	for end := time.Now().Add(settleWait); s.Ready() != nil && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// holdsProcesses says why this process cannot hand over, "" where it can.
func (s *server) holdsProcesses() string {
	for _, p := range s.Config().Pools {
		if len(p.Replicas.Process.Command) > 0 {
			return "pool " + p.Name + " is of processes that end with this one; restart it instead"
		}
	}
	return ""
}

// followConfig reloads on SIGHUP and when the file changes.
func (s *server) followConfig(ctx context.Context, f *serveFlags) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	changed := make(chan struct{}, 1)
	if f.watch > 0 {
		go config.Watch(ctx, f.config, f.watch, func() { changed <- struct{}{} })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		case <-changed:
		}
		s.ReloadFile(f.config)
		s.reloadKeys()
	}
}
