// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package observe

import "net"

// stirs does not look: a connection that was closed shows with the next question.
func stirs(net.Conn) bool { return false }
