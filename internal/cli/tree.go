// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// Tree returns the whole command line of a process without environment variables and
// without a terminal, for programs that write it down: manual pages and completions.
// It is the same on every machine.
func Tree() *cobra.Command {
	root := newRoot(&Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard,
		Getenv: func(string) string { return "" }, Now: time.Now, Context: context.Background(),
		Terminal: func() (bool, int) { return false, 80 },
	})
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	return root
}
