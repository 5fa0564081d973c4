// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/penstock-project/penstock/internal/sim"
)

// printSuite writes the report of a suite for people.
func printSuite(w io.Writer, r *sim.Report) {
	fmt.Fprintf(w, "%d cells, seed %d. Ratios are to the best of the eleven peers of each cell.\n\n", len(r.Cells), r.Seed)
	fmt.Fprintf(w, "%-16s %8s %8s %8s %8s %8s\n", "policy", "TTFT", "worst", "E2E", "p99 TTFT", "SLO")
	for _, p := range r.Policies {
		fmt.Fprintf(w, "%-16s %8.3f %8.2f %8.3f %8.3f %7.1f%%\n", p.Name, p.Geomean, p.Worst, p.E2E, p.P99, p.SLO*100)
	}
	fmt.Fprintf(w, "\nmean TTFT  %.3f [%.3f, %.3f], without selection bias %.3f, worst %.2f (%s)\n",
		r.Geomean, r.Interval[0], r.Interval[1], r.Unbiased, r.Worst, r.WorstCell)
	fmt.Fprintf(w, "           %.1f %% of cells at or under 1.05, %.1f %% at or under 1.2; best single peer %s %.3f\n",
		r.Within105*100, r.Within120*100, r.BestSingle.Name, r.BestSingle.Geomean)
	fmt.Fprintf(w, "E2E        %.3f [%.3f, %.3f], without selection bias %.3f, worst %.2f (%s)\n",
		r.E2E.Geomean, r.E2E.Interval[0], r.E2E.Interval[1], r.E2E.Unbiased, r.E2E.Worst, r.E2E.WorstCell)
	fmt.Fprintf(w, "p99 TTFT   %.3f [%.3f, %.3f], without selection bias %.3f, worst %.2f (%s)\n",
		r.P99.Geomean, r.P99.Interval[0], r.P99.Interval[1], r.P99.Unbiased, r.P99.Worst, r.P99.WorstCell)
	fmt.Fprintf(w, "SLO share  %.3f; best peer %s %.3f\n", r.SLO.Ours, r.SLO.BestPeer, r.SLO.Best)
	if r.Flood != nil {
		fmt.Fprintf(w, "flood      victims see %.2f times their TTFT alone in the mean, %.2f at worst, over %d cells\n",
			r.Flood.Mean, r.Flood.Worst, len(r.Flood.Cells))
	}
	fmt.Fprintf(w, "\n%-14s %6s %8s %18s %8s %8s %10s\n", "load", "cells", "TTFT", "95 % interval", "worst", "<= 1.05", "SLO (peer)")
	for _, b := range sim.LoadBands() {
		if x, ok := r.ByLoad[b]; ok {
			printRatios(w, b, &x)
			s := r.SLO.ByLoad[b]
			fmt.Fprintf(w, " %5.1f%% (%.1f%%)\n", s.Ours*100, s.Best*100)
		}
	}
	fmt.Fprintf(w, "\n%-14s %6s %8s %18s %8s %8s\n", "family", "cells", "TTFT", "95 % interval", "worst", "<= 1.05")
	for _, f := range keysInOrder(r.ByFamily) {
		x := r.ByFamily[f]
		printRatios(w, f, &x)
		fmt.Fprintln(w)
	}
	if r.Routers != nil {
		printRouters(w, r.Routers)
	}
}

// printAblation writes what each part is worth for people.
func printAblation(w io.Writer, r *sim.AblationReport) {
	fmt.Fprintf(w, "%d cells, seed %d. Ratios are of ours without the part to ours: above 1 the part helps.\n\n", r.Cells, r.Seed)
	t := newTable("WITHOUT", ">MEAN TTFT", "95 % INTERVAL", ">WORST", ">LEAST", ">ABOVE 1.05", ">P99 TTFT", ">WORST", ">E2E", ">SLO LOST")
	for _, p := range r.Parts {
		t.add(p.Part, fmt.Sprintf("%.3f", p.TTFT.Geomean), fmt.Sprintf("[%.3f, %.3f]", p.TTFT.Interval[0], p.TTFT.Interval[1]),
			fmt.Sprintf("%.2f", p.TTFT.Worst), fmt.Sprintf("%.2f", p.TTFT.Least), fmt.Sprintf("%.0f %%", 100*p.TTFT.Above105),
			fmt.Sprintf("%.3f", p.P99.Geomean), fmt.Sprintf("%.2f", p.P99.Worst), fmt.Sprintf("%.3f", p.E2E.Geomean), fmt.Sprintf("%.1f points", 100*p.SLO))
	}
	t.write(w)
}

