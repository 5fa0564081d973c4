// SPDX-License-Identifier: Apache-2.0

// Package doctest keeps the documentation true: it executes the console blocks
// of the README and the tutorials and checks that every relative link resolves.
//
// A block that opens with ```console is executed: lines that start with "$ " are
// commands (a trailing backslash continues one), the lines below are expected
// output, in order, where "..." alone stands for any lines and "..." inside a line
// for any text. All blocks of one page run in one shell. Expected output is
// optional: without it a command only has to succeed. Blocks that must not run
// are marked ```sh or ```text.
package doctest

import (
	"bufio"
	"fmt"
	"regexp"
	"strings"
)

// Step is one command of a page and what it should print.
type Step struct {
	Line    int // of the command, from 1
	Command string
	Want    []string // empty: anything
}

// Steps returns the commands of all console blocks of a page in order.
func Steps(page string) ([]Step, error) {
	var steps []Step
	sc := bufio.NewScanner(strings.NewReader(page))
	sc.Buffer(nil, 1<<20)
	in, open := false, 0
	for n := 1; sc.Scan(); n++ {
		line := sc.Text()
		trimmed := strings.TrimSpace(line)
		switch {
		case !in && trimmed == "```console":
			in, open = true, n
		case in && trimmed == "```":
			in = false
		case in && strings.HasPrefix(trimmed, "$ "):
			steps = append(steps, Step{Line: n, Command: strings.TrimPrefix(trimmed, "$ ")})
		case in && len(steps) > 0 && strings.HasSuffix(steps[len(steps)-1].Command, "\\") && len(steps[len(steps)-1].Want) == 0:
			s := &steps[len(steps)-1]
			s.Command = strings.TrimSuffix(s.Command, "\\") + strings.TrimPrefix(trimmed, "> ")
		case in && len(steps) > 0:
			s := &steps[len(steps)-1]
			s.Want = append(s.Want, strings.TrimRight(line, " "))
		case in && trimmed != "":
			return nil, fmt.Errorf("line %d: output before the first command of the block", n)
		}
	}
	if in {
		return nil, fmt.Errorf("line %d: the block is not closed", open)
	}
	return steps, sc.Err()
}

// Match reports whether got is what want describes, and if not, the first wanted
// line that was not found.
func Match(want []string, got string) (missing string, ok bool) {
	lines := strings.Split(strings.TrimRight(got, "\n"), "\n")
	at, skip := 0, false
	for _, w := range want {
		if strings.TrimSpace(w) == "..." {
			skip = true
			continue
		}
		if strings.TrimSpace(w) == "" {
			continue
		}
		re := pattern(w)
		found := false
		for ; at < len(lines); at++ {
			if re.MatchString(strings.TrimRight(lines[at], " ")) {
				found = true
				at++
				break
			}
			if !skip && strings.TrimSpace(lines[at]) != "" {
				break
			}
		}
		if !found {
			return w, false
		}
		skip = false
	}
	return "", true
}

func pattern(w string) *regexp.Regexp {
	parts := strings.Split(w, "...")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links returns the relative link targets of a page, without fragments.
func Links(page string) []string {
	var out []string
	code := false
	for _, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
		}
		if code {
			continue
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			out = append(out, target)
		}
	}
	return out
}
