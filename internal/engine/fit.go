// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"
	"fmt"
	"math"
	"sort"

	"github.com/penstock-project/penstock/internal/fleet"
)

// Row is one measured request of one replica. Times are in seconds, Arrival on any
// clock that all rows share.
type Row struct {
	Arrival, TTFT, E2E     float64
	Prompt, Cached, Output int // tokens
}

// Fitted is a profile with fitted coefficients and how well it explains the rows.
type Fitted struct {
	Profile   Profile
	Rows      int
	E2EError  float64 // mean of |predicted-measured|/measured of the end-to-end time
	TTFTError float64 // error of the mean time to first token, signed share
	// Weight says, for Base, PTok, PAttn, DSeq and DCtx in this order, by how much
	// E2EError grows when the coefficient is a quarter larger. What hardly moves it is not
	// told by these rows: it is whatever makes the set fit.
	Weight [5]float64
}

const (
	fitRows = 2000 // rows that are played; what arrives later is left out

	// FitLeast is how many rows a fit needs: with fewer, five numbers cannot be told.
	FitLeast = 20
)

// Fit fits the five coefficients to measured requests of one replica. Capacities
// (KV, chunk, batch) are taken from start, and so are coefficients that the rows say
// nothing about.
//
// The time that a request spends at the replica is the sum of the steps that ran
// meanwhile, so given the schedule the coefficients follow by linear least squares;
// the schedule follows from the coefficients by simulation. The two are alternated,
// starting from what the rows tell without a schedule, and the best set is polished by
// descent. An error names what is wrong with the rows.
func Fit(start Profile, rows []Row) (Fitted, error) {
	rows, err := checkRows(rows)
	if err != nil {
		return Fitted{}, err
	}
	all := newRuns(rows)
	return all.fit(start)
}

// Polish goes on from a profile that was fitted to some of the rows and fits it to all.
func Polish(p Profile, rows []Row) (Fitted, error) {
	rows, err := checkRows(rows)
	if err != nil {
		return Fitted{}, err
	}
	all := newRuns(rows)
	if err := all.fits(&p); err != nil {
		return Fitted{}, err
	}
	return all.fitted(p, descend(coefficients(&p), all.loss(&p))), nil
}

// Held says how well a profile predicts rows that it was not fitted to.
type Held struct {
	Rows      int     // that count
	E2EError  float64 // mean of |predicted-measured|/measured of the end-to-end time
	E2EMean   float64 // error of the mean end-to-end time, signed share
	TTFTError float64 // error of the mean time to first token, signed share
	TTFTEach  float64 // mean of |predicted-measured|/measured of the time to first token
}

// heldBlock is how many rows in a row belong to one half, at most. Blocks keep
// requests that share steps together; many of them let both halves see each load.
const heldBlock = 25

// FitHalf fits as Fit does to one half of the rows and predicts the other. The rows
// take turns by blocks of up to 25 in the order of arrival. All of them are played,
// since they share the replica; only those of the half count in the fit.
func FitHalf(start Profile, rows []Row) (Fitted, Held, error) {
	rows, err := checkRows(rows)
	if err != nil {
		return Fitted{}, Held{}, err
	}
	if len(rows) < 2*FitLeast {
		return Fitted{}, Held{}, fmt.Errorf("%d rows, at least %d are needed to hold out a half", len(rows), 2*FitLeast)
	}
	a := newRuns(rows)
	a.block, a.half = max(1, min(heldBlock, len(a.rows)/8)), 1
	b := a
	b.half = 2
	f, err := a.fit(start)
	if err != nil {
		return Fitted{}, Held{}, err
	}
	return f, b.predict(f.Profile), nil
}

// Judge plays rows on a replica of p as it is and says how far it is off.
func Judge(p Profile, rows []Row) (Held, error) {
	rows, err := checkRows(rows)
	if err != nil {
		return Held{}, err
	}
	all := newRuns(rows)
	if all.scored() == 0 {
		return Held{}, errors.New("no row ends before the next one arrives; rows of several replicas?")
	}
	if err := all.fits(&p); err != nil {
		return Held{}, err
	}
	return all.predict(p), nil
}

// newRuns takes the first fitRows of rows in the order of arrival.
func newRuns(rows []Row) runs {
	if len(rows) > fitRows {
		return runs{rows: rows[:fitRows], until: rows[fitRows].Arrival}
	}
	return runs{rows: rows, until: math.Inf(1)}
}

