// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strconv"
	"strings"
)

// checkCommand finds commands that the kernel or the engine cannot take apart.
func checkCommand(s *Set, k *sink) {
	for i := range s.Workloads {
		w := &s.Workloads[i]
		for j := range w.Pod.Containers {
			c := &w.Pod.Containers[j]
			if _, serves := c.EngineOf(); serves != ServesYes {
				continue
			}
			if f, bad := commandString(w, c); bad {
				k.add(f)
			}
			if f, bad := tensorParallel(w, c); bad {
				k.add(f)
			}
		}
	}
}

// commandString finds a whole command line in one element of command or args.
func commandString(w *Workload, c *Container) (Finding, bool) {
	if len(c.Command) > 0 && strings.ContainsAny(strings.TrimSpace(c.Command[0].V), " \t") {
		f := probeFinding(w, c, c.Command[0].At.Line, "command-single-string")
		words := splitWords(c.Command[0].V)
		f.Evidence = []Evidence{Ev("elements", len(c.Command), ""), Ev("words_in_first", len(words), "")}
		f.Evidence = append(f.Evidence, shmEvidence(w, c)...)
		f.Message = "the whole command line is one element: the kernel looks for a file of that name and the container ends with \"exec: not found\""
		f.Remedy = "command: [" + quoteAll(words) + "]"
		if at := c.Command[0].At; at.Len > 0 && len(c.Command) == 1 {
			f.Edits = []Edit{{File: w.File, Line: at.Line, Col: at.Col, Del: at.Len, Text: itemList(at, words, c.CommandFlow)}}
		}
		return f, true
	}
	if isShell(c.Command) {
		return Finding{}, false
	}
	for _, a := range c.Args {
		v := strings.TrimSpace(a.V)
		key, _, _ := strings.Cut(v, " ")
		if !strings.HasPrefix(v, "--") || key == v || strings.ContainsAny(key, "={[\"'") || !strings.Contains(v, " --") && strings.ContainsAny(v, "{[\"'") {
			continue
		}
		words := splitWords(v)
		f := probeFinding(w, c, a.At.Line, "command-single-string")
		f.Evidence = []Evidence{{Name: "argument", Value: v}, Ev("words", len(words), "")}
		f.Message = fmt.Sprintf("%q is one argument with a space in it: the engine knows no flag of that name and does not start", v)
		f.Remedy = "args: [" + quoteAll(words) + "]"
		if a.At.Len > 0 {
			f.Edits = []Edit{{File: w.File, Line: a.At.Line, Col: a.At.Col, Del: a.At.Len, Text: itemList(a.At, words, c.ArgsFlow)}}
		}
		return f, true
	}
	return Finding{}, false
}

// itemList writes words as elements in place of one element. Col is where the old
// element begins; in block style that is two after the dash.
func itemList(at Span, words []string, flow bool) string {
	if flow || at.Col <= 2 {
		return quoteAll(words)
	}
	return strings.ReplaceAll(quoteAll(words), ", ", "\n"+strings.Repeat(" ", at.Col-3)+"- ")
}

func isShell(cmd []Field[string]) bool {
	if len(cmd) == 0 {
		return false
	}
	first := cmd[0].V
	if i := strings.LastIndexByte(first, '/'); i >= 0 {
		first = first[i+1:]
	}
	switch first {
	case "sh", "bash", "ash", "dash", "zsh", "env", "tini", "dumb-init":
		return true
	}
	return false
}

func quoteAll(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strconv.Quote(w)
	}
	return strings.Join(out, ", ")
}

// splitWords splits a command line at spaces outside quotes.
func splitWords(s string) []string {
	var out []string
	var b strings.Builder
	quote, in := byte(0), false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			b.WriteByte(c)
		case c == '\'' || c == '"':
			quote, in = c, true
		case c == ' ' || c == '\t' || c == '\n':
			if in || b.Len() > 0 {
				out = append(out, b.String())
			}
			b.Reset()
			in = false
		default:
			b.WriteByte(c)
		}
	}
	if in || b.Len() > 0 {
		out = append(out, b.String())
	}
	return out
}

// shmEvidence adds what else of the start is known to be tight: shared memory
// under tensor parallelism.
func shmEvidence(w *Workload, c *Container) []Evidence {
	tp, _, ok := c.flagInt("--tensor-parallel-size", "-tp", "--tp", "--tp-size")
	if !ok {
		return nil
	}
	out := []Evidence{Ev("tensor_parallel", tp, "")}
	for _, v := range w.Pod.Volumes {
		if v.Memory && v.SizeLimit.Set {
			out = append(out, Ev("shared_memory", v.SizeLimit.V/(1<<30), "GiB"))
		}
	}
	return out
}

