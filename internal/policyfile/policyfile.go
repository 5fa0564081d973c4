// SPDX-License-Identifier: Apache-2.0

// Package policyfile reads the files of policy tests that users write: strict YAML
// into the plain values of package sim, all errors at once with file and line.
package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/engine"
	"github.com/penstock-project/penstock/internal/sim"
)

// File is a file of policy tests.
type File struct {
	Profile string           `yaml:"profile"` // "": the default profile
	Policy  string           `yaml:"policy"`  // of tests that name none
	Tests   []sim.PolicyTest `yaml:"tests"`

	Name   string         `yaml:"-"`
	Lines  []int          `yaml:"-"` // of each test
	Engine engine.Profile `yaml:"-"` // that Profile names
}

// Parse reads and checks a file. profile finds an engine profile by name. The error
// lists all that is wrong, each with file and line.
func Parse(name string, src []byte, profile func(string) (engine.Profile, error)) (*File, error) {
	f := &File{Name: name}
	var doc yaml.Node
	if err := yaml.Unmarshal(src, &doc); err != nil {
		return nil, fault(name, err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	dec.KnownFields(true)
	if err := dec.Decode(f); err != nil && !errors.Is(err, io.EOF) {
		return nil, fault(name, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: a second document; one file holds one list of tests", name)
	}
	return f, f.check(&doc, profile)
}

func (f *File) check(doc *yaml.Node, profile func(string) (engine.Profile, error)) error {
	var errs []error
	bad := func(path, msg string) {
		errs = append(errs, fmt.Errorf("%s:%d: %s: %s", f.Name, lineOf(doc, path), path, msg))
	}
	if f.Profile == "" {
		f.Profile = engine.DefaultProfile
	}
	var err error
	if f.Engine, err = profile(f.Profile); err != nil {
		bad("profile", err.Error())
		return errors.Join(errs...)
	}
	if len(f.Tests) == 0 {
		bad("tests", "the file holds no test")
	}
	for i := range f.Tests {
		t, path := &f.Tests[i], fmt.Sprintf("tests[%d]", i)
		f.Lines = append(f.Lines, lineOf(doc, path))
		if t.Policy == "" {
			t.Policy = f.Policy
		}
		if t.Name == "" {
			bad(path+".name", "is missing")
		}
		for _, err := range t.Check(&f.Engine) {
			bad(path+"."+err.Path, err.Msg)
		}
	}
	return errors.Join(errs...)
}

var (
	pathStep    = regexp.MustCompile(`([^.\[\]]+)|\[(\d+)\]`)
	yamlAt      = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)$`)
	yamlUnknown = regexp.MustCompile(`^field (\S+) not found in type \w+\.(\w+)$`)
	yamlWrong   = regexp.MustCompile("^cannot unmarshal (!!\\w+) (?:`(.*)` )?into (.+)$")
)

// lineOf returns the line of the node at a path such as "tests[2].replicas[0].phase",
// or of its nearest parent that is there.
func lineOf(doc *yaml.Node, path string) int {
	n, line := doc, 1
	if n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, m := range pathStep.FindAllStringSubmatch(path, -1) {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		var next *yaml.Node
		if m[2] != "" {
			if i, _ := strconv.Atoi(m[2]); n.Kind == yaml.SequenceNode && i < len(n.Content) {
				next = n.Content[i]
				line = next.Line
			}
		} else if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == m[1] {
					next, line = n.Content[i+1], n.Content[i].Line
				}
			}
		}
		if next == nil {
			return line
		}
		n = next
	}
	return line
}

// fault puts file and line before each error of the YAML decoder, and names the
// fields where one is unknown.
func fault(name string, err error) error {
	msgs := []string{err.Error()}
	var te *yaml.TypeError
	if errors.As(err, &te) {
		msgs = te.Errors
	}
	var errs []error
	for _, s := range msgs {
		m := yamlAt.FindStringSubmatch(s)
		at, msg := name, strings.ReplaceAll(s, "\n", " ")
		if m != nil {
			msg = m[2]
			if m[1] != "" {
				at += ":" + m[1]
			}
		}
		if u := yamlUnknown.FindStringSubmatch(msg); u != nil {
			msg = fmt.Sprintf("unknown field %q; known are %s", u[1], strings.Join(fieldsOf(u[2]), ", "))
		} else if u := yamlWrong.FindStringSubmatch(msg); u != nil {
			msg = fmt.Sprintf("%s cannot stand here, want %s", strings.TrimSpace(u[2]+" ("+strings.TrimPrefix(u[1], "!!")+")"), kind(u[3]))
		}
		errs = append(errs, fmt.Errorf("%s: %s", at, msg))
	}
	return errors.Join(errs...)
}

// kind says in words what a Go type wants.
func kind(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case strings.HasPrefix(goType, "map["), strings.Contains(goType, "."):
		return "a mapping"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case goType == "bool":
		return "true or false"
	}
	return "a text"
}

// fieldsOf lists the keys of a type of the file.
func fieldsOf(typeName string) []string {
	for _, v := range []any{
		File{}, sim.PolicyTest{}, sim.PolicyAverages{}, sim.PolicyRequest{}, sim.PolicyReplica{}, sim.PolicyExpect{},
	} {
		t := reflect.TypeOf(v)
		if t.Name() != typeName {
			continue
		}
		var out []string
		for i := range t.NumField() {
			if k := t.Field(i).Tag.Get("yaml"); k != "" {
				out = append(out, k)
			}
		}
		return out
	}
	return nil
}
