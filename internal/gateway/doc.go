// SPDX-License-Identifier: Apache-2.0

// Package gateway is the HTTP front: it takes a client's request, has a pool pick
// a replica, relays the answer and accounts for what became of it.
//
// # The way of one request
//
// ServeHTTP matches the path against an allow-list (routes.go), strips what only
// we may set (ids.go) and asks the Authenticator who is there. The body is read
// whole, within limits of size, pace and total memory (body.go), and scanned once
// (package wire). The Catalogue turns the name of the model into a pool and the
// engine's own name (catalogue.go). Then the pool grants an endpoint, the relay
// sends, and run (attempt.go) decides after each failure whether another endpoint
// may be tried. What comes back is followed on its way by the call itself
// (answer.go), which is what the grant, the metrics and the log learn at the end
// (account.go).
//
// # Retries
//
// A connect that failed goes to the next endpoint, as long as there are some.
// The end of a connection, a reset, a 503, or the 500 of an engine that shuts
// down goes elsewhere once. Nothing is tried again after a byte has reached the
// client, or after one of our own limits ran out. If all fail, the client gets
// what an engine said, unchanged, if one said anything.
package gateway
