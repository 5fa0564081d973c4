// SPDX-License-Identifier: Apache-2.0

// Package engine is the model of one model server: how long a step, a prefill and
// a decode take on a given accelerator, what fits into its KV cache, what a fleet
// of it carries at an objective, and how its scheduler behaves, as pure values and
// state machines driven by the caller's clock.
//
// # Step time
//
// A continuous-batching engine works in steps. Each step gives every decoding
// sequence one token and spends what is left of the token budget on prompts:
//
//	t = Base + PTok*P + PAttn*sum n*(ctx + n/2) + DSeq*decodes + DCtx*sum ctx
//
// where P prompt tokens are computed in the step, n of them for a prompt that has
// ctx tokens behind it already. The five coefficients are fitted as a set: they
// trade off against each other, so one of them alone means little.
//
// # Replica
//
// Core is the scheduler of one replica: token budget with chunked prefill, a cap
// on running sequences, paged KV blocks with prefix reuse and LRU eviction,
// preemption by recompute, LoRA slots. It jumps over decode steps in which nothing
// happens, so that a simulation costs time per event and not per token.
package engine

import (
	"errors"
	"fmt"
	"math"
	"sort"
)

// Stage is one part of a start-up, in order: schedule, pull, weights, compile,
// capture, warm-up.
type Stage struct {
	Name    string  `json:"name" yaml:"name"`
	Seconds float64 `json:"seconds" yaml:"seconds"`
}

// Profile describes one model on one kind of accelerator as an engine replica.
type Profile struct {
	Name           string `json:"name" yaml:"name"`
	Model          string `json:"model" yaml:"model"`
	Accelerator    string `json:"accelerator" yaml:"accelerator"`         // a name of Accelerators, or any other: then no ceiling is known
	TensorParallel int    `json:"tensor_parallel" yaml:"tensor_parallel"` // accelerators that share one replica, >= 1

	Base  float64 `json:"base" yaml:"base"`     // seconds a step, whatever it does
	PTok  float64 `json:"p_tok" yaml:"p_tok"`   // seconds a prompt token
	PAttn float64 `json:"p_attn" yaml:"p_attn"` // seconds a (prompt token, context token) pair
	DSeq  float64 `json:"d_seq" yaml:"d_seq"`   // seconds a decoding sequence and step
	DCtx  float64 `json:"d_ctx" yaml:"d_ctx"`   // seconds a context token of a decoding sequence and step

	KVTokens    int `json:"kv_tokens" yaml:"kv_tokens"`         // capacity of the KV cache in tokens
	BlockTokens int `json:"block_tokens" yaml:"block_tokens"`   // tokens a KV block
	ChunkTokens int `json:"chunk_tokens" yaml:"chunk_tokens"`   // token budget of a step
	MaxSeqs     int `json:"max_seqs" yaml:"max_seqs"`           // cap on running sequences; below ChunkTokens
	MaxModelLen int `json:"max_model_len" yaml:"max_model_len"` // longest prompt plus output, tokens

	LoRASlots int     `json:"lora_slots" yaml:"lora_slots"` // adapters that one batch can use; 0: no LoRA
	LoRALoad  float64 `json:"lora_load" yaml:"lora_load"`   // seconds to bring an adapter into a slot; the step waits for it

	Startup []Stage `json:"startup" yaml:"startup"` // from the decision to start until the port answers
	Source  string  `json:"source" yaml:"source"`   // where the numbers come from
}

// PrefillSeconds is the time that uncached prompt tokens cost, without the steps'
// Base: the last uncached of total prompt tokens are computed, the rest is cached.
func (p *Profile) PrefillSeconds(uncached, total int) float64 {
	n := float64(uncached)
	return n*p.PTok + p.PAttn*n*(float64(total)-n/2)
}

// DecodeStepSeconds is the time of a step that only decodes: one token for each
// of decodes sequences, which hold ctxTokens tokens together.
func (p *Profile) DecodeStepSeconds(decodes int, ctxTokens float64) float64 {
	return p.Base + p.DSeq*float64(decodes) + p.DCtx*ctxTokens
}

