// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
	"github.com/penstock-project/penstock/internal/flow"
)

func scaleCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "scale",
		Short: "Show, pause, pin and resume the scaling of pools",
		Long: `Show what the scaler of a running Penstock wants, and stop it from acting for a
while. A pause leaves the replicas as they are while recommendations go on; a pin
holds a pool at a number. Both last until resume: with stateDir over a restart of
Penstock, without until it ends.`,
		Example: `  penstock scale status
  penstock scale pin chat 4
  penstock scale resume chat
  penstock explain scale chat`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.AddCommand(scaleStatusCmd(e), scaleActCmd(e, "pause", "Leave the replicas as they are"), scalePinCmd(e),
		scaleActCmd(e, "resume", "End a pause or a pin"), scaleReplayCmd(e))
	return c
}

func scaleStatusCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "status [POOL]",
		Short: "One line a pool: what is there, what is wanted, and why",
		Example: `  penstock scale status
  penstock scale status chat -o json`,
		Args: atMost(1),
	}
	out := outputFlag(c, "table", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		var list console.ScaleList
		if len(args) > 0 {
			var one flow.ScaleRecord
			if err := cl.get(c.Context(), "/api/v1/scale/"+url.PathEscape(args[0]), &one); err != nil {
				return err
			}
			if *out == "json" {
				return printJSON(e.Stdout, &one)
			}
			list.Recommendations = []*flow.ScaleRecord{&one}
		} else if err := cl.get(c.Context(), "/api/v1/scale", &list); err != nil {
			return err
		}
		if *out == "json" {
			return printJSON(e.Stdout, &list)
		}
		printScaleStatus(e.Stdout, list.Recommendations)
		return nil
	}
	return c
}

func printScaleStatus(w io.Writer, list []*flow.ScaleRecord) {
	t := newTable("POOL", "MODE", "HAND", ">CURRENT", ">READY", ">PENDING", ">DESIRED", "BINDING", "WHY")
	for _, r := range list {
		t.add(r.Pool, scaleModeText(r), orDash(r.Hand), strconv.Itoa(r.Current), strconv.Itoa(r.Ready), strconv.Itoa(len(r.Pending)), countText(r.Desired),
			r.Binding, r.Sentence)
	}
	t.write(w)
}

// scaleModeText says whether the loop acts at present.
func scaleModeText(r *flow.ScaleRecord) string {
	switch {
	case r.Paused:
		return "paused"
	case r.Pinned != nil:
		return "pinned"
	}
	return r.Mode
}

func scaleActCmd(e *Env, what, short string) *cobra.Command {
	c := &cobra.Command{
		Use:     what + " [POOL]",
		Short:   short,
		Example: "  penstock scale " + what + " chat",
		Args:    atMost(1),
	}
	out := outputFlag(c, "text", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return e.scaleAct(c, *server, what, first(args), nil, *out == "json")
	}
	return c
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

func scalePinCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:     "pin [POOL] REPLICAS",
		Short:   "Hold a pool at a number of replicas",
		Example: "  penstock scale pin chat 4",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("penstock scale pin chat 4", "name a number of replicas, and the pool where there are several")
			}
			return nil
		},
	}
	out := outputFlag(c, "text", "json")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := strconv.Atoi(args[len(args)-1])
		if err != nil || n < 0 {
			return usagef("penstock scale pin chat 4", "%q is not a number of replicas", args[len(args)-1])
		}
		return e.scaleAct(c, *server, "pin", first(args[:len(args)-1]), &n, *out == "json")
	}
	return c
}

