# SPDX-License-Identifier: Apache-2.0
"""Makes a small model with random weights in one GGUF file: `python3 gguf.py FILE`.

A llama of a few layers with a byte-level tokenizer that is trained here on made-up
words. What it says is noise; what it costs and keeps in its cache is a real engine's.
Only the standard library is needed.
"""
import collections
import os
import random
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "engine"))
from prose import words  # noqa: E402

HIDDEN, LAYERS, HEADS, FEED, WINDOW, VOCAB = 64, 2, 2, 192, 8192, 1280
U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5  # types of values
ALIGN = 32


def byte_letters():
    """The letter that byte-level BPE shows for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


def train(size):
    """Merges of byte pairs, the most frequent first, up to size tokens."""
    letters = byte_letters()
    counts = collections.Counter(w for i in range(200) for w in words(i, 100).split())
    texts = [([letters[b] for b in (" " + w).encode()], n) for w, n in sorted(counts.items())]
    tokens, merges = list(letters), []
    while len(tokens) < size:
        pairs = collections.Counter()
        for text, n in texts:
            for pair in zip(text, text[1:]):
                pairs[pair] += n
        if not pairs:
            break
        a, b = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(f"{a} {b}")
        tokens.append(a + b)
        for text, _ in texts:
            i = 0
            while i < len(text) - 1:
                if text[i] == a and text[i + 1] == b:
                    text[i:i + 2] = [a + b]
                i += 1
    return tokens, merges


def string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(kind, v):
    if kind == STRING:
        return string(v)
    return struct.pack({U32: "<I", F32: "<f", I32: "<i"}[kind], v)


def field(name, kind, v):
    if isinstance(v, list):
        return string(name) + struct.pack("<IIQ", ARRAY, kind, len(v)) + b"".join(value(kind, x) for x in v)
    return string(name) + struct.pack("<I", kind) + value(kind, v)


def noise(r, n):
    """n numbers around 0 as 32-bit floats: what a byte stands for is a table."""
    table = [struct.pack("<f", (b - 127.5) / 128 * 0.05) for b in range(256)]
    drawn, out = r.randbytes(n), bytearray(4 * n)
    for i in range(4):
        out[i::4] = drawn.translate(bytes(t[i] for t in table))
    return bytes(out)


def tensors(r, vocab, end):
    """Yields (name, dimensions, bytes)."""
    ones = struct.pack("<f", 1) * HIDDEN
    yield "token_embd.weight", (HIDDEN, vocab), noise(r, HIDDEN * vocab)
    for i in range(LAYERS):
        at = f"blk.{i}."
        yield at + "attn_norm.weight", (HIDDEN,), ones
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            yield at + name + ".weight", (HIDDEN, HIDDEN), noise(r, HIDDEN * HIDDEN)
        yield at + "ffn_norm.weight", (HIDDEN,), ones
        yield at + "ffn_gate.weight", (HIDDEN, FEED), noise(r, HIDDEN * FEED)
        yield at + "ffn_up.weight", (HIDDEN, FEED), noise(r, HIDDEN * FEED)
        yield at + "ffn_down.weight", (FEED, HIDDEN), noise(r, HIDDEN * FEED)
    yield "output_norm.weight", (HIDDEN,), ones
    # Nothing speaks for the end of the text: an answer is as long as was asked for.
    out = bytearray(noise(r, HIDDEN * vocab))
    out[4 * HIDDEN * end:4 * HIDDEN * (end + 1)] = bytes(4 * HIDDEN)
    yield "output.weight", (HIDDEN, vocab), bytes(out)


def main(path):
    tokens, merges = train(VOCAB - 2)
    begin, end = len(tokens), len(tokens) + 1
    tokens += ["<s>", "</s>"]
    fields = [
        field("general.architecture", STRING, "llama"), field("general.name", STRING, "penstock-tiny"),
        field("general.file_type", U32, 0), field("llama.context_length", U32, WINDOW),
        field("llama.embedding_length", U32, HIDDEN), field("llama.block_count", U32, LAYERS),
        field("llama.feed_forward_length", U32, FEED), field("llama.attention.head_count", U32, HEADS),
        field("llama.attention.head_count_kv", U32, HEADS), field("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        field("llama.rope.dimension_count", U32, HIDDEN // HEADS), field("llama.rope.freq_base", F32, 10000.0),
        field("llama.vocab_size", U32, len(tokens)), field("tokenizer.ggml.model", STRING, "gpt2"),
        field("tokenizer.ggml.pre", STRING, "gpt-2"), field("tokenizer.ggml.tokens", STRING, tokens),
        field("tokenizer.ggml.token_type", I32, [1] * begin + [3, 3]), field("tokenizer.ggml.merges", STRING, merges),
        field("tokenizer.ggml.bos_token_id", U32, begin), field("tokenizer.ggml.eos_token_id", U32, end),
    ]
    listed, data, size = [], [], 0
    for name, dims, content in tensors(random.Random(1), len(tokens), end):
        listed.append(string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, size))
        pad = -len(content) % ALIGN
        data += [content, bytes(pad)]
        size += len(content) + pad
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(listed), len(fields)) + b"".join(fields + listed)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        f.writelines(data)
    os.replace(path + ".part", path)


if __name__ == "__main__":
    main(sys.argv[1])