// tensorParallel finds engines that are told to use more accelerators than their
// container has.
func tensorParallel(w *Workload, c *Container) (Finding, bool) {
	tp, flag, ok := c.flagInt("--tensor-parallel-size", "-tp", "--tp", "--tp-size", "--num-shard")
	gpus := c.GPUs()
	if !ok || gpus == 0 || tp <= gpus || w.Kind == "LeaderWorkerSet" || w.Kind == "RayCluster" || w.Kind == "RayService" {
		return Finding{}, false
	}
	if c.Flag("--distributed-executor-backend").V == "ray" || c.Flag("--nnodes", "--nnode").Set || c.Flag("--dist-init-addr").Set {
		return Finding{}, false
	}
	f := probeFinding(w, c, flag.At.Line, "tensor-parallel-above-gpus")
	f.Evidence = []Evidence{Ev("tensor_parallel", tp, "GPUs"), Ev("container_has", gpus, "GPUs")}
	f.Message = fmt.Sprintf("the engine wants %d accelerators and the container has %d: it does not start", tp, gpus)
	f.Remedy = fmt.Sprintf("Ask for %d accelerators in resources.limits, or set tensor parallelism to %d.", tp, gpus)
	return f, true
}

// drainFlags are the flags by which engines are told how long to finish what they
// have after SIGTERM.
var drainFlags = [...]string{"--shutdown-timeout", "--timeout-graceful-shutdown", "--exit-timeout-secs", "--graceful-shutdown-timeout", "--drain-timeout"}

// checkDrain compares the grace period with what has to fit into it.
func checkDrain(s *Set, k *sink) {
	longest, seen := s.Seen.LongestStream()
	for i := range s.Workloads {
		w := &s.Workloads[i]
		c, serves := w.Pod.Serves()
		if serves == ServesNo || serves == ServesUnknown && !w.Fragment || c == nil {
			continue
		}
		d := drainTimes{grace: float64(w.Pod.Grace.Or(30)), longest: longest, seen: seen}
		for j := range w.Pod.Containers {
			if h := w.Pod.Containers[j].PreStop; h != nil && h.Sleep.Set {
				d.pre, d.preKnown = max(d.pre, h.Sleep.V), true
			}
		}
		flag := c.Flag(drainFlags[:]...)
		if v, ok := ParseSeconds(flag.V); ok && flag.Set {
			d.drain, d.drainKnown = v, true
		}
		d.need = d.pre + d.drain
		if seen {
			d.need = max(d.need, d.pre+longest)
		}
		if d.grace <= d.need && (d.preKnown || d.drainKnown || seen) {
			k.add(drainFinding(s, w, d))
		}
	}
}

// drainTimes is what has to fit into a grace period, in seconds.
type drainTimes struct {
	grace, pre, drain, longest, need float64
	preKnown, drainKnown, seen       bool
}

func drainFinding(s *Set, w *Workload, d drainTimes) Finding {
	f := at(&w.Object, w.Pod.Grace.Line(w.Pod.Line), "grace-too-short")
	from := "written"
	if !w.Pod.Grace.Set {
		from = "default"
	}
	f.Evidence = []Evidence{Ev("grace", d.grace, "s").From(from)}
	if d.preKnown {
		f.Evidence = append(f.Evidence, Ev("pre_stop", d.pre, "s"))
	}
	if d.drainKnown {
		f.Evidence = append(f.Evidence, Ev("engine_drain", d.drain, "s"))
	}
	f.Evidence = append(f.Evidence, Ev("left_for_streams", max(0, d.grace-d.pre), "s"), Evidence{Name: "grace_needed", Value: ">" + Num(d.pre+d.drain), Unit: "s"})
	if d.seen {
		f.Evidence = append(f.Evidence, Ev("longest_stream", d.longest, "s").From("observed"))
		if v := victim(s); v != "" {
			f.Evidence = append(f.Evidence, Evidence{Name: "victim", Value: v, Age: "no running stream"})
		}
	}
	f.Message = fmt.Sprintf("after %s the pod is killed", Seconds(d.grace))
	if d.preKnown {
		f.Message += fmt.Sprintf(", of which preStop takes %s, so %s are left for running streams", Seconds(d.pre), Seconds(max(0, d.grace-d.pre)))
	}
	if d.drainKnown {
		f.Message += fmt.Sprintf(", while the engine is told to drain for %s", Seconds(d.drain))
	}
	if d.seen {
		f.Message += fmt.Sprintf("; the longest observed stream takes %s", Seconds(d.longest))
	}
	f.Message += ": streams are cut without an error frame"
	value := int(d.need) + 15
	f.Remedy = fmt.Sprintf("terminationGracePeriodSeconds: %d   # more than preStop + the engine's drain time", value)
	if d.seen {
		f.Remedy = fmt.Sprintf("terminationGracePeriodSeconds: %d   # more than preStop + the longest stream", value)
	}
	if w.Pod.Grace.Set {
		f.Edits = []Edit{replaceField(w.File, w.Pod.Grace, strconv.Itoa(value))}
	} else if e, ok := addKeys(w.File, w.Pod.SpecAt, fmt.Sprintf("terminationGracePeriodSeconds: %d", value)); ok {
		f.Edits = []Edit{e}
	}
	return f
}

// victim is the replica that a scale-down should take: one without a stream.
func victim(s *Set) string {
	for _, st := range s.Seen.Streams {
		if st.Streams.Set && st.Streams.V == 0 && st.Pod != "" {
			return st.Pod
		}
	}
	return ""
}
