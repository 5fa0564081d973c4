// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/penstock-project/penstock/internal/engine"
)

// tellsLeast is the weight below which the rows do not determine a coefficient: a
// quarter more of it moves the mean error by less than this share.
const tellsLeast = 0.002

// explainsLeast is the held-out error of the end-to-end time above which the model
// does not describe this replica.
const explainsLeast = 0.10

type calibrateFlags struct {
	profile, name, model, accelerator, write, replica string
	tensorParallel, kv, seqs, chunk, length           int
	check                                             bool
}

// calibration is what `penstock calibrate -o json` prints.
type calibration struct {
	Schema      string           `json:"schema"` // penstock/calibration/v1
	Files       []string         `json:"files"`
	Replicas    []string         `json:"replicas"` // whose rows were laid one after the other
	Rows        calibratedRows   `json:"rows"`
	Fit         fitError         `json:"fit"`
	HeldOut     heldError        `json:"held_out"`
	Whole       fitError         `json:"whole"` // of the profile, which is fitted to both halves at last
	Coefs       []calibratedCoef `json:"coefficients"`
	Profile     engine.Profile   `json:"profile"`
	Refused     string           `json:"refused,omitempty"`
	NoCeiling   bool             `json:"no_ceiling_known,omitempty"`
	Unexplained bool             `json:"unexplained,omitempty"` // the held-out error is above 10 %
}

type calibratedRows struct {
	Read          int            `json:"read"`
	Usable        int            `json:"usable"`
	Skipped       map[string]int `json:"skipped"`
	CachedUnknown int            `json:"cached_unknown"` // taken as 0
}

// Errors are shares: 0.01 is one per cent.
type fitError struct {
	Rows     int     `json:"rows"`
	E2E      float64 `json:"e2e_error"`       // mean over requests
	TTFTMean float64 `json:"ttft_mean_error"` // of the mean, signed
}

type heldError struct {
	fitError
	TTFTEach float64 `json:"ttft_error"` // mean over requests
}

// judgement is what --check prints: a profile held against requests that it was not
// fitted to.
type judgement struct {
	Schema   string         `json:"schema"` // penstock/calibration-check/v1
	Files    []string       `json:"files"`
	Replicas []string       `json:"replicas"`
	Rows     calibratedRows `json:"rows"`
	Profile  string         `json:"profile"`
	Judged   heldError      `json:"judged"`
	E2EMean  float64        `json:"e2e_mean_error"` // of the mean, signed
}

type calibratedCoef struct {
	Name       string  `json:"name"`
	Seconds    float64 `json:"seconds"`
	Started    float64 `json:"started_from"`
	Weight     float64 `json:"weight"`     // growth of the fit's E2E error when the coefficient is a quarter larger
	Determined bool    `json:"determined"` // by these rows
}

