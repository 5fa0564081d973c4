// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"time"
)

var loggingObject = &object{name: "logging", fields: []field{
	mappings("sinks", "Where recorded prompts go.", sinkObject, func(l *Logging) *[]LogSink { return &l.Sinks }),
	mappings("rules", "What is recorded of whose requests; the first that matches counts. Without rules nothing is.", logRuleObject,
		func(l *Logging) *[]LogRule { return &l.Rules }, live()),
	texts("redact", "Regular expressions of what redacted text must not show, beside the built-in ones.", func(l *Logging) *[]string { return &l.Redact }, checked(checkRegexp)),
	text("hashKeyFile", "File with the key of the hashes; empty: drawn at each start.", func(l *Logging) *string { return &l.HashKeyFile }),
	bytesOf("maxText", "Most text of a prompt, and of an answer, in one entry.", func(l *Logging) *Bytes { return &l.MaxText }, def("64KiB"), within(256, 64<<20)),
}}

var sinkObject = &object{name: "a sink", id: "name", fields: []field{
	text("name", "Name of the sink, unique.", func(s *LogSink) *string { return &s.Name }, required(), checked(checkName), example("audit")),
	text("dir", "Directory of JSON lines, readable by its owner only.", func(s *LogSink) *string { return &s.Dir }),
	length("maxAge", "No entry is kept for longer.", func(s *LogSink) *time.Duration { return &s.MaxAge }, def("72h"), within(60, 3660*86400)),
	bytesOf("maxBytes", "Most bytes in the directory; the oldest entries go first.", func(s *LogSink) *Bytes { return &s.MaxBytes }, def("1GiB"), within(1<<20, 1<<50)),
	ref(kindBool, "otlp", "Send entries as log records to telemetry.otlp.", func(s *LogSink) *bool { return &s.OTLP }),
}}

var logRuleObject = &object{name: "a logging rule", fields: []field{
	texts("tenants", "Tenants; empty: all. Names may end in *, as in the three lists below.", func(r *LogRule) *[]string { return &r.Tenants }, live()),
	texts("keys", "Public ids of keys; empty: all.", func(r *LogRule) *[]string { return &r.Keys }, live()),
	texts("models", "Models by the names that clients use; empty: all.", func(r *LogRule) *[]string { return &r.Models }, live()),
	texts("surfaces", "APIs such as chat or messages; empty: all.", func(r *LogRule) *[]string { return &r.Surfaces }, live()),
	text("level", "What is recorded, at most what the tenant's logging, the key's and the client allow.", func(r *LogRule) *string { return &r.Level },
		def("metadata"), oneOf("none", "metadata", "hash", "redacted", "full"), live()),
	ref(kindRatio, "sample", "Share of the requests.", func(r *LogRule) *Ratio { return &r.Sample }, def("100%"), live()),
	texts("sinks", "Names of sinks.", func(r *LogRule) *[]string { return &r.Sinks }, live()),
}}

func checkRegexp(s string) error {
	_, err := regexp.Compile(s)
	return err
}

func (d *decoder) validateLogging(c *Config) {
	names := map[string]string{}
	for i := range c.Logging.Sinks {
		s := &c.Logging.Sinks[i]
		path := fmt.Sprintf("logging.sinks[%d]", i)
		d.unique(names, s.Name, path+".name", "sink")
		switch {
		case (s.Dir != "") == s.OTLP:
			d.failPath(path, "a sink needs either dir or otlp: true")
		case s.OTLP && c.Telemetry.OTLP == "":
			d.failPath(path+".otlp", "otlp needs telemetry.otlp")
		}
	}
	for i := range c.Logging.Rules {
		r := &c.Logging.Rules[i]
		path := fmt.Sprintf("logging.rules[%d]", i)
		if r.Level != "none" && len(r.Sinks) == 0 {
			d.failPath(path, "a rule needs sinks")
		}
		for k, name := range r.Sinks {
			if _, ok := names[name]; !ok {
				d.failPath(fmt.Sprintf("%s.sinks[%d]", path, k), "there is no sink %q", name)
			}
		}
	}
}
