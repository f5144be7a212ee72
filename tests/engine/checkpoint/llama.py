"""Llama in plain NumPy, on the tensors of a GGUF file, sharing nothing with what it is there to check.

GGUF files pair dimensions (2i, 2i + 1) of a head of q and k for rotation; the rest is Llama's paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from reference.formats import Array


def llama_logits(
    weight: Callable[[str], Array],
    token_ids: Sequence[int],
    *,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    theta: float,
    eps: float,
) -> Array:  # [T, V]
    """Logits of a whole sequence, in the dtype that `weight` gives."""
    embedding = weight("token_embd")
    x = embedding[np.asarray(token_ids)]
    length, hidden = x.shape
    head_dim = hidden // num_heads
    angles = np.outer(np.arange(length), theta ** (-np.arange(0, head_dim, 2) / head_dim))[:, None]
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    beyond = np.triu(np.full((length, length), -np.inf, x.dtype), 1)

    def norm(x: Array, gain: Array) -> Array:
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * gain

    def rotated(x: Array) -> Array:  # [T, N, D]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        out[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
        return out

    for index in range(num_layers):
        layer = f"blk.{index}"
        h = norm(x, weight(f"{layer}.attn_norm"))
        q = rotated((h @ weight(f"{layer}.attn_q").T).reshape(length, num_heads, head_dim))
        k = rotated((h @ weight(f"{layer}.attn_k").T).reshape(length, num_kv_heads, head_dim))
        v = (h @ weight(f"{layer}.attn_v").T).reshape(length, num_kv_heads, head_dim)
        k, v = (np.repeat(a, num_heads // num_kv_heads, axis=1) for a in (k, v))
        scores = np.einsum("tnd,snd->nts", q, k) / np.sqrt(head_dim).astype(x.dtype) + beyond
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = np.einsum("nts,snd->tnd", scores / scores.sum(axis=-1, keepdims=True), v)
        x = x + attended.reshape(length, hidden) @ weight(f"{layer}.attn_output").T
        h = norm(x, weight(f"{layer}.ffn_norm"))
        gate = h @ weight(f"{layer}.ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weight(f"{layer}.ffn_up").T)) @ weight(f"{layer}.ffn_down").T
    return norm(x, weight("output_norm")) @ embedding.T
