// SPDX-License-Identifier: Apache-2.0

package gateway

import "net/http"

// dropCredentials removes a credential that was ours.
func dropCredentials(h http.Header) {
	delete(h, "Authorization")
	delete(h, "X-Api-Key")
	delete(h, "Api-Key")
}