func calibrateCmd(e *Env) *cobra.Command {
	f := &calibrateFlags{}
	c := grouped(groupPlan, &cobra.Command{
		Use:   "calibrate FILE...",
		Short: "Fit an engine profile to measured requests",
		Long: `Fit the coefficients of an engine profile to requests that a replica really
answered, and say how well the profile predicts those that it was not fitted to.

FILE is an access log (CSV with the columns arrival, prompt_tokens, cached_tokens,
output_tokens, ttft, e2e; one replica a file), a journal of penstock (file or
directory), or the requests.jsonl of a benchmark inside vLLM; "-" is stdin.

Half of the requests, in blocks of 25 in the order of arrival, are fitted; the
errors are those on the other half. The profile that is written goes on from there
and is fitted to all of them. Capacities (KV tokens, batch, chunk) are not
fitted: they come from --profile and the flags, as the engine was started. A
profile that is faster than its accelerator can be is refused, exit code 3.`,
		Example: `  penstock calibrate access.csv --profile llama-3.1-8b-h100 --write llama.yaml
  penstock calibrate journal/ --replica chat-0 -o yaml > chat.yaml
  penstock calibrate next-day.csv --profile llama.yaml --check
  penstock replica --model m --profile llama.yaml`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("for instance: penstock calibrate access.csv", "name at least one file")
			}
			return nil
		},
	})
	out := outputFlag(c, "table", "json", "yaml")
	fl := c.Flags()
	fl.StringVar(&f.profile, "profile", engine.DefaultProfile, "profile to start from: a built-in name or a file")
	fl.StringVar(&f.name, "name", "", "name of the new profile (default: the old one's with -fitted)")
	fl.StringVar(&f.model, "model", "", "model of the new profile (default: the old one's)")
	fl.StringVar(&f.accelerator, "accelerator", "", "accelerator of the new profile, whose ceiling holds (default: the old one's)")
	fl.IntVar(&f.tensorParallel, "tensor-parallel", 0, "accelerators of one replica (default: the old profile's)")
	fl.IntVar(&f.kv, "kv-tokens", 0, "KV cache of the measured engine in tokens (default: the old profile's)")
	fl.IntVar(&f.seqs, "max-num-seqs", 0, "cap on running requests of the measured engine (default: the old profile's)")
	fl.IntVar(&f.chunk, "max-num-batched-tokens", 0, "token budget of a step of the measured engine (default: the old profile's)")
	fl.IntVar(&f.length, "max-model-len", 0, "longest prompt plus answer in tokens (default: the old profile's)")
	fl.StringVar(&f.replica, "replica", "", "of a journal, only the requests of this replica")
	fl.BoolVar(&f.check, "check", false, "fit nothing: say how well --profile, as it is, predicts these requests")
	fl.StringVar(&f.write, "write", "", "write the profile to this file, too")
	c.RunE = func(_ *cobra.Command, args []string) error { return f.run(e, args, *out) }
	return c
}

// start is the profile to start from with the capacities of the flags.
func (f *calibrateFlags) start() (engine.Profile, error) {
	p, err := loadProfile(f.profile)
	if err != nil {
		return p, err
	}
	for _, s := range []struct {
		name string
		v    int
		to   *int
	}{
		{"tensor-parallel", f.tensorParallel, &p.TensorParallel}, {"kv-tokens", f.kv, &p.KVTokens},
		{"max-num-seqs", f.seqs, &p.MaxSeqs}, {"max-num-batched-tokens", f.chunk, &p.ChunkTokens},
		{"max-model-len", f.length, &p.MaxModelLen},
	} {
		if s.v < 0 {
			return p, usagef("", "--%s must be positive", s.name)
		}
		if s.v > 0 {
			*s.to = s.v
		}
	}
	if p.ChunkTokens <= p.MaxSeqs {
		return p, usagef("", "--max-num-batched-tokens %d must be more than --max-num-seqs %d", p.ChunkTokens, p.MaxSeqs)
	}
	name := p.Name
	if p.Name == f.profile {
		name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	}
	if _, builtIn := engine.Lookup(p.Name); builtIn {
		name = p.Name
	}
	p.Name = name
	if !f.check {
		p.Name += "-fitted"
	}
	for _, s := range []struct {
		v  string
		to *string
	}{{f.name, &p.Name}, {f.model, &p.Model}, {f.accelerator, &p.Accelerator}} {
		if s.v != "" {
			*s.to = s.v
		}
	}
	return p, nil
}

func (f *calibrateFlags) run(e *Env, files []string, output string) error {
	start, err := f.start()
	if err != nil {
		return err
	}
	m, err := readMeasured(e, files)
	if err != nil {
		return err
	}
	replicas := m.replicas()
	if f.replica != "" {
		if !slices.Contains(replicas, f.replica) {
			return usagef("", "--replica %q answered no request of the files; there are: %s", f.replica, strings.Join(replicas, ", "))
		}
		replicas = []string{f.replica}
	}
	rows, err := m.endToEnd(replicas)
	if err != nil {
		return failf(skippedText(m.skipped), "%v", err)
	}
	if f.check {
		return f.judge(e, &start, newJudgement(files, replicas, m, len(rows)), rows, output)
	}
	fitted, held, err := engine.FitHalf(start, rows)
	if err != nil {
		return failf(fitHint(len(rows), m.skipped), "%v", err)
	}
	whole, err := engine.Polish(fitted.Profile, rows)
	if err != nil {
		return failf("", "%v", err)
	}
	c := newCalibration(files, replicas, m, len(rows), &start, [2]engine.Fitted{fitted, whole}, held)
	profile, err := yamlText(&c.Profile)
	if err != nil {
		return err
	}
	switch {
	case output == "json":
		if err := printJSON(e.Stdout, c); err != nil {
			return err
		}
	case output == "table":
		printCalibration(e.Stdout, c)
	case c.Refused == "":
		if _, err := e.Stdout.Write(profile); err != nil {
			return err
		}
	}
	if c.Refused != "" {
		return &Fault{Code: ExitFindings, Err: fmt.Errorf("no profile is written: %s", c.Refused),
			Hint: "check --accelerator, --model and --tensor-parallel, and that cached_tokens and ttft are those of the engine"}
	}
	if f.write != "" {
		if err := os.WriteFile(f.write, profile, 0o644); err != nil {
			return failf("", "%v", err)
		}
		fmt.Fprintf(e.Stderr, "penstock: profile %s written to %s\n", c.Profile.Name, f.write)
	}
	return nil
}

