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
	fitRows  = 2000 // later rows are left out
	fitLeast = 20   // rows below which five numbers cannot be told
)

// Fit fits the five coefficients to measured requests of one replica. Capacities
// (KV, chunk, batch) are taken from start, and so are coefficients that the rows say
// nothing about.
//
// The first guess is linear least squares: while a request decodes, the time between
// its tokens is the sum of what the steps did for everybody, and all of that can be
// read off the rows. It is refined by simulation, so that queueing, chunking and
// memory are accounted for. An error names what is wrong with the rows.
func Fit(start Profile, rows []Row) (Fitted, error) {
	rows, err := checkRows(rows)
	if err != nil {
		return Fitted{}, err
	}
	if need := longest(rows); start.Blocks()*start.BlockTokens < need {
		return Fitted{}, fmt.Errorf("profile %q has %d KV tokens, a measured request needs %d", start.Name, start.KVTokens, need)
	}
	x := coefficients(&start)
	for i, v := range decodeFit(rows) {
		if v > 0 {
			x[i] = v
		}
	}
	loss := func(x [5]float64) float64 {
		p := start
		setCoefficients(&p, x)
		e2e, ttft := predict(p, rows)
		return e2e + 0.05*math.Abs(ttft)
	}
	x = descend(x, loss)
	// The loss has several valleys: the profile to start from may lie in a better one.
	if y := descend(coefficients(&start), loss); loss(y) < loss(x) {
		x = y
	}
	f := Fitted{Profile: start, Rows: len(rows)}
	setCoefficients(&f.Profile, x)
	f.E2EError, f.TTFTError = predict(f.Profile, rows)
	for i := range x {
		y, p := x, start
		y[i] *= 1.25
		setCoefficients(&p, y)
		e, _ := predict(p, rows)
		f.Weight[i] = e - f.E2EError
	}
	return f, nil
}

func checkRows(rows []Row) ([]Row, error) {
	rows = append([]Row(nil), rows...)
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].Arrival < rows[j].Arrival })
	rows = rows[:min(len(rows), fitRows)]
	if len(rows) < fitLeast {
		return nil, fmt.Errorf("%d rows, at least %d are needed", len(rows), fitLeast)
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
	if longer < fitLeast/2 {
		return nil, errors.New("hardly any row has more than one output token: decode times cannot be told")
	}
	return rows, nil
}

func longest(rows []Row) int {
	n := 0
	for _, r := range rows {
		n = max(n, r.Prompt+r.Output)
	}
	return n
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
// where the right-hand sums are over what the replica did meanwhile. Equations are
// divided by their left side, so that relative errors count. Terms that come out
// negative are dropped and 0.
func decodeFit(rows []Row) [5]float64 {
	var eqs [][6]float64
	for i := range rows {
		a := &rows[i]
		from, to := a.Arrival+a.TTFT, a.Arrival+a.E2E
		if a.Output < 2 || to <= from {
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
		for k := range eq {
			eq[k] /= to - from
		}
		eqs = append(eqs, eq)
	}
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

// predict plays the rows on a replica of p and returns the mean relative error of the
// end-to-end time and the error of the mean time to first token.
func predict(p Profile, rows []Row) (e2e, ttft float64) {
	c := NewCore(p, CoreOptions{})
	at := func(s float64) fleet.Time { return fleet.Time((s - rows[0].Arrival) * 1e9) }
	var ev []Event
	var got, want float64
	take := func(now fleet.Time) {
		ev = c.Advance(now, ev[:0])
		for _, e := range ev {
			r := &rows[e.Seq]
			switch s := e.At.Seconds(at(r.Arrival)); e.Kind {
			case EventFirstToken:
				got += s
				want += r.TTFT
			case EventFinished:
				e2e += math.Abs(s-r.E2E) / r.E2E
			}
		}
	}
	for i, r := range rows {
		take(at(r.Arrival))
		c.Submit(at(r.Arrival), Seq{ID: uint64(i), PromptTokens: r.Prompt, OutputTokens: r.Output, Known: r.Cached})
	}
	take(fleet.Never - 1)
	return e2e / float64(len(rows)), got/want - 1
}

// descend looks for a lower loss by changing one coefficient, or two against each
// other, by shrinking factors: the loss is not smooth, since a step more or less
// moves whole batches.
func descend(x [5]float64, loss func([5]float64) float64) [5]float64 {
	best := loss(x)
	for step := 0.5; step > 0.004; {
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
