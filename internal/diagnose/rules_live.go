// SPDX-License-Identifier: Apache-2.0

package diagnose

var startRules = [...]Rule{}
var historyRules = [...]Rule{}
var trafficRules = [...]Rule{}