func newCalibration(files, replicas []string, m *measuredRows, usable int, start *engine.Profile, fits [2]engine.Fitted, h engine.Held) *calibration {
	f, whole := fits[0], fits[1]
	p := whole.Profile
	for _, v := range []*float64{&p.Base, &p.PTok, &p.PAttn, &p.DSeq, &p.DCtx} {
		*v = sixDigits(*v)
	}
	names := baseNames(files)
	p.Source = fmt.Sprintf("fit of penstock calibrate to %d requests of %s; from half of them, the end-to-end time of the others is foreseen to %.1f %% a request, the mean time to first token to %+.1f %%",
		whole.Rows, strings.Join(names, ", "), 100*h.E2EError, 100*h.TTFTError)
	c := &calibration{
		Schema: "penstock/calibration/v1", Files: names, Replicas: replicas,
		Rows:    calibratedRows{m.read, usable, m.skipped, m.noCached},
		Fit:     fitError{f.Rows, sixDigits(f.E2EError), sixDigits(f.TTFTError)},
		HeldOut: heldError{fitError{h.Rows, sixDigits(h.E2EError), sixDigits(h.TTFTError)}, sixDigits(h.TTFTEach)},
		Whole:   fitError{whole.Rows, sixDigits(whole.E2EError), sixDigits(whole.TTFTError)},
		Profile: p, NoCeiling: len(p.Ceilings()) == 0, Unexplained: h.E2EError > explainsLeast,
	}
	for i, k := range []struct {
		name     string
		from, to float64
	}{
		{"base", start.Base, p.Base}, {"p_tok", start.PTok, p.PTok}, {"p_attn", start.PAttn, p.PAttn},
		{"d_seq", start.DSeq, p.DSeq}, {"d_ctx", start.DCtx, p.DCtx},
	} {
		c.Coefs = append(c.Coefs, calibratedCoef{k.name, k.to, k.from, sixDigits(whole.Weight[i]), whole.Weight[i] >= tellsLeast})
	}
	if err := p.Validate(); err != nil {
		c.Refused = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return c
}

// fitHint says what to do about a fit that was not made.
func fitHint(usable int, skipped map[string]int) string {
	if usable >= 2*engine.FitLeast {
		return "--profile, --kv-tokens and --max-num-seqs must be those of the measured engine"
	}
	hint := "record more requests of one replica"
	if len(skipped) > 0 {
		hint += "; left out: " + skippedText(skipped)
	}
	return hint
}

func baseNames(files []string) []string {
	var names []string
	for _, n := range files {
		names = append(names, filepath.Base(n))
	}
	return names
}

func newJudgement(files, replicas []string, m *measuredRows, usable int) *judgement {
	return &judgement{Schema: "penstock/calibration-check/v1", Files: baseNames(files), Replicas: replicas,
		Rows: calibratedRows{m.read, usable, m.skipped, m.noCached}}
}

// judge holds a profile against rows without fitting anything.
func (f *calibrateFlags) judge(e *Env, p *engine.Profile, j *judgement, rows []engine.Row, output string) error {
	h, err := engine.Judge(*p, rows)
	if err != nil {
		return failf("--profile, --kv-tokens and --max-num-seqs must be those of the measured engine", "%v", err)
	}
	j.Profile, j.E2EMean = p.Name, sixDigits(h.E2EMean)
	j.Judged = heldError{fitError{h.Rows, sixDigits(h.E2EError), sixDigits(h.TTFTError)}, sixDigits(h.TTFTEach)}
	if output != "table" {
		return printJSON(e.Stdout, j)
	}
	fmt.Fprintf(e.Stdout, "%s: %s requests read, %s usable\n\n", strings.Join(j.Files, ", "), withCommas(j.Rows.Read), withCommas(j.Rows.Usable))
	t := newTable("PROFILE", ">REQUESTS", ">E2E ERROR", ">MEAN E2E OFF BY", ">TTFT ERROR", ">MEAN TTFT OFF BY")
	t.add(j.Profile, withCommas(h.Rows), share1(h.E2EError), fmt.Sprintf("%+.1f %%", 100*h.E2EMean), share1(h.TTFTEach), fmt.Sprintf("%+.1f %%", 100*h.TTFTError))
	t.write(e.Stdout)
	return nil
}

func sixDigits(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	return r
}

func yamlText(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := enc.Encode(v)
	return b.Bytes(), err
}

func skippedText(skipped map[string]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(skipped)) {
		parts = append(parts, fmt.Sprintf("%s: %d", k, skipped[k]))
	}
	return strings.Join(parts, "; ")
}

