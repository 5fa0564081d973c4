# SPDX-License-Identifier: Apache-2.0
"""Makes a small model with random weights: `python3 model.py FOLDER`.

A llama of a few layers with a byte-level tokenizer and a chat template, and two
LoRA adapters beside it (FOLDER-ad1, FOLDER-ad2). What it says is noise; what it
costs, caches and reports is a real engine's.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from tokenizer import WINDOW, tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

HIDDEN, LAYERS, HEADS, RANK = 256, 4, 4, 8


def adapter(folder, seed):
    g = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        at = f"base_model.model.model.layers.{layer}.self_attn.q_proj."
        weights[at + "lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=g) * 0.1
        weights[at + "lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=g) * 0.1
    os.makedirs(folder, exist_ok=True)
    save_file(weights, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK,
                   "target_modules": ["q_proj"], "bias": "none", "inference_mode": True}, f)


def main(folder):
    torch.manual_seed(1)
    tok = tokenizer()
    config = LlamaConfig(
        vocab_size=(len(tok) + 63) // 64 * 64, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=HEADS, max_position_embeddings=WINDOW,
        pad_token_id=tok.pad_token_id, bos_token_id=tok.bos_token_id, eos_token_id=tok.eos_token_id)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tok.save_pretrained(folder)
    for n, name in enumerate(("ad1", "ad2")):
        adapter(f"{folder}-{name}", n + 2)


if __name__ == "__main__":
    main(sys.argv[1])
