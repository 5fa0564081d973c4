// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strings"
)

func bytesOf[P any](key, doc string, at func(*P) *Bytes, o ...option) field {
	return ref(kindBytes, key, doc, at, o...)
}

var limitsObject = &object{name: "limits", fields: []field{
	bytesOf("bodyBytes", "Longest body of a request.", func(l *Limits) *Bytes { return &l.BodyBytes }, def("32MiB"), within(1<<10, 1<<31)),
	bytesOf("bodiesBytes", "Memory of all bodies that are here at a time.", func(l *Limits) *Bytes { return &l.BodiesBytes }, def("1GiB"), within(1<<20, 1<<40)),
	bytesOf("headBytes", "Longest head of a request.", func(l *Limits) *Bytes { return &l.HeadBytes }, def("64KiB"), within(4<<10, 1<<20)),
	integer("depth", "Levels of arrays and objects in a body.", func(l *Limits) *int { return &l.Depth }, def("256"), within(8, 1024)),
	integer("maxTokens", "Most tokens that a client may ask for in one answer, under any name of the cap.", func(l *Limits) *int { return &l.MaxTokens },
		def("1048576"), within(1, 1<<30)),
	integer("answers", "Most answers to one prompt: n and best_of.", func(l *Limits) *int { return &l.Answers }, def("128"), within(1, 1<<16)),
	integer("prompts", "Most prompts in one batch of completions.", func(l *Limits) *int { return &l.Prompts }, def("2048"), within(1, 1<<20)),
	integer("logprobs", "Most alternatives for each token.", func(l *Limits) *int { return &l.Logprobs }, def("128"), within(1, 1<<20)),
	integer("tools", "Most tools of one request.", func(l *Limits) *int { return &l.Tools }, def("512"), within(1, 1<<16)),
	bytesOf("schemaBytes", "Most bytes of tool definitions, and of each schema or grammar.", func(l *Limits) *Bytes { return &l.SchemaBytes }, def("1MiB"), within(1<<10, 1<<30)),
	integer("schemaDepth", "Levels of arrays and objects in them.", func(l *Limits) *int { return &l.SchemaDepth }, def("64"), within(4, 1024)),
	integer("media", "Most images, sounds and files of one request.", func(l *Limits) *int { return &l.Media }, def("100"), within(1, 1024)),
	bytesOf("mediaBytes", "Most bytes of each, as it stands in the body.", func(l *Limits) *Bytes { return &l.MediaBytes }, def("20MiB"), within(1<<10, 1<<31)),
	texts("mediaURLs", "Addresses of media that engines may fetch: public, data (none), any, or hosts such as cdn.example.com and *.example.com.",
		func(l *Limits) *[]string { return &l.MediaURLs }, checked(checkMediaHost), example("public")),
	integer("parts", "Most parts of a multipart form.", func(l *Limits) *int { return &l.Parts }, def("64"), within(2, 1<<12)),
	integer("connections", "Most connections of clients; 0: no limit.", func(l *Limits) *int { return &l.Connections }, def("20000"), within(0, 1e7)),
	integer("connectionsPerAddress", "Most connections of one client address; 0: no limit.", func(l *Limits) *int { return &l.ConnectionsPerAddress }, within(0, 1e7)),
	integer("connectionsPerKey", "Most connections that speak for one key; 0: no limit.", func(l *Limits) *int { return &l.ConnectionsPerKey }, def("4096"), within(0, 1e7)),
	integer("streamsPerKey", "Most requests of one key at a time; 0: no limit.", func(l *Limits) *int { return &l.StreamsPerKey }, def("4096"), within(0, 1e7)),
}}

// checkMediaHost accepts a word of the policy on media, or a host.
func checkMediaHost(s string) error {
	switch s {
	case "public", "data", "any":
		return nil
	}
	host := strings.TrimPrefix(s, "*.")
	if host == "" || !strings.Contains(host, ".") || strings.ContainsAny(host, "*:/@ \\%") {
		return errors.New("must be public, data, any, or a host such as cdn.example.com or *.example.com")
	}
	return nil
}
