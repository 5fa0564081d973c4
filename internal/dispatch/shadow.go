// SPDX-License-Identifier: Apache-2.0

package dispatch

import "github.com/penstock-project/penstock/internal/route"

// ShadowStats compares a shadow policy with the one that acts, over arrivals.
type ShadowStats struct {
	Policy string // "" none
	Picks  uint64 // both had a candidate
	Agreed uint64 // of these both chose the same endpoint
	// ExtraMS sums what the shadow's picks were predicted to cost beyond those that
	// were made, by the price of the acting policy's decision: below 0 the shadow would
	// have been cheaper. SquareMS sums the squares, for an interval. Priced counts the
	// picks that have a price.
	ExtraMS, SquareMS float64
	Priced            uint64
}

// SetShadow sets a second policy that decides on each arrival, without effect; nil:
// none. What was counted starts anew.
func (d *Dispatch) SetShadow(p route.Policy) {
	d.shadow = p
	d.shadowed = ShadowStats{}
	if p != nil {
		d.shadowed.Policy = p.Name()
	}
}

// Shadow returns how the shadow policy compares.
func (d *Dispatch) Shadow() ShadowStats { return d.shadowed }

// shade lets the shadow policy decide on what dec was decided on.
func (d *Dispatch) shade(dec *route.Decision) {
	if d.shadow == nil || dec.Chosen < 0 {
		return
	}
	s := &d.shadowDec
	d.shadow.Pick(&d.in, s)
	p := s.Pick()
	if p == nil {
		return
	}
	n := &d.shadowed
	n.Picks++
	dec.Shadow = route.ShadowPick{Policy: s.Policy, Slot: s.Chosen, Endpoint: p.Endpoint}
	if s.Chosen == dec.Chosen {
		n.Agreed++
	}
	if int(s.Chosen) >= len(dec.Candidates) || dec.Candidates[s.Chosen].Slot != s.Chosen || !dec.Priced {
		return
	}
	there, here := d.scratchPrice(dec, s.Chosen), d.scratchPrice(dec, dec.Chosen)
	extra := there - here
	dec.Shadow.ExtraMS, dec.Shadow.Priced = extra, true
	n.Priced++
	n.ExtraMS += extra
	n.SquareMS += extra * extra
}

// scratchPrice is the cost of a candidate of dec in milliseconds, whatever the rule by
// which its policy chose.
func (d *Dispatch) scratchPrice(dec *route.Decision, slot int32) float64 {
	sum := 0.0
	for _, t := range dec.Candidates[slot].Terms {
		sum += float64(t)
	}
	return sum
}
