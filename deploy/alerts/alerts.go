// SPDX-License-Identifier: Apache-2.0

// Package alerts holds the Prometheus alert rules that ship with Penstock.
package alerts

import _ "embed"

// EPP are the rules for an endpoint picker behind Envoy, as a rules file.
//
//go:embed penstock-epp.rules.yaml
var EPP []byte