// scaleAct asks a running Penstock; without a name the only pool is meant.
func (e *Env) scaleAct(c *cobra.Command, server, what, pool string, n *int, json bool) error {
	cl, err := e.client(server)
	if err != nil {
		return err
	}
	if pool, err = theScaledPool(c, cl, pool); err != nil {
		return err
	}
	body := []byte("{}")
	if n != nil {
		body = fmt.Appendf(nil, `{"replicas": %d}`, *n)
	}
	var r flow.ScaleRecord
	if err := cl.post(c.Context(), "/api/v1/scale/"+url.PathEscape(pool)+"/"+what, body, &r); err != nil {
		return err
	}
	if json {
		return printJSON(e.Stdout, &r)
	}
	switch what {
	case "pause":
		fmt.Fprintf(e.Stdout, "scaling of %s is paused at %d replicas, %s\n", pool, r.Current, lasts(&r))
	case "pin":
		fmt.Fprintf(e.Stdout, "%s is pinned to %d replicas, %s\n", pool, *n, lasts(&r))
	default:
		fmt.Fprintf(e.Stdout, "scaling of %s goes on: %s\n", pool, r.Sentence)
	}
	return nil
}

// theScaledPool is the pool that was named, or the only one there is.
func theScaledPool(c *cobra.Command, cl *client, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	var list console.ScaleList
	if err := cl.get(c.Context(), "/api/v1/scale", &list); err != nil {
		return "", err
	}
	if len(list.Recommendations) != 1 {
		return "", usagef("`penstock scale status` lists the pools", "name a pool: there are %d", len(list.Recommendations))
	}
	return list.Recommendations[0].Pool, nil
}

func scaleReplayCmd(e *Env) *cobra.Command {
	c := &cobra.Command{
		Use:   "replay FILE|DIR",
		Short: "Evaluate a journal of the scaler again and compare",
		Long: `Play the evaluations of a journal (scale.jsonl in the journal's directory) again:
the same inputs through the scaler of this version. Exit code 3 where a
recommendation comes out otherwise.

With other targets (--attainment, --min, --max, --idle-after, --step-up, --step-down)
say what they would have kept and what it would have lacked. The work that was offered
is as recorded; replicas that were not there are taken to be ready after the start-up
time that was known.`,
		Example: `  penstock scale replay /var/lib/penstock/journal
  penstock scale replay /var/lib/penstock/journal --attainment 95% --min 2`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("penstock scale replay /var/lib/penstock/journal", "name one file or directory")
			}
			return nil
		},
	}
	out := outputFlag(c, "table", "json")
	ask := targetFlags(c)
	c.RunE = func(_ *cobra.Command, args []string) error {
		targets, err := ask()
		if err != nil {
			return err
		}
		in, err := openScaleJournal(args[0])
		if err != nil {
			return err
		}
		if targets != nil {
			return e.askScaleJournal(args[0], in, targets, *out == "json")
		}
		res, err := flow.ReplayScale(in)
		if err != nil {
			return failf("", "%s: %v", args[0], err)
		}
		different := 0
		for _, r := range res {
			different += r.Different
		}
		if *out == "json" {
			if err := printJSON(e.Stdout, map[string]any{"schema": "penstock/scale-replay/v1", "pools": res}); err != nil {
				return err
			}
		} else {
			t := newTable("POOL", ">EVALUATIONS", ">DIFFERENT", ">SKIPPED", "FIRST DIFFERENCE")
			for _, r := range res {
				d := ""
				if f := r.First; f != nil {
					d = fmt.Sprintf("%d -> %d: %s", f.Then, f.Now, f.NowS)
				}
				t.add(r.Pool, strconv.Itoa(r.Ticks), strconv.Itoa(r.Different), strconv.Itoa(r.Skipped), d)
			}
			t.write(e.Stdout)
		}
		if different > 0 {
			return errSilent(ExitFindings)
		}
		return nil
	}
	return c
}

// openScaleJournal opens a file, or both files of a directory in their order.
func openScaleJournal(name string) (io.Reader, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, usagef("", "%v", err)
	}
	files := []string{name}
	if st.IsDir() {
		files = []string{filepath.Join(name, scaleJournal+".1"), filepath.Join(name, scaleJournal)}
	}
	var all []io.Reader
	for _, f := range files {
		r, err := os.Open(f)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, failf("", "%v", err)
		}
		all = append(all, r) // open until the command ends
	}
	if len(all) == 0 {
		return nil, usagef("it is written where the configuration has journal.dir", "%s holds no %s", name, scaleJournal)
	}
	return io.MultiReader(all...), nil
}
