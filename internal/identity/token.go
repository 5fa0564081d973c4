// SPDX-License-Identifier: Apache-2.0

package identity

import "errors"

// ErrToken says that a token does not hold: not ours, expired, for somebody else or
// not signed by its issuer.
var ErrToken = errors.New("the token is not valid")
