// SPDX-License-Identifier: Apache-2.0

// Package h1 serves the usual request of an HTTP/1.1 client in plain text, and hands
// every connection that asks for anything else to net/http with the bytes it has read.
//
// net/http starts a goroutine for each request that reads in the background, to notice
// a client that leaves, and stops it again; it reads a head with a dozen allocations
// and writes one through three buffers. For a short request that is a third of what a
// gateway costs. Here one watch on the whole connection notices the client, and the
// memory of a connection serves all of its requests.
//
// What is usual is decided by one strict parser, head.parse: POST, HTTP/1.1, one plain
// Host, one Content-Length, a plain target, nothing that changes the framing or the
// connection. It need not know what is wrong with a head that it does not accept, as
// net/http judges that; a fuzz test holds it to reading what it accepts as net/http
// reads it. A handler cannot tell who serves it, save for what Options names.
package h1
