// SPDX-License-Identifier: Apache-2.0

// Package relay carries one request to one replica and copies the answer back,
// byte for byte.
//
// The side to the replicas is a small HTTP/1.1 client of its own: a pool of
// connections for each replica, a head parser with limits, and the three framings
// of a body. A request body is complete in memory before a connection is touched,
// so it can be sent again, and so no answer can overtake it.
//
// # What is tried again here
//
// A connection that a replica closed while it idled is noticed before it is used.
// The race that remains (the replica closes while the request is on its way) is
// answered by one more try at the same replica over a fresh connection, and only
// if not one byte of an answer came. Everything else is reported as a Failure, and
// the caller decides.
//
// # Clients that leave
//
// The context of a request ends when its client leaves. From Send until the end
// of Answer.Relay the connection to the replica is closed at that moment, which is
// how an engine learns that nobody waits.
//
// # Streams
//
// An answer without a length is sent on as it comes: every read is written and
// flushed at once, never merged, never held. Two kinds of deadlines bound it: the
// replica must not fall silent for too long, and the client must take what was
// read; a stream that flows may last for ever.
//
// Relay copies with the goroutine that calls it. Take copies with an epoll set, where
// the system has one and the client speaks HTTP/1.1 in plain text: one goroutine for
// all streams, woken once for all that is ready. Both do the same, and the tests run
// over both.
package relay
