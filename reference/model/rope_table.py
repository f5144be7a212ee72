"""The rotations of every position of a model: constants, computed once on the host, for both panels.

    angle = position * f_i,   f_i = theta ^ (-2 i / D)

For longer contexts than a model was trained on:

- "linear" divides every f_i by `factor`;
- "yarn" divides by `factor` only the f_i that turn fewer than `beta_slow` times in the original context, leaves alone
  those that turn more than `beta_fast` times, and ramps between; cos and sin are multiplied by an attention factor
  (0.1 ln(factor) + 1 unless given), so that q . k is multiplied by its square. It is static: short prompts change too.

Rounding: float64, and one to float32, with the attention factor already in.

Where transformers differs: it computes f_i and the angles in float32 (at position 40,000 angles are off by up to 2e-3).
Source: RoFormer, arXiv:2104.09864; linear: arXiv:2306.15595; YaRN: arXiv:2309.00071 and transformers
`_compute_yarn_parameters` (truncate=True).
"""

from __future__ import annotations

import math

import numpy as np

from reference.formats import Array
from reference.model.config import RopeConfig


def rope_table(rope: RopeConfig, head_dim: int, num_positions: int) -> tuple[Array, Array]:
    """cos and sin of every angle, f32 [num_positions, head_dim / 2] each, in NumPy."""
    frequencies, attention_factor = rope_frequencies(rope, head_dim)
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * attention_factor).astype(np.float32), (np.sin(angles) * attention_factor).astype(
        np.float32
    )


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Radians a position, f64 [head_dim / 2], falling; and the factor that cos and sin are multiplied by.

    Errors: ValueError for a kind that is none of "default", "linear" and "yarn", or YaRN without its original context.
    """
    frequencies = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.kind == "default":
        return frequencies, 1.0
    if rope.kind == "linear":
        return frequencies / rope.factor, 1.0
    if rope.kind != "yarn" or rope.original_max_position_embeddings is None:
        raise ValueError(
            f"rope scaling needs kind 'default', 'linear', or 'yarn' with its original context; got {rope}"
        )
    kept = _yarn_kept(rope, head_dim, rope.original_max_position_embeddings)
    return frequencies * kept + frequencies / rope.factor * (1.0 - kept), _yarn_attention_factor(rope)


def _yarn_kept(rope: RopeConfig, head_dim: int, context: int) -> Array:
    """How much of each frequency YaRN keeps: 1 for fast ones, 0 for slow ones, a ramp between; f64 [head_dim / 2]."""

    def channel_that_turns(times: float) -> float:
        # solves context * theta^(-2 i / D) = 2 pi times for i
        return head_dim * math.log(context / (2.0 * math.pi * times)) / (2.0 * math.log(rope.theta))

    first = max(math.floor(channel_that_turns(rope.beta_fast)), 0)
    last = min(math.ceil(channel_that_turns(rope.beta_slow)), head_dim - 1)
    width = last - first if last != first else 0.001  # transformers' guard against a ramp of no width
    return 1.0 - np.clip((np.arange(head_dim // 2, dtype=np.float64) - first) / width, 0.0, 1.0)


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1.0 else 1.0
