// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// envoy ai-gateway #2436: no way of printing what holds keys shows a secret.
func TestAdvisoryPrintedKeys(t *testing.T) {
	f := &File{Schema: Schema}
	_, text, err := f.Create(Key{Tenant: "acme"}, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret := text[strings.LastIndexByte(text, '_')+1:]
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if got := fmt.Sprintf(format, f) + fmt.Sprintf(format, f.Keys) + fmt.Sprintf(format, f.Keys[0].Secrets); strings.Contains(got, secret) {
			t.Errorf("%s prints the secret", format)
		}
	}
}