func (f *runs) fit(start Profile) (Fitted, error) {
	if n := f.scored(); n < FitLeast {
		return Fitted{}, fmt.Errorf("of the first %d rows only %d end before the next one arrives; rows of several replicas?", fitRows, n)
	}
	if err := f.fits(&start); err != nil {
		return Fitted{}, err
	}
	loss := f.loss(&start)
	x := descend(f.resolve(start, loss), loss)
	// There are several valleys; the profile to start from may lie in a better one.
	if y := descend(coefficients(&start), loss); loss(y) < loss(x) {
		x = y
	}
	return f.fitted(start, x), nil
}

// meansWeigh is what an error of the mean end-to-end time and of the mean time to
// first token weighs beside the mean error of a request. Without it a fit foresees the
// median: on a machine that other work slows down now and then, whose times have a
// long tail, means came out 20 to 30 % short. Runs of an undisturbed engine lose at
// most 0.2 percentage points of the error of a request.
const meansWeigh = 0.25

// loss is what a fit makes small.
func (f *runs) loss(start *Profile) func([5]float64) float64 {
	return func(x [5]float64) float64 {
		p := *start
		setCoefficients(&p, x)
		g := f.predict(p)
		return g.E2EError + meansWeigh*(math.Abs(g.TTFTError)+math.Abs(g.E2EMean))
	}
}

func (f *runs) fitted(start Profile, x [5]float64) Fitted {
	out := Fitted{Profile: start, Rows: f.scored()}
	setCoefficients(&out.Profile, x)
	g := f.predict(out.Profile)
	out.E2EError, out.TTFTError = g.E2EError, g.TTFTError
	for i := range x {
		y, p := x, start
		y[i] *= 1.25
		setCoefficients(&p, y)
		out.Weight[i] = f.predict(p).E2EError - out.E2EError
	}
	return out
}

// runs are the rows that a fit plays. Those that end after until met requests that are
// left out, so they are played and not scored; neither are those of the other half.
type runs struct {
	rows  []Row
	until float64
	block int // rows a block; 0: all rows score
	half  int // 1: the blocks at even places score, 2: those at odd ones
}

// scores reports whether row i counts.
func (f *runs) scores(i int) bool {
	r := &f.rows[i]
	return r.Arrival+r.E2E < f.until && (f.block == 0 || i/f.block%2 == f.half-1)
}

func (f *runs) scored() int {
	n := 0
	for i := range f.rows {
		if f.scores(i) {
			n++
		}
	}
	return n
}

func checkRows(rows []Row) ([]Row, error) {
	rows = append([]Row(nil), rows...)
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].Arrival < rows[j].Arrival })
	if len(rows) < FitLeast {
		return nil, fmt.Errorf("%d rows, at least %d are needed", len(rows), FitLeast)
	}
	longer := 0
	for i, r := range rows {
		switch {
		case !(r.TTFT > 0) || !(r.E2E >= r.TTFT) || math.IsInf(r.E2E, 0) || math.IsNaN(r.Arrival) || math.IsInf(r.Arrival, 0):
			return nil, fmt.Errorf("row %d: arrival %v, TTFT %v s, E2E %v s make no sense", i, r.Arrival, r.TTFT, r.E2E)
		case r.Prompt < 1 || r.Output < 1 || r.Cached < 0 || r.Cached > r.Prompt:
			return nil, fmt.Errorf("row %d: %d prompt, %d cached, %d output tokens make no sense", i, r.Prompt, r.Cached, r.Output)
		}
		if r.Output > 1 {
			longer++
		}
	}
	if longer < FitLeast/2 {
		return nil, errors.New("hardly any row has more than one output token: decode times cannot be told")
	}
	return rows, nil
}

// fits reports a row that is too long for the KV cache of p.
func (f *runs) fits(p *Profile) error {
	need := 0
	for _, r := range f.rows {
		need = max(need, r.Prompt+r.Output)
	}
	if p.Blocks()*p.BlockTokens < need {
		return fmt.Errorf("profile %q has %d KV tokens, a measured request needs %d", p.Name, p.KVTokens, need)
	}
	return nil
}

func coefficients(p *Profile) [5]float64 {
	return [5]float64{p.Base, p.PTok, p.PAttn, p.DSeq, p.DCtx}
}

func setCoefficients(p *Profile, x [5]float64) {
	p.Base, p.PTok, p.PAttn, p.DSeq, p.DCtx = x[0], x[1], x[2], x[3], x[4]
}

