// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/route"
)

// defaultConfigFile is read where a command is given no file.
const defaultConfigFile = "penstock.yaml"

// configOptions are the names that a file may use and other packages define.
func configOptions() config.Options {
	o := config.Options{Policies: route.Names()}
	for _, p := range engine.Profiles() {
		o.Profiles = append(o.Profiles, p.Name)
	}
	return o
}

// loadConfig reads a file. What is wrong with its content is printed in full; the
// error says how much that was.
func loadConfig(w io.Writer, path string) (*config.Config, error) {
	c, err := config.Load(path, configOptions())
	var errs config.Errors
	switch {
	case errors.As(err, &errs):
		errs.Render(w)
		return nil, &Fault{Code: ExitUsage, Err: fmt.Errorf("%s has %s", path, plural(len(errs), "error")),
			Hint: "`penstock config schema` is the reference of all keys"}
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Fault{Code: ExitUsage, Err: fmt.Errorf("%s does not exist", path),
			Hint: "`penstock config show` prints the defaults to start from"}
	case err != nil:
		return nil, &Fault{Code: ExitUsage, Err: err}
	}
	return c, nil
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return withCommas(n) + " " + what + "s"
}

func configCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "config",
		Short: "Check, show and compare configurations",
		Long: `Check, show and compare configurations.

Flags of ` + "`serve`" + ` are what needs a restart anyway; everything that can change while
Penstock runs stands in the file, which is read again on SIGHUP and when it
changes. A file with errors changes nothing.`,
		Example: `  penstock config check penstock.yaml
  penstock config show penstock.yaml
  penstock config diff penstock.yaml          what a reload of the running server would change`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(configCheckCmd(e), configShowCmd(e), configSchemaCmd(e), configDiffCmd(e), configFromCmd(e))
	return c
}

// ConfigCheck is what `penstock config check -o json` prints.
type ConfigCheck struct {
	Schema   string          `json:"schema"` // penstock/config-check/v1
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Errors   []*config.Error `json:"errors"`
	Warnings []string        `json:"warnings"`
}

func configCheckCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a file and report everything that is wrong with it",
		Args:  atMost(1),
	}
	out := outputFlag(c, "text", "json")
	c.RunE = func(_ *cobra.Command, args []string) error {
		path := firstOr(args, defaultConfigFile)
		if *out == "json" {
			return checkJSON(e, path)
		}
		cfg, err := loadConfig(e.Stderr, path)
		if err != nil {
			return err
		}
		for _, w := range configWarnings(cfg) {
			fmt.Fprintf(e.Stderr, "penstock: warning: %s\n", w)
		}
		_, err = fmt.Fprintf(e.Stdout, "%s is valid (%s, digest %s)\n", path, plural(len(cfg.Pools), "pool"), cfg.Digest())
		return err
	}
	return c
}

func checkJSON(e *Env, path string) error {
	res := ConfigCheck{Schema: "penstock/config-check/v1", File: path, Errors: []*config.Error{}, Warnings: []string{}}
	cfg, err := config.Load(path, configOptions())
	var errs config.Errors
	switch {
	case errors.As(err, &errs):
		res.Errors = errs
	case err != nil:
		_, err = loadConfig(io.Discard, path)
		return err
	default:
		res.OK = true
		res.Warnings = append(res.Warnings, configWarnings(cfg)...)
	}
	if err := printJSON(e.Stdout, res); err != nil {
		return err
	}
	if !res.OK {
		return errSilent(ExitUsage)
	}
	return nil
}

// configWarnings lists what is valid but not as it may seem.
func configWarnings(c *config.Config) []string {
	out := append(c.Inert(), c.MissingFiles()...)
	for i := range c.Pools {
		if p := &c.Pools[i]; p.Scale.Mode == "act" && len(p.Replicas.Process.Command) == 0 && p.Scale.Target.Name == "" {
			out = append(out, fmt.Sprintf("pools[%d].scale.mode: act, but nothing moves these replicas: they are no processes and there is no scale.target", i))
		}
	}
	if len(c.Pools) == 0 {
		out = append(out, "there are no pools: `penstock serve` needs at least one, or --replica URL")
	}
	return out
}

func configShowCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "show [FILE]",
		Short: "Print the effective configuration with its defaults",
		Long: `Print the effective configuration: every key, with a remark where it is a
default. Without a file: penstock.yaml where it exists, else the defaults. With
--running: what a running server uses.`,
		Args: atMost(1),
	}
	out := outputFlag(c, "yaml", "json")
	running := c.Flags().Bool("running", false, "ask a running server")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := e.shownConfig(c, args, *running, *server)
		if err != nil {
			return err
		}
		if *out == "json" {
			return printJSON(e.Stdout, cfg)
		}
		return cfg.WriteYAML(e.Stdout)
	}
	return c
}

func (e *Env) shownConfig(c *cobra.Command, args []string, running bool, server string) (*config.Config, error) {
	if running {
		if len(args) > 0 {
			return nil, usagef("", "--running and a file exclude each other")
		}
		return e.runningConfig(c, server)
	}
	if len(args) > 0 {
		return loadConfig(e.Stderr, args[0])
	}
	if _, err := os.Stat(defaultConfigFile); err == nil {
		return loadConfig(e.Stderr, defaultConfigFile)
	}
	return config.Default(), nil
}

// runningConfig asks a server for its effective configuration.
func (e *Env) runningConfig(c *cobra.Command, server string) (*config.Config, error) {
	cl, err := e.client(server)
	if err != nil {
		return nil, err
	}
	var raw json.RawMessage
	if err := cl.get(c.Context(), "/api/v1/config", &raw); err != nil {
		return nil, err
	}
	cfg, err := config.Parse(cl.base, raw, config.Options{}) // JSON is YAML
	if err != nil {
		return nil, failf("", "%s runs a configuration that this program does not understand: %v", cl.base, err)
	}
	return cfg, nil
}

func configSchemaCmd(e *Env) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the file",
		Example: `  penstock config schema > penstock.schema.json
  # first line of penstock.yaml: # yaml-language-server: $schema=penstock.schema.json`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := e.Stdout.Write(config.Schema(configOptions()))
			return err
		},
	}
}

// ConfigDiff is what `penstock config diff -o json` prints.
type ConfigDiff struct {
	Schema  string          `json:"schema"` // penstock/config-diff/v1
	Old     string          `json:"old"`
	New     string          `json:"new"`
	Changes []config.Change `json:"changes"`
}

func configDiffCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "diff [OLD] NEW",
		Short: "Say what a change of the file means: live, or after a restart",
		Long: `Compare two files, or one file with what a running server uses. Each change says
whether a reload applies it or a restart is needed.`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("run `penstock config diff --help`", "name a file")
			}
			return atMost(2)(c, args)
		},
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		next, err := loadConfig(e.Stderr, args[len(args)-1])
		if err != nil {
			return err
		}
		var old *config.Config
		if len(args) == 2 {
			old, err = loadConfig(e.Stderr, args[0])
		} else {
			old, err = e.runningConfig(c, *server)
		}
		if err != nil {
			return err
		}
		res := ConfigDiff{Schema: "penstock/config-diff/v1", Old: old.File(), New: next.File(), Changes: config.Diff(old, next)}
		if res.Changes == nil {
			res.Changes = []config.Change{}
		}
		if *out == "json" {
			return printJSON(e.Stdout, res)
		}
		printDiff(e.Stdout, &res)
		return nil
	}
	return c
}

func printDiff(w io.Writer, d *ConfigDiff) {
	if len(d.Changes) == 0 {
		fmt.Fprintln(w, "no difference")
		return
	}
	t := newTable("KEY", "OLD", "NEW", "EFFECT")
	for _, c := range d.Changes {
		effect := "needs a restart"
		if c.Live {
			effect = "live"
		}
		t.add(c.Path, orDash(c.Old), orDash(c.New), effect)
	}
	t.write(w)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func firstOr(args []string, or string) string {
	if len(args) > 0 {
		return args[0]
	}
	return or
}

// atMost refuses more than n positional arguments with a message that names them.
func atMost(n int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > n {
			return usagef("run `"+c.CommandPath()+" --help`", "%s takes at most %s, got also %q", c.CommandPath(), plural(n, "argument"), args[n])
		}
		return nil
	}
}
