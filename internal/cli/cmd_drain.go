// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
)

func drainCmd(e *Env) *cobra.Command {
	var undo, wait bool
	var pool string
	var timeout time.Duration
	c := grouped(groupAct, &cobra.Command{
		Use:   "drain REPLICA",
		Short: "Take a replica out of service without cutting what it does",
		Long: `Take a replica out of service: it gets no new request and finishes what it has.
The replica itself is left alone. The mark lasts until --undo or until Penstock
restarts.`,
		Example: `  penstock drain 127.0.0.1:8001 --wait
  penstock drain 127.0.0.1:8001 --undo`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("`penstock status` lists the replicas", "name one replica")
			}
			return nil
		},
	})
	out := outputFlag(c, "text", "json")
	c.Flags().BoolVar(&undo, "undo", false, "put it back into service")
	c.Flags().BoolVar(&wait, "wait", false, "return when nothing is in flight there any more")
	c.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "limit of --wait")
	c.Flags().StringVar(&pool, "pool", "", "pool of the replica, where several have one of that name")
	server := serverFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cl, err := e.client(*server)
		if err != nil {
			return err
		}
		verb := "drain"
		if undo {
			verb = "undrain"
		}
		path := "/api/v1/replicas/" + url.PathEscape(args[0]) + "/" + verb
		if pool != "" {
			path += "?pool=" + url.QueryEscape(pool)
		}
		var res console.Drained
		if err := cl.post(c.Context(), path, []byte("{}"), &res); err != nil {
			return err
		}
		if wait && !undo {
			if err := e.waitDrained(c.Context(), cl, &res, timeout); err != nil {
				return err
			}
		}
		if *out == "json" {
			return printJSON(e.Stdout, res)
		}
		if undo {
			fmt.Fprintf(e.Stdout, "%s of pool %s is back in service\n", args[0], res.Pool)
			return nil
		}
		fmt.Fprintf(e.Stdout, "%s of pool %s gets no new requests; %d in flight\n", args[0], res.Pool, res.Replica.InFlight)
		return nil
	}
	return c
}

// waitDrained asks again and again until the replica has nothing in flight.
func (e *Env) waitDrained(ctx context.Context, cl *client, res *console.Drained, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		var st console.Status
		if err := cl.get(ctx, "/api/v1/status", &st); err != nil {
			return err
		}
		found := false
		for i := range st.Pools {
			for _, r := range st.Pools[i].Replica {
				if st.Pools[i].Name == res.Pool && r.ID == res.Replica.ID {
					res.Replica, found = r, true
				}
			}
		}
		if !found || res.Replica.InFlight == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return failf("its streams go on; ask `penstock status`", "%s has %d in flight after %s", res.Replica.ID, res.Replica.InFlight, timeout)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
