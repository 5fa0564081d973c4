// SPDX-License-Identifier: Apache-2.0

package scalesim

import "fmt"

// Static is a fleet of n replicas that never changes.
func Static(n int) Policy { return static(n) }

type static int

func (s static) Name() string          { return fmt.Sprintf("static %d", int(s)) }
func (s static) Initial(*Scenario) int { return int(s) }
func (s static) Period() float64       { return 60 }
func (s static) Want(*Obs) int         { return int(s) }
