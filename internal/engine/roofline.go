// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"strings"
)

// Accelerator is what the vendor's data sheet says of one device.
type Accelerator struct {
	Name      string
	FLOPS     float64 // dense BF16 tensor FLOP/s with FP32 accumulation
	Bandwidth float64 // memory bytes/s
	Memory    float64 // bytes
}

// Accelerators returns the devices whose ceilings are known.
func Accelerators() []Accelerator {
	return []Accelerator{
		{"A100 80GB", 312e12, 2.039e12, 80e9},
		{"B200", 2250e12, 8e12, 192e9},
		{"H100 SXM", 989e12, 3.35e12, 80e9},
		{"H200", 989e12, 4.8e12, 141e9},
		{"L4", 121e12, 0.3e12, 24e9},
		{"L40S", 362e12, 0.864e12, 48e9},
		{"MI300X", 1307e12, 5.3e12, 192e9},
		{"RTX 4090", 165.2e12, 1.008e12, 24e9},
		{"RTX PRO 6000", 503.8e12, 1.792e12, 96e9},
	}
}

// model is what the published configuration of a model says; embeddings are left
// out of the parameters that a prompt token multiplies, the output head is in the
// bytes that a decode step reads.
type model struct {
	name        string
	linear      float64 // parameters that each token passes (active experts only)
	readBytes   float64 // least bytes of weights that a decode step reads
	weightBytes float64
	attnFLOP    float64 // FLOP a (query, key) pair over all layers: 4 * layers * heads * head size
	kvBytes     float64 // bytes of KV a token
}

func models() []model {
	return []model{
		{"llama-3.1-8b", 6.98e9, 15.0e9, 16.06e9, 4 * 32 * 4096, 131072},
		{"llama-3.3-70b", 68.5e9, 139e9, 141e9, 4 * 80 * 8192, 327680},
		{"qwen3-32b", 31.2e9, 64.0e9, 65.5e9, 4 * 64 * 8192, 262144},
		{"qwen3-30b-a3b", 2.7e9, 6.0e9, 61.1e9, 4 * 48 * 4096, 98304},
	}
}

// measured is how far above a data-sheet ceiling a fitted rate may lie: fits of
// real runs end up to 2 % above it, since their coefficients trade off.
const measured = 1.05

// Ceiling is one limit that physics sets to a profile.
type Ceiling struct {
	What    string  // what the profile claims
	Limit   string  // which ceiling, with its figure
	Seconds float64 // what the profile says it takes
	Least   float64 // the least time that the accelerator needs
}

// Ceilings lists the roofline limits of the profile: a whole prompt and a decode
// step against arithmetic and memory bandwidth. It is empty where the model or the
// accelerator is not known. They are checked on whole operations and not on single
// coefficients, which a fit trades off against each other.
func (p *Profile) Ceilings() []Ceiling {
	a, m, ok := p.facts()
	if !ok {
		return nil
	}
	tp := float64(p.TensorParallel)
	flops := fmt.Sprintf("%d x %s compute, %.0f TFLOP/s", p.TensorParallel, a.Name, a.FLOPS*tp/1e12)
	bytes := fmt.Sprintf("%d x %s memory bandwidth, %.0f GB/s", p.TensorParallel, a.Name, a.Bandwidth*tp/1e9)

	prompt := min(8192, p.MaxModelLen)
	steps := (prompt + p.ChunkTokens - 1) / p.ChunkTokens
	n := float64(prompt)
	out := []Ceiling{{
		What: fmt.Sprintf("prefill of %d tokens", prompt), Limit: flops,
		Seconds: float64(steps)*p.Base + p.PrefillSeconds(prompt, prompt),
		Least:   (2*m.linear*n + m.attnFLOP*n*n/2) / (a.FLOPS * tp),
	}}
	seqs := min(32, p.MaxSeqs)
	ctx := float64(min(p.KVTokens/2, seqs*2048))
	for _, s := range []struct {
		n   int
		ctx float64
	}{{1, 0}, {seqs, ctx}} {
		out = append(out, Ceiling{
			What: fmt.Sprintf("decode step of %d sequences with %.0f tokens", s.n, s.ctx), Limit: bytes,
			Seconds: p.DecodeStepSeconds(s.n, s.ctx),
			Least:   (m.readBytes + s.ctx*m.kvBytes) / (a.Bandwidth * tp),
		})
	}
	return out
}

func (p *Profile) checkCeilings() []error {
	var errs []error
	for _, c := range p.Ceilings() {
		if c.Seconds*measured < c.Least {
			errs = append(errs, fmt.Errorf("profile %q: %s in %.3g s is faster than %s allows: at least %.3g s",
				p.Name, c.What, c.Seconds, c.Limit, c.Least))
		}
	}
	if a, m, ok := p.facts(); ok {
		if room := a.Memory*float64(p.TensorParallel) - m.weightBytes; float64(p.KVTokens)*m.kvBytes > room {
			errs = append(errs, fmt.Errorf("profile %q: %d KV tokens need %.1f GB, %d x %s memory leaves %.1f GB beside the weights",
				p.Name, p.KVTokens, float64(p.KVTokens)*m.kvBytes/1e9, p.TensorParallel, a.Name, max(room, 0)/1e9))
		}
	}
	return errs
}

func (p *Profile) facts() (Accelerator, model, bool) {
	name := strings.ToLower(p.Model)
	for _, m := range models() {
		if !strings.Contains(name, m.name) {
			continue
		}
		for _, a := range Accelerators() {
			if strings.EqualFold(a.Name, p.Accelerator) {
				return a, m, true
			}
		}
	}
	return Accelerator{}, model{}, false
}
