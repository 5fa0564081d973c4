// SPDX-License-Identifier: Apache-2.0

// Package prefix knows which replica holds which beginning of a prompt: it turns
// prompt text into chained block hashes and keeps, for every replica, the set of
// blocks that the replica's prefix cache is believed to hold.
//
// A Hasher cuts text into blocks of equal length and chains their hashes, so that
// one hash stands for everything up to and including its block. An Index keeps
// sets of replicas per block, bounded for each replica by what fits into its KV
// cache and as a whole by a number of bytes. It is fed by what the router sent
// (approximate mode), by the engines' KV events (event mode), and it is corrected
// by the cached tokens that engines report. It keeps hashes only, never text.
//
// Nothing here is safe for concurrent use: one dispatch owns one Index, one
// request owns one Hasher.
package prefix
