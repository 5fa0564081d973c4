// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/console"
)

// defaultServer is where a running Penstock has its admin listener.
const defaultServer = "http://127.0.0.1:9900"

// serverFlag adds --server to a command that asks a running Penstock.
func serverFlag(c *cobra.Command) *string {
	return c.Flags().String("server", "", "admin URL of a running Penstock (default $PENSTOCK_SERVER or "+defaultServer+")")
}

// atServer is what a command needs besides to ask the Penstock at this admin URL; ""
// where it asks there anyway.
func atServer(admin string) string {
	if admin == defaultServer {
		return ""
	}
	return " --server " + admin
}

// client asks the admin API of a running Penstock.
type client struct {
	base string
	key  string // of an operator; "": none
	http *http.Client
}

// client returns a client for the server that the flag, the environment or the
// default names.
func (e *Env) client(flag string) (*client, error) {
	base := cmp.Or(flag, e.Getenv("PENSTOCK_SERVER"), defaultServer)
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("write --server http://127.0.0.1:9900", "%q is not the URL of a server", base)
	}
	return &client{key: e.Getenv("PENSTOCK_KEY"), base: strings.TrimRight(base, "/"), http: &http.Client{Timeout: 30 * time.Second}}, nil
}

// get reads path into out.
func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

// post sends body to path and reads the answer into out.
func (c *client) post(ctx context.Context, path string, body []byte, out any) error {
	return c.do(ctx, http.MethodPost, path, body, out)
}

func (c *client) do(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return c.unreachable(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return c.unreachable(err)
	}
	if res.StatusCode >= 300 {
		return c.refused(res.StatusCode, b)
	}
	if err := json.Unmarshal(b, out); err != nil {
		return c.stranger()
	}
	return nil
}

func (c *client) unreachable(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return &Fault{Code: ExitUnreachable, Err: fmt.Errorf("no answer from %s: %w", c.base, err),
		Hint: "start one with `penstock serve --replica URL` or `penstock demo`, or name it with --server or PENSTOCK_SERVER"}
}

// stranger says that something answers there that is not our admin API.
func (c *client) stranger() error {
	return &Fault{Code: ExitUnreachable, Err: fmt.Errorf("%s answers, but not as the admin listener of Penstock", c.base),
		Hint: "clients talk to the gateway (8080), these commands to the admin listener (9900)"}
}

func (c *client) refused(status int, body []byte) error {
	var e console.APIError
	if json.Unmarshal(body, &e) != nil || e.Error.Code == "" {
		return c.stranger()
	}
	hints := map[string]string{
		"unknown_request":   "`penstock explain --last` shows the newest; with a journal directory: `penstock explain ID --journal DIR`",
		"unknown_replica":   "`penstock status` lists them",
		"ambiguous_replica": "add --pool NAME",
		"unknown_rollout":   "`penstock rollout status` lists them",
		"key_missing":       "put a key with a role into PENSTOCK_KEY; `penstock key create --role operate` makes one",
		"role_missing":      "`penstock key create --role operate` makes a key that may",
		"bad_filter":        "write for example 'model=llama ttft>1s kind!=ok'",
	}
	return &Fault{Code: ExitFailed, Err: errors.New(e.Error.Message), Hint: hints[e.Error.Code]}
}
