// SPDX-License-Identifier: Apache-2.0

// Package migrate turns what another router is configured by into a penstock.yaml: a
// file that passes the check of package config, and a list of all that did not come
// over as it was.
//
// Nothing is dropped in silence. A reader marks each key of the source that it used;
// whatever is unmarked at the end is on the list. Values of the source never stand in a
// note, so that no secret does.
package migrate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-project/penstock/internal/config"
)

// What became of a key of the source.
const (
	Left    = "left"    // it has no counterpart, or none that can be derived
	Changed = "changed" // it came over, and behaves differently
	Todo    = "todo"    // it comes over once the user has done something, such as written a file
)

// Note is a key of the source that did not come over as it was.
type Note struct {
	Key  string `json:"key"`            // its path: router_settings.num_retries, --retry-max-retries
	Line int    `json:"line,omitempty"` // in the source, from 1; 0 where there are no lines
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// Result is a configuration and what is to be known of it.
type Result struct {
	Config []byte // YAML with comments, valid as config.Parse judges it
	Notes  []Note // by line, then key
	Pools  int
}

// Input is what to convert.
type Input struct {
	Name   string              // of the source, for messages and the comment at the top
	Data   []byte              // a file; or the words of a command line, one a line, quoted as in a shell
	Getenv func(string) string // for sources that refer to the environment; nil: nothing is set there
}

// converters by the name of what is converted from.
var converters = map[string]func(*job) error{
	"litellm":    (*job).litellm,
	"sgl-router": (*job).smg,
	"smg":        (*job).smg,
	"kubeai":     (*job).kubeAI,
	"llm-d":      (*job).llmd,
}

// Kinds returns what can be converted from, sorted.
func Kinds() []string {
	var out []string
	for k := range converters {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// CommandLine reports whether a kind is configured by a command line and not by a file.
func CommandLine(kind string) bool { return kind == "sgl-router" || kind == "smg" }

// maxInput bounds what is read, in bytes.
const maxInput = 4 << 20

// Convert reads the configuration of another router. The error says what is wrong with
// the source, or that nothing in it could come over.
func Convert(kind string, in Input) (*Result, error) {
	convert, ok := converters[kind]
	if !ok {
		return nil, fmt.Errorf("cannot convert from %q; known are %s", kind, strings.Join(Kinds(), ", "))
	}
	if len(in.Data) > maxInput {
		return nil, fmt.Errorf("%s is larger than %d MiB", in.Name, maxInput>>20)
	}
	j := &job{in: in, kind: kind, out: newDraft()}
	if err := convert(j); err != nil {
		return nil, err
	}
	slices.SortStableFunc(j.notes, func(a, b Note) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Key, b.Key)
	})
	j.notes = slices.Compact(j.notes)
	if len(j.out.pools) == 0 {
		return nil, &NothingError{Name: in.Name, Notes: j.notes}
	}
	text, err := j.out.yaml(j)
	if err != nil {
		return nil, err
	}
	var errs config.Errors
	if _, err := config.Parse(in.Name, text, config.Options{}); errors.As(err, &errs) {
		return nil, fmt.Errorf("%s: what came out is not valid, which is a defect of this program: %w", in.Name, errs)
	} else if err != nil {
		return nil, err
	}
	return &Result{Config: text, Notes: j.notes, Pools: len(j.out.pools)}, nil
}

// NothingError says that no pool came out of a source, and why not.
type NothingError struct {
	Name  string
	Notes []Note
}

func (e *NothingError) Error() string {
	return e.Name + " names no replicas that Penstock could serve"
}

// job is one conversion.
type job struct {
	in    Input
	kind  string
	out   *draft
	notes []Note
	where string // before the keys of notes: the object that they are of
}

func (j *job) note(kind, key string, line int, why string) {
	j.notes = append(j.notes, Note{Key: plain(j.where + key), Line: line, Kind: kind, Why: why})
}

// plain makes a text of the source fit for one line of a comment.
func plain(s string) string {
	out := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == '\uFFFD' {
			return '.'
		}
		return r
	}, s)
	if len(out) > 200 {
		out = strings.ToValidUTF8(out[:200], "") + "..."
	}
	return out
}