func printRatios(w io.Writer, name string, x *sim.Ratios) {
	fmt.Fprintf(w, "%-14s %6d %8.3f   [%6.3f, %6.3f] %8.2f %7.1f%%", name, x.Cells, x.Geomean, x.Interval[0], x.Interval[1], x.Worst, x.Within105*100)
}

// printCompare writes a comparison for people.
func printCompare(w io.Writer, r *sim.Comparison) {
	ranks := ""
	if r.Ranks > 1 {
		ranks = fmt.Sprintf(" of %d ranks (%s)", r.Ranks, r.RankKind)
	}
	fmt.Fprintf(w, "%s: %s requests on %d x %s%s, %s KV tokens each, index %s\n\n",
		r.Trace, withCommas(r.Requests), r.Replicas, r.Engine, ranks, withCommas(r.KVTokens), r.Index)
	fmt.Fprintf(w, "%-16s %10s %10s %10s %9s %7s %7s %9s %6s\n", "policy", "TTFT mean", "p99", "E2E mean", "TPOT", "hits", "SLO", "imbalance", "failed")
	for _, name := range r.Order {
		x := r.Policies[name]
		fmt.Fprintf(w, "%-16s %10s %10s %10s %9s %6.1f%% %6.1f%% %9.2f %6d\n", name, milliText(x.TTFTMean), milliText(x.TTFTP99),
			milliText(x.E2EMean), milliText(x.TPOT), x.HitRatio*100, x.SLOShare*100, x.Imbalance, x.Failed)
	}
	if r.Regret > 0 {
		fmt.Fprintf(w, "\nregret %.3f against the best peer, %s\n", r.Regret, r.BestPeer)
	}
}

// printWhatIf writes the answer to a what-if question for people.
func printWhatIf(w io.Writer, r *sim.WhatIf) {
	ranks := ""
	if r.Ranks > 1 {
		ranks = fmt.Sprintf(" of %d ranks", r.Ranks)
	}
	fmt.Fprintf(w, "%d replicas%s, %.0f %% of prompt tokens shareable, %s requests of %s traffic\n\n", r.Replicas, ranks, r.Shared*100, withCommas(r.Requests), r.Workload)
	fmt.Fprintf(w, "%-22s %8s %8s\n", "prefix cache hits", "random", "aware")
	fmt.Fprintf(w, "%-22s %7.1f%% %7.1f%%\n", "formula (s/R, 0.8 s)", r.Formula.Random*100, r.Formula.Aware*100)
	fmt.Fprintf(w, "%-22s %7.1f%% %7.1f%%\n", "measured", r.Measured.Random*100, r.Measured.Aware*100)
	fmt.Fprintf(w, "%-22s %8s %8s\n", "mean TTFT", milliText(r.TTFT.Random), milliText(r.TTFT.Aware))
	if r.Deaf != nil {
		fmt.Fprintf(w, "%-22s %7.1f%% %7.1f%%\n", "where pins are ignored", r.Deaf.Random*100, r.Deaf.Aware*100)
		fmt.Fprintf(w, "%-22s %8s %8s\n", "mean TTFT there", milliText(r.DeafTTFT.Random), milliText(r.DeafTTFT.Aware))
	}
	fmt.Fprintf(w, "\nby the formula %.0f %% of the prefill compute is saved\n", r.Formula.ComputeSaved*100)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	if i := r.Isolation; i != nil {
		printIsolation(w, i)
	}
}

// printIsolation writes what the settings of cacheSalt cost.
func printIsolation(w io.Writer, i *sim.Isolation) {
	fmt.Fprintf(w, "\nthe same requests as those of %s x %s users (tenants x users of each), who have all system prompts in common; means of %d draws\n\n",
		withCommas(i.Tenants), withCommas(i.Users), i.Draws)
	fmt.Fprintf(w, "%-10s %8s %14s %9s %10s %10s\n", "cacheSalt", "hits", "points lost", "at most", "computed", "mean TTFT")
	for k, r := range i.Runs {
		lost := ""
		if k > 0 {
			lost = fmt.Sprintf("%.1f +- %.1f", r.Lost*100, r.Lost95*100)
		}
		fmt.Fprintf(w, "%-10s %7.1f%% %14s %8.1f%% %9.2fx %10s\n", r.CacheSalt, r.Hit*100, lost, r.Ceiling*100, r.Computed, milliText(r.TTFT))
	}
	fmt.Fprintln(w, "\nat most: what an endless cache finds; computed: prompt tokens that replicas compute beside shared; +-: 95 % interval")
}
