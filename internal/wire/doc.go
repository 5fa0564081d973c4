// SPDX-License-Identifier: Apache-2.0

// Package wire reads and shapes the bytes of the OpenAI and Anthropic families of
// APIs: it scans request bodies and answers without re-marshalling them.
//
// # Requests
//
// ScanRequest validates a body as JSON in one pass, finds the few members that a
// router reads (model, stream, limits, the text of the prompt) and leaves every
// byte where it is. Unknown members, the order of keys, the format of numbers and
// escapes are the business of the client and the engine. What is read must have
// one meaning: a second "model", or a "Model" beside it, is refused, since two
// parsers on the way could disagree on which one counts.
//
// Scan.Feed then writes the prompt into a prefix.Hasher in the order in which an
// engine renders it. The text is fed as it stands in the body, escapes and all:
// one client writes one text the same way each time, and undoing escapes costs
// more than it would gain.
//
// # Answers
//
// AnswerScanner follows an answer, event stream or JSON, over any splitting into
// reads with a fixed small state: it finds usage, the first token, the end, and
// errors that arrive after the status line said 200. It can replace the value of
// "model" on the way for requests that came by an alias.
//
// # Errors
//
// Error is what we refuse with; Body and Write shape it for the API family that
// was called.
package wire