// decodeFit solves, for all requests with more than one token,
//
//	e2e - ttft = Base*steps + PTok*prompts + PAttn*pairs + DSeq*tokens + DCtx*context
//
// where the right-hand sums are over what the replica did meanwhile, as far as the
// rows tell.
func (f *runs) decodeFit() [5]float64 {
	rows := f.rows
	var eqs [][6]float64
	for i := range rows {
		a := &rows[i]
		from, to := a.Arrival+a.TTFT, a.Arrival+a.E2E
		if a.Output < 2 || to <= from || !f.scores(i) {
			continue
		}
		eq := [6]float64{0: float64(a.Output - 1), 5: to - from}
		for j := range rows {
			b := &rows[j]
			first, last := b.Arrival+b.TTFT, b.Arrival+b.E2E
			if j != i && first > from && first <= to {
				n := float64(b.Prompt - b.Cached)
				eq[1] += n
				eq[2] += n * (float64(b.Cached) + n/2)
			}
			lo, hi := max(from, first), min(to, last)
			if hi <= lo || b.Output < 2 {
				continue
			}
			share := float64(b.Output-1) / (last - first)
			tokens := share * (hi - lo)
			eq[3] += tokens
			eq[4] += tokens * (float64(b.Prompt) + 1 + share*((lo+hi)/2-first))
		}
		eqs = append(eqs, weighted(eq))
	}
	return nonNegative(eqs)
}

// weighted divides an equation by its right side, so that relative errors count.
func weighted(eq [6]float64) [6]float64 {
	for k := range eq {
		if k != 5 {
			eq[k] /= eq[5]
		}
	}
	eq[5] = 1
	return eq
}

// nonNegative solves the equations, leaving out terms that would come out negative.
func nonNegative(eqs [][6]float64) [5]float64 {
	use := [5]bool{true, true, true, true, true}
	for {
		x := leastSquares(eqs, use)
		worst := -1
		for i := range x {
			if use[i] && x[i] < 0 && (worst < 0 || x[i]*scale(eqs, i) < x[worst]*scale(eqs, worst)) {
				worst = i
			}
		}
		if worst < 0 {
			return x
		}
		use[worst] = false
	}
}

// resolve alternates schedule and coefficients and returns the set of least loss.
func (f *runs) resolve(start Profile, loss func([5]float64) float64) [5]float64 {
	best := coefficients(&start)
	least := loss(best)
	for _, guess := range [][5]float64{f.decodeFit(), best} {
		x := keepPositive(guess, coefficients(&start))
		for range 12 {
			if l := loss(x); l < least {
				best, least = x, l
			}
			p := start
			setCoefficients(&p, x)
			next := keepPositive(nonNegative(f.scheduleEquations(p)), x)
			for i := range x {
				x[i] = math.Sqrt(x[i] * next[i]) // half way, since the schedule moves too
			}
		}
	}
	return best
}

// keepPositive puts a tenth of def where x is 0: a factor can not leave 0 again.
func keepPositive(x, def [5]float64) [5]float64 {
	for i := range x {
		if x[i] <= 0 {
			x[i] = max(def[i]/10, 1e-15)
		}
	}
	return x
}

// scheduleEquations plays the rows on a replica of p and returns, for each request,
// what the steps did from its arrival to its first and to its last token.
func (f *runs) scheduleEquations(p Profile) [][6]float64 {
	rows := f.rows
	c := NewCore(p, CoreOptions{})
	at := func(s float64) fleet.Time { return fleet.Time((s - rows[0].Arrival) * 1e9) }
	type begin struct {
		work [5]float64
		lead float64 // seconds that the step in progress had run by then
	}
	begins := make([]begin, len(rows))
	var eqs [][6]float64
	var ev []Event
	run := func(until fleet.Time) {
		for c.Next() <= until {
			ev = c.Advance(c.Next(), ev[:0])
			work := c.work()
			for _, e := range ev {
				r, b := &rows[e.Seq], &begins[e.Seq]
				if !f.scores(int(e.Seq)) {
					continue
				}
				measured := r.E2E
				switch e.Kind {
				case EventFirstToken:
					measured = r.TTFT
				case EventFinished:
				default:
					continue
				}
				eq := [6]float64{5: measured + b.lead}
				for k := range work {
					eq[k] = work[k] - b.work[k]
				}
				eqs = append(eqs, weighted(eq))
			}
		}
	}
	for i, r := range rows {
		now := at(r.Arrival)
		run(now)
		if c.cur.busy {
			c.cut(now)
			begins[i].lead = now.Seconds(c.cur.start)
		}
		begins[i].work = c.work()
		c.Submit(now, Seq{ID: uint64(i), PromptTokens: r.Prompt, OutputTokens: r.Output, Known: r.Cached})
	}
	run(fleet.Never - 1)
	return eqs
}

