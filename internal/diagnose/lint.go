// SPDX-License-Identifier: Apache-2.0

package diagnose

// Lint judges a set of manifests and what was observed with them, and returns
// findings in the order of files and lines. A set without a defect that the rules
// know gives none: what is not known is not reported.
func Lint(s *Set) []Finding {
	k := &sink{}
	for _, check := range [...]func(*Set, *sink){
		checkMisleading, checkUnits, checkValueType, checkQueries, checkFallback, checkPace, checkBounds, checkKeys, checkRemoved, checkZero, checkWake, checkModelNames, checkAdapter,
		checkProbes, checkCommand, checkDrain, checkRollout, checkDeadline,
		checkPools, checkPickers, checkRoutes, checkMonitors, checkDisruption, checkEnvoy,
		checkSeenHPA, checkEvents,
	} {
		check(s, k)
	}
	Sort(k.out)
	return k.out
}

// sink collects findings.
type sink struct{ out []Finding }

// add appends a finding and completes it from the rule table.
func (k *sink) add(f Finding) {
	if r, ok := RuleOf(f.Code); ok && f.Severity == unset {
		f.Severity = r.Severity
	}
	f.Docs = DocsOf(f.Code)
	for i := range f.Edits {
		if !f.Edits[i].valid() { // half of a patch is worse than none
			f.Edits = nil
			break
		}
	}
	k.out = append(k.out, f)
}

// unset stands for "the severity of the rule table".
const unset = Severity(255)

// at starts a finding at a line of an object.
func at(o *Object, line int, code string) Finding {
	if line == 0 {
		line = o.Line
	}
	return Finding{Code: code, Severity: unset, Object: o.Ref(), File: o.File, Line: line}
}
