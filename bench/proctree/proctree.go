// SPDX-License-Identifier: Apache-2.0

// Package proctree reads from /proc what a process and its descendants have used.
package proctree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// tree returns the process ids of pid and all its descendants.
func tree(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		kids, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", all[i]))
		for _, k := range kids {
			b, err := os.ReadFile(k)
			if err != nil {
				continue
			}
			for _, f := range strings.Fields(string(b)) {
				if n, err := strconv.Atoi(f); err == nil {
					all = append(all, n)
				}
			}
		}
	}
	return all
}

// CPUSeconds is the CPU time of a process and its descendants, user and system,
// from the scheduler's own clock; where the kernel does not keep it, from the
// coarser count of ticks.
func CPUSeconds(pid int) float64 {
	total := 0.0
	for _, p := range tree(pid) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p))
		ns, exact := 0.0, len(tasks) > 0
		for _, t := range tasks {
			b, err := os.ReadFile(t)
			if err != nil {
				continue // a thread that ended meanwhile
			}
			v, _, _ := strings.Cut(string(b), " ")
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				exact = false
				break
			}
			ns += n
		}
		if exact {
			total += ns / 1e9
		} else {
			total += ticks(p)
		}
	}
	return total
}

// ticks reads utime and stime, fields 14 and 15 of /proc/PID/stat, in hundredths
// of a second.
func ticks(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name in parentheses may hold spaces.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	u, _ := strconv.ParseFloat(f[11], 64)
	s, _ := strconv.ParseFloat(f[12], 64)
	return (u + s) / 100
}

// ResidentMB is the resident memory of a process and its descendants in MiB.
func ResidentMB(pid int) float64 {
	kb := 0.0
	for _, p := range tree(pid) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p))
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(b), "VmRSS:")
		if !ok {
			continue
		}
		if f := strings.Fields(rest); len(f) > 0 {
			n, _ := strconv.ParseFloat(f[0], 64)
			kb += n
		}
	}
	return kb / 1024
}
