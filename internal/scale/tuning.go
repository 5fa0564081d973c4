// SPDX-License-Identifier: Apache-2.0

package scale

// Tuning holds the constants of the rule. One default configuration serves every
// traffic; docs/explanation/scaling.md says on which drawn scenarios it was chosen.
type Tuning struct {
	Margins      []float64 // head-room of the shadows over their demand
	Floors       []float64 // standing floors of the shadows, replicas, rising
	FloorMargins []float64 // margins that are tried with each floor
	Periods      []int     // s, seasons that are looked for
	Forecast     bool      // play shadows that follow a fitted line

	Budget        float64 // share of the offered work that a shadow may have missed, for an attainment of 99 %
	MissPrice     float64 // cost of a share of 1 missed above the budget, in fleets
	Slack         float64 // s that held work may wait before it is missed
	Speed         float64 // work that one replica does in a rush, in what it carries in a large fleet
	Forget        float64 // s, time constant of the memory of cost and misses
	ReversalPrice float64 // s of the fleet that one change of direction costs
	SwitchGain    float64 // share by which another shadow must be cheaper to take over
	Hysteresis    float64 // share by which the demand must fall under a step before the fleet does

	// What is not known of the traffic yet: a rule without head-room is expected to
	// miss PriorMiss of the work, falling by e with each PriorMargin of head-room.
	// Both hold for a start of 120 s and grow with its powers. After t seconds this
	// weighs (PriorSeconds / (PriorSeconds + t)) ^ PriorPower against what was seen.
	// A window of 10, 60 and 300 s counts as that much more or less head-room.
	PriorSeconds     float64
	PriorPower       float64
	PriorMiss        float64
	PriorMissPower   float64
	PriorMargin      float64
	PriorMarginPower float64
	WindowBias       [len(levelWindows)]float64
	ForecastBias     float64

	// The next excursion may be higher than those seen: StressShare of what a
	// floor is expected to miss is read from the floor that is lower by their
	// spread, PeakSpread of the logarithm where none is known.
	StressShare float64
	PeakSpread  float64

	WarmSeconds float64 // s until the traffic counts as known, or 6 starts, at most twice this
	WarmMargin  float64 // least margin until then
	WarmHold    int     // s, least hold until then

	DownDelay float64 // s below before going down, at least; a quarter of a start where that is longer
	UpRest    float64 // s after going up before going down, at least; a start where that is longer
}

// DefaultTuning returns the constants that the scaler uses.
func DefaultTuning() Tuning {
	return Tuning{
		Margins:      []float64{-.3, -.2, -.1, 0, .1, .2, .35, .5, .75, 1.1, 1.6, 2.3},
		Floors:       []float64{2, 3, 4, 5, 6, 8, 10, 12, 15, 19, 24, 30, 38, 48, 60, 76, 96},
		FloorMargins: []float64{0, .2, .5},
		Periods:      []int{3600, 86400},
		Forecast:     true,

		Budget: .006, MissPrice: 70, Slack: 1.8, Speed: 1.04, Forget: 12 * 3600,
		ReversalPrice: 60, SwitchGain: .03, Hysteresis: .1,

		PriorSeconds: 9000, PriorPower: 2, PriorMiss: .015, PriorMissPower: .7, PriorMargin: .2, PriorMarginPower: .5,
		WindowBias: [len(levelWindows)]float64{.2, 0, -.05},
		// A line sees a rise coming, so that it needs less head-room than a level.
		ForecastBias: .3,
		StressShare:  .3, PeakSpread: .3,

		WarmSeconds: 1800, WarmMargin: .25, WarmHold: 900,
		DownDelay: 60, UpRest: 120,
	}
}
