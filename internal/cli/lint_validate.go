// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-project/penstock/internal/kube"
)

// Ways to hold a fix against an API server.
const (
	validateAuto   = "auto"   // where one is reachable
	validateOff    = "off"    // never
	validateServer = "server" // an API server that is not reachable is an error
)

// validateLimit bounds the whole of it.
const validateLimit = 8 * time.Second

// tryFunc plays the objects of a YAML stream against an API server.
type tryFunc func(ctx context.Context, text []byte) ([]kube.Trial, error)

// validate asks an API server, by a dry run on its side, whether it would take the
// fixed files. before and after are their texts. What was refused before the fix is
// said and is no fault of the fix.
func (l *linter) validate(ctx context.Context, before []string) error {
	if l.validation == validateOff {
		return nil
	}
	changed := false
	for i := range l.inputs {
		changed = changed || string(l.inputs[i].Data) != before[i]
	}
	if !changed {
		return nil
	}
	c, err := kube.Connect(l.kubeconfig, nil)
	if err != nil {
		return l.notValidated(err)
	}
	ctx, cancel := context.WithTimeout(ctx, validateLimit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.judge(ctx, c.Try, before) }()
	select {
	case err = <-done:
	case <-ctx.Done(): // discovery knows no context
		err = errAway{fmt.Errorf("no answer within %s", validateLimit)}
	}
	if away, ok := err.(errAway); ok {
		return l.notValidated(away.error)
	}
	return err
}

// errAway says that the API server is not there.
type errAway struct{ error }

func (l *linter) notValidated(err error) error {
	if l.validation == validateServer {
		return failf("name a kubeconfig with --kubeconfig, or take --validate auto", "the fix cannot be validated: %v", err)
	}
	fmt.Fprintf(l.env.Stderr, "penstock: not validated by an API server: %s\n", firstLine(err.Error()))
	return nil
}

// judge tries the changed files.
func (l *linter) judge(ctx context.Context, try tryFunc, before []string) error {
	var accepted, refused []string
	for i := range l.inputs {
		in := &l.inputs[i]
		if string(in.Data) == before[i] {
			continue
		}
		trials, err := try(ctx, in.Data)
		if err != nil {
			return errAway{err}
		}
		var was map[string]string
		for _, t := range trials {
			switch {
			case t.Unknown != "":
				fmt.Fprintf(l.env.Stderr, "penstock: %s is not validated: %s\n", t.Object, t.Unknown)
			case t.Refused == "":
				accepted = append(accepted, t.Object)
			default:
				if was == nil {
					if was, err = refusals(ctx, try, before[i]); err != nil {
						return errAway{err}
					}
				}
				if was[t.Object] == t.Refused {
					fmt.Fprintf(l.env.Stderr, "penstock: the API server refuses %s with and without the fix: %s\n", t.Object, t.Refused)
					continue
				}
				refused = append(refused, in.Name+": "+t.Object+": "+t.Refused)
			}
		}
	}
	if len(refused) > 0 {
		return failf("nothing was written; --validate off prints the patch all the same", "the API server would refuse the fix: %s", strings.Join(refused, "; "))
	}
	if len(accepted) > 0 {
		fmt.Fprintf(l.env.Stderr, "penstock: the API server would take it (dry run): %s\n", strings.Join(accepted, ", "))
	}
	return nil
}

// refusals returns why objects of a text are refused.
func refusals(ctx context.Context, try tryFunc, text string) (map[string]string, error) {
	trials, err := try(ctx, []byte(text))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, t := range trials {
		if t.Refused != "" {
			out[t.Object] = t.Refused
		}
	}
	return out, nil
}
