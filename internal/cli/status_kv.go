// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/penstock-project/penstock/internal/console"
)

// kvNote is what a reader of a replica's row should know of its KV events.
func kvNote(r *console.ReplicaStatus) []string {
	k := r.KVEvents
	switch {
	case k == nil:
		return nil
	case k.Fault != "":
		return []string{"KV events: " + k.Fault}
	case k.Unsure:
		return []string{fmt.Sprintf("KV events were lost (%d gaps, %d made good, %d malformed): its cache is unsure", k.Gaps, k.Healed, k.Malformed)}
	case k.AgeMS == nil:
		return []string{"KV events: none yet"}
	}
	return []string{fmt.Sprintf("KV events: %s tokens cached", withCommas(k.Tokens))}
}
