// SPDX-License-Identifier: Apache-2.0

package engine

// Start-up stages in seconds. Loading and compiling follow what operators report
// for weights on local disk; see stages.
func stages(weights, compile, capture float64) []Stage {
	return []Stage{
		{"schedule", 1}, {"pull", 0}, {"weights", weights},
		{"compile", compile}, {"capture", capture}, {"warm-up", 2},
	}
}

const (
	srcFit = "fit to a public run of vLLM 0.19 (LLMServingSim measurements)"
	// KV capacities without a published figure: 0.9 of the memory, less weights
	// and 2 GB an accelerator for activations and graphs, over the bytes a token.
	srcKV = "; KV tokens from 0.9 of memory less weights and 2 GB each"
	// Derived attention and decode coefficients: attention FLOP at 45 % of peak,
	// KV reads at HBM bandwidth times 1.95, weights at bandwidth times 1.36 plus
	// 32 us a layer (BLIS regression), 20 us of host time a sequence.
	srcPhysics = "; attention and decode from FLOP and bandwidth with BLIS factors" + srcKV
)

func builtin() []Profile {
	return []Profile{
		{
			Name: "llama-3.1-8b-rtx4090", Model: "meta-llama/Llama-3.1-8B", Accelerator: "RTX 4090", TensorParallel: 1,
			Base: 18.0e-3, PTok: 90e-6, PAttn: 7.6e-10, DSeq: 34e-6, DCtx: 0.150e-6,
			KVTokens: 41408, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 256, MaxModelLen: 32768,
			LoRASlots: 4, LoRALoad: 0.05, Startup: stages(12, 25, 10),
			Source: srcFit + "; KV tokens as that engine reported",
		},
		{
			Name: "llama-3.1-8b-rtxpro6000", Model: "meta-llama/Llama-3.1-8B", Accelerator: "RTX PRO 6000", TensorParallel: 1,
			Base: 8.24e-3, PTok: 51.5e-6, PAttn: 7.5e-10, DSeq: 33e-6, DCtx: 0.105e-6,
			KVTokens: 520000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 128, MaxModelLen: 131072,
			LoRASlots: 8, LoRALoad: 0.05, Startup: stages(10, 25, 10),
			Source: srcFit + srcKV,
		},
		{
			Name: "qwen3-32b-2xrtxpro6000", Model: "Qwen/Qwen3-32B", Accelerator: "RTX PRO 6000", TensorParallel: 2,
			Base: 31.0e-3, PTok: 151e-6, PAttn: 1.8e-8, DSeq: 167e-6, DCtx: 0.082e-6,
			KVTokens: 392000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 128, MaxModelLen: 40960,
			LoRASlots: 4, LoRALoad: 0.1, Startup: stages(40, 45, 15),
			Source: srcFit + srcKV,
		},
		{
			Name: "qwen3-30b-a3b-2xrtxpro6000", Model: "Qwen/Qwen3-30B-A3B-Instruct-2507", Accelerator: "RTX PRO 6000", TensorParallel: 2,
			Base: 11.2e-3, PTok: 46.9e-6, PAttn: 9e-10, DSeq: 0.9e-6, DCtx: 0.124e-6,
			KVTokens: 1080000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 256, MaxModelLen: 262144,
			LoRASlots: 0, Startup: stages(38, 60, 15),
			Source: srcFit + ", two data-parallel ranks with expert parallelism taken as one replica" + srcKV,
		},
		{
			Name: "llama-3.1-8b-a100", Model: "meta-llama/Llama-3.1-8B", Accelerator: "A100 80GB", TensorParallel: 1,
			Base: 9.8e-3, PTok: 65.7e-6, PAttn: 3.73e-9, DSeq: 20e-6, DCtx: 0.125e-6,
			KVTokens: 412000, BlockTokens: 16, ChunkTokens: 2048, MaxSeqs: 256, MaxModelLen: 131072,
			LoRASlots: 8, LoRALoad: 0.05, Startup: stages(12, 30, 12),
			Source: "linear layers profiled by Vidur (Llama-3-8B, A100)" + srcPhysics,
		},
		{
			Name: "llama-3.1-8b-h100", Model: "meta-llama/Llama-3.1-8B", Accelerator: "H100 SXM", TensorParallel: 1,
			Base: 7.5e-3, PTok: 22.4e-6, PAttn: 1.18e-9, DSeq: 20e-6, DCtx: 0.0763e-6,
			KVTokens: 412000, BlockTokens: 16, ChunkTokens: 8192, MaxSeqs: 256, MaxModelLen: 131072,
			LoRASlots: 8, LoRALoad: 0.05, Startup: stages(10, 30, 10),
			Source: "linear layers profiled by Vidur (Llama-2-7B, H100) scaled by parameters" + srcPhysics,
		},
		{
			Name: "qwen3-32b-2xh100", Model: "Qwen/Qwen3-32B", Accelerator: "H100 SXM", TensorParallel: 2,
			Base: 15.3e-3, PTok: 51.3e-6, PAttn: 2.36e-9, DSeq: 20e-6, DCtx: 0.0763e-6,
			KVTokens: 307328, BlockTokens: 16, ChunkTokens: 8192, MaxSeqs: 256, MaxModelLen: 40960,
			LoRASlots: 4, LoRALoad: 0.1, Startup: stages(45, 50, 15),
			Source: "peak prefill 15,928 tokens/s and 307,328 KV tokens as published by llm-d" + srcPhysics,
		},
		{
			Name: "llama-3.3-70b-4xh100", Model: "meta-llama/Llama-3.3-70B-Instruct", Accelerator: "H100 SXM", TensorParallel: 4,
			Base: 20.6e-3, PTok: 64.3e-6, PAttn: 1.47e-9, DSeq: 20e-6, DCtx: 0.0477e-6,
			KVTokens: 424000, BlockTokens: 16, ChunkTokens: 8192, MaxSeqs: 256, MaxModelLen: 131072,
			LoRASlots: 4, LoRALoad: 0.2, Startup: stages(90, 70, 20),
			Source: "linear layers profiled by Vidur (Llama-2-70B, H100, TP4)" + srcPhysics,
		},
	}
}