// StepSeconds is the time of one step that computes prefill prompt tokens, whose
// sum n*(ctx+n/2) is attn, beside decodes sequences that hold ctxTokens.
func (p *Profile) StepSeconds(prefill int, attn float64, decodes int, ctxTokens float64) float64 {
	return p.DecodeStepSeconds(decodes, ctxTokens) + p.PTok*float64(prefill) + p.PAttn*attn
}

// StartupSeconds is the sum of the start-up stages.
func (p *Profile) StartupSeconds() float64 {
	s := 0.0
	for _, st := range p.Startup {
		s += st.Seconds
	}
	return s
}

// Blocks is the number of whole KV blocks.
func (p *Profile) Blocks() int {
	if p.BlockTokens <= 0 {
		return 0
	}
	return p.KVTokens / p.BlockTokens
}

// Faster returns the profile of an imagined accelerator that is n times as fast:
// every time is divided by n, capacities stay.
func (p Profile) Faster(n float64) Profile {
	p.Base /= n
	p.PTok /= n
	p.PAttn /= n
	p.DSeq /= n
	p.DCtx /= n
	p.LoRALoad /= n
	st := make([]Stage, len(p.Startup))
	for i, s := range p.Startup {
		st[i] = Stage{Name: s.Name, Seconds: s.Seconds / n}
	}
	p.Startup = st
	return p
}

// Validate reports all that is wrong with the profile, joined: numbers outside
// their range, and rates above what the accelerator can do, with the ceiling
// named (see Ceilings). Faster profiles fail it by construction.
func (p *Profile) Validate() error {
	var errs []error
	bad := func(format string, a ...any) {
		errs = append(errs, fmt.Errorf("profile %q: "+format, append([]any{p.Name}, a...)...))
	}
	for _, c := range []struct {
		name string
		v    float64
		zero bool
	}{
		{"base", p.Base, false}, {"p_tok", p.PTok, false}, {"p_attn", p.PAttn, true},
		{"d_seq", p.DSeq, true}, {"d_ctx", p.DCtx, true}, {"lora_load", p.LoRALoad, true},
	} {
		switch {
		case math.IsNaN(c.v) || math.IsInf(c.v, 0) || c.v < 0 || (c.v == 0 && !c.zero):
			bad("%s = %v, must be a positive number of seconds", c.name, c.v)
		case c.v > 3600:
			bad("%s = %v s, must be at most 3600 s", c.name, c.v)
		}
	}
	for _, c := range []struct {
		name     string
		v, least int
	}{
		{"tensor_parallel", p.TensorParallel, 1}, {"block_tokens", p.BlockTokens, 1}, {"max_seqs", p.MaxSeqs, 1},
		{"max_model_len", p.MaxModelLen, 1}, {"chunk_tokens", p.ChunkTokens, p.MaxSeqs + 1},
		{"kv_tokens", p.KVTokens, 2 * p.BlockTokens}, {"lora_slots", p.LoRASlots, 0},
	} {
		if c.v < c.least || c.v > 1<<30 {
			bad("%s = %d, must be in [%d; %d]", c.name, c.v, c.least, 1<<30)
		}
	}
	for _, s := range p.Startup {
		if !(s.Seconds >= 0) || math.IsInf(s.Seconds, 0) {
			bad("startup stage %q takes %v s", s.Name, s.Seconds)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, p.checkCeilings()...)
	}
	return errors.Join(errs...)
}

// Profiles returns the built-in profiles sorted by name. The caller owns the slice.
func Profiles() []Profile {
	ps := builtin()
	sort.Slice(ps, func(i, j int) bool { return ps[i].Name < ps[j].Name })
	return ps
}

// Lookup returns the built-in profile of that name.
func Lookup(name string) (Profile, bool) {
	for _, p := range builtin() {
		if p.Name == name {
			return p, true
		}
	}
	return Profile{}, false
}

// DefaultProfile is the name of the profile that stands in where nothing is
// known of an engine.
const DefaultProfile = "llama-3.1-8b-rtxpro6000"
