// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is what `penstock version -o json` prints.
type Version struct {
	Schema   string `json:"schema"` // penstock/version/v1
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// buildVersion reads the version from the build information that the Go linker
// leaves in every binary, so that `go install` needs no flags.
func buildVersion() Version {
	v := Version{
		Schema: "penstock/version/v1", Version: "devel",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		v.Version = bi.Main.Version
	}
	for _, s := range bi.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func versionCmd(e *Env) *cobra.Command {
	c := grouped(groupAct, &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  noArgs,
	})
	out := outputFlag(c, "text", "json")
	c.RunE = func(*cobra.Command, []string) error {
		v := buildVersion()
		if *out == "json" {
			return printJSON(e.Stdout, v)
		}
		_, err := fmt.Fprintf(e.Stdout, "penstock %s (%s, %s)\n", v.Version, v.Go, v.Platform)
		return err
	}
	return c
}

// printJSON writes v as indented JSON and a newline.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
