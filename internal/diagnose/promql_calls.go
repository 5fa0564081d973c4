// SPDX-License-Identifier: Apache-2.0

package diagnose

import "slices"

// selector reads the matchers after a metric name and notes the labels that they
// fix.
func (p *promParser) selector(name string) vec {
	var fixed []string
	if p.accept("{") {
		for !p.bad && !p.is("}") {
			label := p.text
			if p.tok != promIdent && p.tok != promString {
				p.bad, p.tok = true, promEOF
				return vec{unknown: true}
			}
			quoted := p.tok == promString
			p.next()
			if quoted && (p.is(",") || p.is("}")) {
				name = label // {"metric.name"}
				p.accept(",")
				continue
			}
			op := p.text
			p.next()
			if p.tok != promString {
				p.bad, p.tok = true, promEOF
				return vec{unknown: true}
			}
			switch {
			case label == "__name__":
				name = p.text
			case op == "=":
				fixed = append(fixed, label)
			}
			p.next()
			if !p.accept(",") {
				break
			}
		}
		p.want("}")
	}
	if name != "" {
		p.q.Metrics = append(p.q.Metrics, name)
	}
	if !p.seenSel {
		p.seenSel, p.pinned = true, fixed
	} else {
		p.pinned = slices.DeleteFunc(p.pinned, func(l string) bool { return !slices.Contains(fixed, l) })
	}
	v := vec{all: true}
	// A selector that fixes a pod or an instance names one target on purpose.
	if slices.Contains(fixed, "pod") || slices.Contains(fixed, "instance") {
		v.unknown = true
	}
	return v
}

// aggregate reads an aggregation whose name was consumed.
func (p *promParser) aggregate(name string) vec {
	var by []string
	mode := ""
	group := func() {
		if p.is("by") || p.is("without") {
			mode = p.text
			p.next()
			by = p.labelList()
		}
	}
	group()
	p.want("(")
	inner := vec{}
	for !p.bad {
		inner = p.expr(0)
		if !p.accept(",") {
			break
		}
	}
	p.want(")")
	group()
	switch {
	case name == "topk" || name == "bottomk" || name == "count_values" || name == "limitk":
		return vec{all: true, agg: name, unknown: true}
	case mode == "by":
		return vec{labels: by, agg: name}
	case mode == "without":
		out := vec{all: inner.all, agg: name, unknown: true}
		return out
	}
	return vec{agg: name}
}

// call reads a function call whose name was consumed.
func (p *promParser) call(name string) vec {
	var args []vec
	p.want("(")
	for !p.bad && !p.is(")") {
		args = append(args, p.expr(0))
		if !p.accept(",") {
			break
		}
	}
	p.want(")")
	arg := vec{scalar: true}
	for _, a := range args {
		if !a.scalar {
			arg = a
			break
		}
	}
	switch name {
	case "scalar", "time", "pi":
		return vec{scalar: true}
	case "vector":
		return vec{agg: "vector"}
	case "absent", "absent_over_time":
		return vec{}
	case "rate", "irate", "increase", "delta", "idelta", "deriv":
		p.q.Rate = true
	case "histogram_quantile", "histogram_fraction":
		p.q.Quantile = true
		out := vec{all: arg.all, unknown: arg.unknown, agg: "quantile"}
		for _, l := range arg.labels {
			if l != "le" {
				out.labels = append(out.labels, l)
			}
		}
		return out
	case "label_replace", "label_join":
		arg.unknown = true
	}
	return arg
}