// work is what finished steps did, in the units of the five coefficients.
func (c *Core) work() [5]float64 {
	return [5]float64{float64(c.n.engineSteps), float64(c.n.prompts), c.n.pairs, float64(c.n.decodes), float64(c.n.context)}
}

func scale(eqs [][6]float64, k int) float64 {
	s := 0.0
	for i := range eqs {
		s += eqs[i][k]
	}
	return s
}

// leastSquares solves the normal equations of the columns in use by Gaussian
// elimination; columns are scaled to their mean first.
func leastSquares(eqs [][6]float64, use [5]bool) [5]float64 {
	var cols []int
	var unit [5]float64
	for k := range use {
		if s := scale(eqs, k); use[k] && s > 0 {
			unit[k] = s / float64(len(eqs))
			cols = append(cols, k)
		}
	}
	n := len(cols)
	m := make([][]float64, n)
	for i := range m {
		m[i] = make([]float64, n+1)
		for e := range eqs {
			v := eqs[e][cols[i]] / unit[cols[i]]
			for j := range cols {
				m[i][j] += v * eqs[e][cols[j]] / unit[cols[j]]
			}
			m[i][n] += v * eqs[e][5]
		}
		m[i][i] *= 1 + 1e-9 // a column that repeats another one
	}
	for i := range m {
		p := i
		for r := i + 1; r < n; r++ {
			if math.Abs(m[r][i]) > math.Abs(m[p][i]) {
				p = r
			}
		}
		m[i], m[p] = m[p], m[i]
		for r := range m {
			if r == i || m[i][i] == 0 {
				continue
			}
			f := m[r][i] / m[i][i]
			for c := i; c <= n; c++ {
				m[r][c] -= f * m[i][c]
			}
		}
	}
	var x [5]float64
	for i, k := range cols {
		if m[i][i] != 0 {
			x[k] = m[i][n] / m[i][i] / unit[k]
		}
	}
	return x
}

// predict plays the rows on a replica of p and returns the errors of those that count.
func (f *runs) predict(p Profile) Held {
	rows := f.rows
	var e2e, ttft, scored, started float64
	c := NewCore(p, CoreOptions{})
	at := func(s float64) fleet.Time { return fleet.Time((s - rows[0].Arrival) * 1e9) }
	var ev []Event
	var got, want, gotEnd, wantEnd float64
	take := func(now fleet.Time) {
		ev = c.Advance(now, ev[:0])
		for _, e := range ev {
			r := &rows[e.Seq]
			if !f.scores(int(e.Seq)) {
				continue
			}
			switch s := e.At.Seconds(at(r.Arrival)); e.Kind {
			case EventFirstToken:
				got += s
				want += r.TTFT
				ttft += math.Abs(s-r.TTFT) / r.TTFT
				started++
			case EventFinished:
				gotEnd += s
				wantEnd += r.E2E
				e2e += math.Abs(s-r.E2E) / r.E2E
				scored++
			}
		}
	}
	for i, r := range rows {
		take(at(r.Arrival))
		c.Submit(at(r.Arrival), Seq{ID: uint64(i), PromptTokens: r.Prompt, OutputTokens: r.Output, Known: r.Cached})
	}
	take(fleet.Never - 1)
	return Held{Rows: f.scored(), E2EError: e2e / scored, E2EMean: gotEnd/wantEnd - 1, TTFTError: got/want - 1, TTFTEach: ttft / started}
}

// descend looks for a lower loss by changing one coefficient, or two against each
// other, by shrinking factors: the loss is not smooth, since a step more or less
// moves whole batches.
func descend(x [5]float64, loss func([5]float64) float64) [5]float64 {
	best := loss(x)
	for step := 0.25; step > 0.01; {
		improved := false
		for i := range x {
			for j := range i + 1 {
				for _, f := range []float64{1 + step, 1 / (1 + step)} {
					y := x
					y[i] *= f
					if j != i {
						y[j] /= f
					}
					if l := loss(y); l < best {
						x, best, improved = y, l, true
					}
				}
			}
		}
		if !improved {
			step /= 2
		}
	}
	return x
}
