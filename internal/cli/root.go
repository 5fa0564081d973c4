// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// Main runs the command line in e and returns the exit code.
func Main(e *Env) int {
	root := newRoot(e)
	root.SetArgs(e.Args)
	if err := root.ExecuteContext(e.Context); err != nil {
		return report(e.Stderr, err)
	}
	return ExitOK
}

// Groups of commands in the order in which help shows them.
const (
	groupRun  = "run"
	groupSee  = "see"
	groupAsk  = "ask"
	groupPlan = "plan"
	groupAct  = "act"
)

func newRoot(e *Env) *cobra.Command {
	root := &cobra.Command{
		Use:   "penstock",
		Short: "Put each LLM request on the replica that will answer it soonest",
		Long: `Penstock puts each LLM request on the replica that will answer it soonest, and
keeps just enough replicas running: an AI gateway, an inference router and an
autoscaler for fleets of vLLM, SGLang, TensorRT-LLM, llama.cpp and TGI.`,
		Example: `  penstock demo                                   see the difference on simulated replicas
  penstock serve --replica http://127.0.0.1:8000 --replica http://127.0.0.1:8001
  penstock explain --last                         why the last request went where it went`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("run `penstock --help` for the list of commands", "unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(e.Stdin)
	root.SetOut(e.Stdout)
	root.SetErr(e.Stderr)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("run `"+c.CommandPath()+" --help`", "%v", err)
	})
	for _, g := range []struct{ id, title string }{
		{groupRun, "Run"}, {groupSee, "See"}, {groupAsk, "Ask"}, {groupPlan, "Plan"}, {groupAct, "Act"},
	} {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title + ":"})
	}
	root.SetHelpCommandGroupID(groupAct)
	root.SetCompletionCommandGroupID(groupAct)
	root.AddCommand(
		demoCmd(e),
		serveCmd(e),
		eppCmd(e),
		loadCmd(e),
		replicaCmd(e),
		simCmd(e),
		whatifCmd(e),
		calibrateCmd(e),
		replayCmd(e),
		checkCmd(e),
		envoyCmd(e),
		statusCmd(e),
		topCmd(e),
		explainCmd(e),
		configCmd(e),
		keyCmd(e),
		drainCmd(e),
		rolloutCmd(e),
		scaleCmd(e),
		drillCmd(e),
		lintCmd(e),
		diagnoseCmd(e),
		versionCmd(e),
	)
	return root
}

// grouped sets the help group of a command and returns it.
func grouped(group string, c *cobra.Command) *cobra.Command {
	c.GroupID = group
	return c
}

// outputFlag adds -o/--output with the values that the command knows, the first
// of which is the default, and returns where the choice lands.
func outputFlag(c *cobra.Command, values ...string) *string {
	v := new(string)
	c.Flags().StringVarP(v, "output", "o", values[0], "output format: "+strings.Join(values, ", "))
	check := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		for _, ok := range values {
			if *v == ok {
				if check != nil {
					return check(c, args)
				}
				return nil
			}
		}
		return usagef("", "--output %q is unknown; use one of: %s", *v, strings.Join(values, ", "))
	}
	return v
}

// noArgs refuses positional arguments with a message that names them.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("run `"+c.CommandPath()+" --help`", "%s takes no arguments, got %q", c.CommandPath(), args[0])
	}
	return nil
}