func printCalibration(w io.Writer, c *calibration) {
	fmt.Fprintf(w, "%s: %s requests read, %s usable", strings.Join(c.Files, ", "), withCommas(c.Rows.Read), withCommas(c.Rows.Usable))
	if n := len(c.Replicas); n > 1 {
		fmt.Fprintf(w, ", of %d replicas laid one after the other", n)
	}
	fmt.Fprintln(w)
	if len(c.Rows.Skipped) > 0 {
		fmt.Fprintf(w, "left out: %s\n", skippedText(c.Rows.Skipped))
	}
	if c.Rows.CachedUnknown > 0 {
		fmt.Fprintf(w, "cached tokens unknown and taken as 0: %s requests\n", withCommas(c.Rows.CachedUnknown))
	}
	fmt.Fprintln(w)
	t := newTable("", ">REQUESTS", ">E2E ERROR", ">TTFT ERROR", ">MEAN TTFT OFF BY")
	t.add("fitted", withCommas(c.Fit.Rows), share1(c.Fit.E2E), "", fmt.Sprintf("%+.1f %%", 100*c.Fit.TTFTMean))
	t.add("held out", withCommas(c.HeldOut.Rows), share1(c.HeldOut.E2E), share1(c.HeldOut.TTFTEach), fmt.Sprintf("%+.1f %%", 100*c.HeldOut.TTFTMean))
	t.add("all, at last", withCommas(c.Whole.Rows), share1(c.Whole.E2E), "", fmt.Sprintf("%+.1f %%", 100*c.Whole.TTFTMean))
	t.write(w)
	fmt.Fprintln(w)
	t = newTable("COEFFICIENT", ">SECONDS", ">STARTED FROM", ">WEIGHT", "")
	var loose []string
	for _, k := range c.Coefs {
		note := ""
		if !k.Determined {
			note = "not determined by these rows"
			loose = append(loose, k.Name)
		}
		t.add(k.Name, fmt.Sprintf("%.4g", k.Seconds), fmt.Sprintf("%.4g", k.Started), fmt.Sprintf("%.2f %%", 100*k.Weight), note)
	}
	t.write(w)
	if len(loose) > 0 {
		fmt.Fprintf(w, "\nNot determined: %s. A quarter more of each moves the error by less than %.1f %%; do not\nread them one by one, and do not use the profile for loads that differ much from this one.\n",
			strings.Join(loose, ", "), 100*tellsLeast)
	}
	if c.Unexplained {
		fmt.Fprintf(w, "\nThe model does not explain these requests. Were they of one replica that nobody else used,\nwith this KV cache (%s tokens) and this cap on running requests (%d)?\n", withCommas(c.Profile.KVTokens), c.Profile.MaxSeqs)
	}
	if c.NoCeiling {
		fmt.Fprintf(w, "\nNo ceiling is known for %q on %q: the profile was not held against one.\n", c.Profile.Model, c.Profile.Accelerator)
	}
}

// share1 writes a share with one decimal.
func share1(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
