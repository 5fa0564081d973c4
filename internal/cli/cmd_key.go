// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock-project/penstock/internal/fleet"
	"github.com/penstock-project/penstock/internal/identity"
)

// SchemaKey is the version of what the key commands print.
const SchemaKey = "penstock/key/v1"

func keyCmd(e *Env) *cobra.Command {
	var file string
	c := grouped(groupAct, &cobra.Command{
		Use:   "key",
		Short: "Create, list, rotate and revoke API keys",
		Long: `Create, list, rotate and revoke the API keys of a file.

The file holds the SHA-256 of each secret, never the secret: a key is shown once,
when it is made. A running gateway whose auth.keysFile is this file takes a change
over within seconds.`,
		Example: `  penstock key create --file keys.json --tenant acme --model llama-3.1-8b
  penstock key list --file keys.json
  penstock key rotate --file keys.json k7m2x9q4ab --overlap 24h
  penstock key revoke --file keys.json k7m2x9q4ab`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	})
	c.PersistentFlags().StringVarP(&file, "file", "f", "keys.json", "file of keys, that of auth.keysFile")
	c.AddCommand(keyCreateCmd(e, &file), keyListCmd(e, &file), keyRotateCmd(e, &file), keyRevokeCmd(e, &file))
	return c
}

// keyResult is what creating and rotating a key print.
type keyResult struct {
	Schema string     `json:"schema"`
	Key    string     `json:"key,omitempty"` // the only time that it is shown
	ID     string     `json:"id"`
	Tenant string     `json:"tenant"`
	State  string     `json:"state"`
	Class  uint8      `json:"class"`
	Note   string     `json:"note,omitempty"`
	Models []string   `json:"models,omitempty"`
	Role   string     `json:"role,omitempty"`
	Until  *time.Time `json:"until,omitempty"` // end of its latest secret; absent: none
}

func keyResultOf(k *identity.Key, text string, now time.Time) keyResult {
	r := keyResult{Schema: SchemaKey, Key: text, ID: k.ID, Tenant: k.Tenant, State: k.State(now), Class: k.Class,
		Note: k.Note, Models: k.Models, Role: k.Role}
	if n := len(k.Secrets); n > 0 {
		r.Until = k.Secrets[n-1].Expires
	}
	return r
}

func keyCreateCmd(e *Env, file *string) *cobra.Command {
	var k identity.Key
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "create --tenant NAME",
		Short: "Create a key and show it, once",
		Long: `Create a key and print it on standard output. It cannot be shown again.

Without --model a key may use every model of the catalogue, without --surface every
API. Names may end in *.`,
		Example: `  penstock key create --file keys.json --tenant acme --model 'llama-*' --surface chat
  KEY=$(penstock key create --file keys.json --tenant acme --ttl 720h)`,
		Args: noArgs,
	}
	fl := c.Flags()
	fl.StringVar(&k.Tenant, "tenant", "", "tenant that the key belongs to")
	fl.StringVar(&k.Note, "note", "", "what the key is for")
	fl.Uint8Var(&k.Class, "class", 0, "priority class, 0 is the most urgent")
	fl.StringArrayVar(&k.Models, "model", nil, "model that it may use; repeatable")
	fl.StringArrayVar(&k.Adapters, "adapter", nil, "adapter that it may use; repeatable")
	fl.StringArrayVar(&k.Surfaces, "surface", nil, "API that it may use, such as chat or embeddings; repeatable")
	fl.BoolVar(&k.Debug, "debug", false, "answers tell which replica gave them")
	fl.StringVar(&k.Role, "role", "", "role in the admin API: read, operate or admin")
	fl.StringVar(&k.Logging, "logging", "", "policy on prompts of this key, at most what the tenant's allows")
	fl.DurationVar(&ttl, "ttl", 0, "how long the key lives; 0: until it is revoked")
	out := outputFlag(c, "text", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if k.Tenant == "" {
			return usagef("penstock key create --tenant acme", "a key belongs to a tenant; name it with --tenant")
		}
		for _, s := range k.Surfaces {
			if _, ok := fleet.ParseSurface(s); !ok && !strings.HasSuffix(s, "*") {
				return usagef("use chat, completions, embeddings, responses, messages, rerank, score or tokenize", "there is no API %q", s)
			}
		}
		return e.changeKeys(*file, true, func(f *identity.File) error {
			made, text, err := f.Create(k, ttl, e.Now())
			if err != nil {
				return usagef("", "%v", err)
			}
			return e.showKey(*out, &made, text, f, *file)
		})
	}
	return c
}

