// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"regexp"

	"github.com/penstock-project/penstock/internal/config"
	"github.com/penstock-project/penstock/internal/promptlog"
)

// openPrompts opens the sinks of the prompt log; nil where there are none. otlp is the
// sink that sends to the receiver of telemetry.
func (s *server) openPrompts(otlp promptlog.Sink) (*promptlog.Log, error) {
	l := &s.cfg.Logging
	if len(l.Sinks) == 0 {
		return nil, nil
	}
	o := promptlog.Options{Rules: logRules(l), Sinks: map[string]promptlog.Sink{}, MaxText: int(l.MaxText)}
	for i := range l.Sinks {
		k := &l.Sinks[i]
		if k.OTLP {
			o.Sinks[k.Name] = otlp
			continue
		}
		f, err := promptlog.NewFile(promptlog.FileOptions{Dir: k.Dir, MaxAge: k.MaxAge, MaxBytes: int64(k.MaxBytes), Log: s.log})
		if err != nil {
			return nil, failf("name a directory that can be written in logging.sinks", "prompt log %s: %v", k.Name, err)
		}
		o.Sinks[k.Name] = f
	}
	if l.HashKeyFile != "" {
		key, err := config.ReadSecret(l.HashKeyFile)
		if err != nil {
			return nil, failf("logging.hashKeyFile names a file with a key", "%v", err)
		}
		o.HashKey = []byte(key.Reveal())
	}
	var more []*regexp.Regexp
	for _, e := range l.Redact {
		re, err := regexp.Compile(e)
		if err != nil {
			return nil, usagef("", "logging.redact: %v", err)
		}
		more = append(more, re)
	}
	o.Redact = promptlog.NewRedactor(more)
	return promptlog.New(o), nil
}

func logRules(l *config.Logging) []promptlog.Rule {
	var out []promptlog.Rule
	for i := range l.Rules {
		r := &l.Rules[i]
		out = append(out, promptlog.Rule{
			Tenants: r.Tenants, Keys: r.Keys, Models: r.Models, Surfaces: r.Surfaces,
			Level: promptlog.ParseLevel(r.Level), Sample: float64(r.Sample), Sinks: r.Sinks,
		})
	}
	return out
}
