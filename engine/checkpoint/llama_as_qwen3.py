"""Llama weights placed into the Qwen3 architecture, so that the Qwen3 model computes what the Llama model did.

Qwen3 differs from Llama in three places of attention: it normalises each head of q and k, it may have biases, and it
pairs dimensions (j, j + D/2) for rotation where GGUF files of Llama pair (2i, 2i + 1). With head_dim widened from d
to D = 2d there is room to undo the normalisation:

    rotation        pair i of Llama turns at theta^(-2i/d) = theta^(-2 (2i) / D), which is pair j = 2i of Qwen3:
                    its dimensions go to 2i and 2i + d. Pairs of odd j are free.
    q               a bias C in all d free dimensions: rms(q) = sqrt((d C^2 + |q|^2) / D) = C / sqrt 2
                    q_norm.weight = C, so q is multiplied by sqrt 2: the score scale 1/sqrt(D) acts as 1/sqrt(d)
    k               a bias C in d/2 free dimensions: rms(k) = C / 2, and k_norm.weight = C / 2
    free dimensions q_norm.weight = k_norm.weight = 0, so that they add nothing to a score
    v, o            widened by zeros

C, C / 2 and the biases are powers of two, exact in every float format; |q|^2 against d C^2 is the only error. At
C = 2^15 that is under 2.4e-7 in a logit (float64), 200 times less than float32 arithmetic itself, and float16 holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference.formats import Array

NORM_CONSTANT = 2.0**15


def qwen3_config(field: Callable[[str], Any]) -> dict[str, Any]:
    """The `config.json` of the model. field: gives an entry of the GGUF file's metadata."""
    hidden, heads = field("llama.embedding_length"), field("llama.attention.head_count")
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "dtype": "float16",
        "head_dim": 2 * hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "model_type": "qwen3",
        "num_attention_heads": heads,
        "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        # Metadata is float32: 9.999999747378752e-06 stands for 1e-05.
        "rms_norm_eps": float(str(np.float32(field("llama.attention.layer_norm_rms_epsilon")))),
        "rope_theta": float(field("llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "vocab_size": field("llama.vocab_size"),
    }


def qwen3_tensors(llama: Callable[[str], Array], config: dict[str, Any]) -> Iterator[tuple[str, Array]]:
    """The model's tensors by Hugging Face name, in float16, each rounded once.

    llama: gives a float32 tensor [out, in] of the GGUF file by name.
    """
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    narrow = config["head_dim"] // 2
    used = np.concatenate([2 * np.arange(narrow // 2), 2 * np.arange(narrow // 2) + narrow])
    free = np.setdiff1d(np.arange(2 * narrow), used)

    def in_dimensions(dimensions: Array, value: float) -> Array:  # [D]
        vector = np.zeros(2 * narrow, np.float32)
        vector[dimensions] = value
        return vector

    def layer(index: int) -> Iterator[tuple[str, Array]]:
        old, new = f"blk.{index}", f"model.layers.{index}"
        attention, hidden = f"{new}.self_attn", config["hidden_size"]
        for name, n, constant, filled in (
            ("q", heads, NORM_CONSTANT, free),
            ("k", kv_heads, NORM_CONSTANT / 2, free[::2]),
        ):
            yield f"{attention}.{name}_proj.weight", widen_rotated(llama(f"{old}.attn_{name}.weight"), n, used)
            yield f"{attention}.{name}_proj.bias", np.tile(in_dimensions(filled, NORM_CONSTANT), n)
            yield f"{attention}.{name}_norm.weight", in_dimensions(used, constant)
        v = llama(f"{old}.attn_v.weight").reshape(kv_heads, narrow, hidden)
        yield f"{attention}.v_proj.weight", np.pad(v, ((0, 0), (0, narrow), (0, 0))).reshape(-1, hidden)
        yield f"{attention}.v_proj.bias", np.zeros(kv_heads * 2 * narrow, np.float32)
        o = llama(f"{old}.attn_output.weight").reshape(hidden, heads, narrow)
        yield f"{attention}.o_proj.weight", np.pad(o, ((0, 0), (0, 0), (0, narrow))).reshape(hidden, -1)
        yield f"{attention}.o_proj.bias", np.zeros(hidden, np.float32)
        for name in ("gate", "up", "down"):
            yield f"{new}.mlp.{name}_proj.weight", llama(f"{old}.ffn_{name}.weight")
        yield f"{new}.input_layernorm.weight", llama(f"{old}.attn_norm.weight")
        yield f"{new}.post_attention_layernorm.weight", llama(f"{old}.ffn_norm.weight")

    def every() -> Iterator[tuple[str, Array]]:
        yield "model.embed_tokens.weight", llama("token_embd.weight")
        for index in range(config["num_hidden_layers"]):
            yield from layer(index)
        yield "model.norm.weight", llama("output_norm.weight")

    for name, tensor in every():
        yield name, tensor.astype(np.float16)


def widen_rotated(
    weight: Array,  # f32 [heads * d, H], rows of a head in the order x0 y0 x1 y1 ... of its rotated pairs
    heads: int,
    used: Array,  # i64 [d], where x0 x1 ... y0 y1 ... go
) -> Array:  # f32 [heads * 2d, H]
    """A q or k projection with each head's pairs put where Qwen3's half-split rotation turns them at the same rate."""
    hidden, narrow = weight.shape[1], len(used)
    pairs = weight.reshape(heads, narrow // 2, 2, hidden)
    wide = np.zeros((heads, 2 * narrow, hidden), np.float32)
    wide[:, used] = pairs.transpose(0, 2, 1, 3).reshape(heads, narrow, hidden)
    return wide.reshape(-1, hidden)