// showKey saves the file and then shows a new key: a key that could not be saved is
// never shown.
func (e *Env) showKey(format string, k *identity.Key, text string, f *identity.File, file string) error {
	if err := f.Save(file); err != nil {
		return failf("", "%v", err)
	}
	if format == "json" {
		return printJSON(e.Stdout, keyResultOf(k, text, e.Now()))
	}
	fmt.Fprintf(e.Stderr, "penstock: key %s of tenant %s; it is not shown again\n", k.ID, k.Tenant)
	fmt.Fprintln(e.Stdout, text)
	return nil
}

func keyListCmd(e *Env, file *string) *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "List the keys without their secrets", Args: noArgs,
		Example: `  penstock key list --file keys.json`}
	out := outputFlag(c, "table", "json")
	c.RunE = func(c *cobra.Command, _ []string) error {
		f, err := identity.ReadFile(*file)
		if err != nil {
			return failf("name the file with --file", "%v", err)
		}
		var list []keyResult
		for _, k := range f.Sorted() {
			list = append(list, keyResultOf(&k, "", e.Now()))
		}
		if *out == "json" {
			return printJSON(e.Stdout, struct {
				Schema string      `json:"schema"`
				Keys   []keyResult `json:"keys"`
			}{"penstock/keys/v1", list})
		}
		fmt.Fprintf(e.Stdout, "%-12s %-16s %-9s %5s  %-20s %-24s %s\n", "ID", "TENANT", "STATE", "CLASS", "UNTIL", "MODELS", "NOTE")
		for _, k := range list {
			until := "-"
			if k.Until != nil {
				until = k.Until.Format(time.RFC3339)
			}
			models := strings.Join(k.Models, ",")
			if models == "" {
				models = "all"
			}
			fmt.Fprintf(e.Stdout, "%-12s %-16s %-9s %5d  %-20s %-24s %s\n", k.ID, k.Tenant, k.State, k.Class, until, models, k.Note)
		}
		return nil
	}
	return c
}

func keyRotateCmd(e *Env, file *string) *cobra.Command {
	var overlap time.Duration
	c := &cobra.Command{
		Use: "rotate ID", Short: "Give a key a new secret; the old one lives on for an overlap", Args: oneKey,
		Example: `  penstock key rotate --file keys.json k7m2x9q4ab --overlap 24h`,
	}
	c.Flags().DurationVar(&overlap, "overlap", 24*time.Hour, "how long the old secret still opens")
	out := outputFlag(c, "text", "json")
	c.RunE = func(c *cobra.Command, args []string) error {
		if overlap < 0 {
			return usagef("", "--overlap must not be negative")
		}
		return e.changeKeys(*file, false, func(f *identity.File) error {
			k, text, err := f.Rotate(args[0], overlap, e.Now())
			if err != nil {
				return failf("`penstock key list` shows the keys", "%v", err)
			}
			return e.showKey(*out, &k, text, f, *file)
		})
	}
	return c
}

func keyRevokeCmd(e *Env, file *string) *cobra.Command {
	c := &cobra.Command{Use: "revoke ID", Short: "Close a key for good", Args: oneKey,
		Example: `  penstock key revoke --file keys.json k7m2x9q4ab`}
	out := outputFlag(c, "text", "json")
	c.RunE = func(c *cobra.Command, args []string) error {
		return e.changeKeys(*file, false, func(f *identity.File) error {
			if err := f.Revoke(args[0]); err != nil {
				return failf("`penstock key list` shows the keys", "%v", err)
			}
			if err := f.Save(*file); err != nil {
				return failf("", "%v", err)
			}
			if *out == "json" {
				return printJSON(e.Stdout, keyResultOf(f.Find(args[0]), "", e.Now()))
			}
			fmt.Fprintf(e.Stdout, "key %s is revoked\n", args[0])
			return nil
		})
	}
	return c
}

// oneKey wants the public id of a key as the only argument.
func oneKey(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("`penstock key list` shows the ids", "name one key by its id")
	}
	return nil
}

// changeKeys changes a file of keys while nobody else does.
func (e *Env) changeKeys(path string, create bool, change func(*identity.File) error) error {
	lock := path + ".lock"
	for tries := 0; ; tries++ {
		l, err := os.OpenFile(lock, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			l.Close()
			break
		}
		if !errors.Is(err, fs.ErrExist) || tries == 50 {
			return failf("when nothing else changes the keys, remove "+lock, "the keys cannot be locked: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	defer os.Remove(lock)
	open := identity.ReadFile
	if create {
		open = identity.OpenFile
	}
	f, err := open(path)
	if err != nil {
		return failf("name the file with --file", "%v", err)
	}
	return change(f)
}
