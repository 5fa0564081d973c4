// SPDX-License-Identifier: Apache-2.0

// Package cli is the command line: it parses arguments, wires the packages
// together (the composition root) and prints what they return.
//
// Rules for output: results go to standard output, everything else to standard
// error. Messages on standard error start with "penstock:", have no capital
// initial and no period at the end; every error carries a hint where one helps.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

// Env is all that a command may touch of the world around the process, so that a
// test can run the whole command line in-process.
type Env struct {
	Args   []string // without the program name
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	Now    func() time.Time
	// Terminal reports whether standard output is a terminal, and its width in
	// columns (80 where unknown).
	Terminal func() (isTerminal bool, width int)
	// Context ends when the user asks the command to stop.
	Context context.Context
}

// OS is the Env of the running process. SIGINT and SIGTERM end its context.
func OS() *Env {
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	return &Env{
		Args: os.Args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Getenv: os.Getenv, Now: time.Now, Context: ctx,
		Terminal: func() (bool, int) {
			fd := int(os.Stdout.Fd())
			if !term.IsTerminal(fd) {
				return false, 80
			}
			w, _, err := term.GetSize(fd)
			if err != nil || w <= 0 {
				w = 80
			}
			return true, w
		},
	}
}

// Exit codes of every command.
const (
	ExitOK          = 0
	ExitFailed      = 1 // it was tried and did not work
	ExitUsage       = 2 // wrong arguments or configuration
	ExitFindings    = 3 // it worked and found something: findings, a failed check, a goal not met
	ExitUnreachable = 4 // the server that was asked does not answer
)

// Fault is an error with an exit code and, where one helps, a hint: what to do
// about it, best a command.
type Fault struct {
	Code int
	Err  error
	Hint string
}

func (f *Fault) Error() string {
	if f.Err == nil {
		return ""
	}
	return f.Err.Error()
}

// Unwrap returns the error inside.
func (f *Fault) Unwrap() error { return f.Err }

// usagef is a Fault for wrong arguments.
func usagef(hint, format string, args ...any) error {
	return &Fault{Code: ExitUsage, Err: fmt.Errorf(format, args...), Hint: hint}
}

// failf is a Fault for work that was tried and failed.
func failf(hint, format string, args ...any) error {
	return &Fault{Code: ExitFailed, Err: fmt.Errorf(format, args...), Hint: hint}
}

// errSilent ends a command with a code and no message: the result said it all.
func errSilent(code int) error { return &Fault{Code: code} }

func report(w io.Writer, err error) int {
	var f *Fault
	if !errors.As(err, &f) {
		fmt.Fprintf(w, "penstock: error: %v\n", err)
		return ExitFailed
	}
	if f.Err != nil {
		fmt.Fprintf(w, "penstock: error: %v\n", f.Err)
		if f.Hint != "" {
			fmt.Fprintf(w, "penstock: hint: %s\n", f.Hint)
		}
	}
	return f.Code
}
