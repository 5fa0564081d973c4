// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math"
	"strings"
	"testing"
)

func TestProfilesAreValid(t *testing.T) {
	ps := Profiles()
	if len(ps) < 4 {
		t.Fatalf("%d profiles", len(ps))
	}
	for i, p := range ps {
		if err := p.Validate(); err != nil {
			t.Error(err)
		}
		if i > 0 && ps[i-1].Name >= p.Name {
			t.Errorf("%q before %q", ps[i-1].Name, p.Name)
		}
		if got, ok := Lookup(p.Name); !ok || got.Base != p.Base {
			t.Errorf("Lookup(%q) does not find it", p.Name)
		}
		if p.Source == "" || len(p.Startup) == 0 {
			t.Errorf("%s lacks a source or start-up stages", p.Name)
		}
		if len(p.Ceilings()) == 0 {
			t.Errorf("%s has no known ceiling", p.Name)
		}
		t.Logf("%s: %v", p.Name, p.Ceilings())
	}
	if _, ok := Lookup(DefaultProfile); !ok {
		t.Error("no default profile")
	}
	if _, ok := Lookup("nothing"); ok {
		t.Error("found a profile that is not there")
	}
}

func TestStepFormulas(t *testing.T) {
	p := Profile{Base: 0.01, PTok: 1e-4, PAttn: 1e-9, DSeq: 1e-5, DCtx: 1e-7}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	near("prefill", p.PrefillSeconds(1000, 1500), 1000*1e-4+1e-9*1000*1000)
	near("cached prefill is the rest of the whole", p.PrefillSeconds(1500, 1500)-p.PrefillSeconds(500, 500), p.PrefillSeconds(1000, 1500))
	near("decode", p.DecodeStepSeconds(4, 8000), 0.01+4e-5+8e-4)
	near("step", p.StepSeconds(100, 5000, 4, 8000), 0.01+4e-5+8e-4+0.01+5e-6)
	f := p.Faster(10)
	near("faster", f.StepSeconds(100, 5000, 4, 8000), p.StepSeconds(100, 5000, 4, 8000)/10)
}

func TestValidateRefuses(t *testing.T) {
	for _, tc := range []struct {
		what string
		edit func(*Profile)
		want []string
	}{
		{"too fast a prefill", func(p *Profile) { p.PTok /= 4 }, []string{"prefill of 8192 tokens", "1 x RTX 4090 compute, 165 TFLOP/s"}},
		{"too fast a decode", func(p *Profile) { p.Base /= 2 }, []string{"decode step of 1 sequences", "memory bandwidth, 1008 GB/s"}},
		{"context for free", func(p *Profile) { p.Base, p.DSeq, p.DCtx = 15.5e-3, 0, 0 }, []string{"decode step of 32 sequences", "memory bandwidth"}},
		{"more KV than memory", func(p *Profile) { p.KVTokens = 200000 }, []string{"200000 KV tokens need 26.2 GB", "leaves 7.9 GB"}},
		{"a negative time", func(p *Profile) { p.DSeq = -1 }, []string{"d_seq = -1"}},
		{"not a number", func(p *Profile) { p.Base = math.NaN() }, []string{"base = NaN"}},
		{"batch above budget", func(p *Profile) { p.MaxSeqs = 4096 }, []string{"chunk_tokens = 2048, must be in [4097;"}},
		{"two mistakes", func(p *Profile) { p.BlockTokens, p.KVTokens = 0, -1 }, []string{"block_tokens = 0", "kv_tokens = -1"}},
		{"endless stage", func(p *Profile) { p.Startup = []Stage{{"weights", math.Inf(1)}} }, []string{`stage "weights"`}},
	} {
		p, _ := Lookup("llama-3.1-8b-rtx4090")
		tc.edit(&p)
		err := p.Validate()
		for _, w := range tc.want {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want it to name %q", tc.what, err, w)
			}
		}
	}
	p, _ := Lookup("llama-3.1-8b-rtx4090")
	p.PTok, p.Accelerator = p.PTok/10, "of the future"
	if err := p.Validate(); err != nil {
		t.Errorf("unknown accelerators have no ceiling: %v", err)
	}
}
