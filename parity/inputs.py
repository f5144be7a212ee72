"""Arrays to call operations with. Values are of order 1, so that no answer passes by being small."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from reference.formats import Array, format_named
from reference.model.config import RopeConfig
from reference.model.rope_table import rope_table

MOST_DRAWN = 1_000_003  # a prime: rows that repeat values begin at another of them each


def normal(random: np.random.Generator, *shape: int, dtype: str, scale: float = 1.0) -> Array:
    """Normally distributed, rounded to dtype. What is larger than so many values repeats them, and no row another."""
    drawn = min(prod(shape), MOST_DRAWN)
    values = (random.standard_normal(drawn, np.float32) * scale).astype(format_named(dtype).dtype)
    return np.resize(values, shape)


def weights(random: np.random.Generator, *shape: int, dtype: str) -> Array:
    """Factors around 1, of both signs here and there: weights of a norm."""
    values = 1 + 0.25 * random.standard_normal(shape, np.float32)
    return np.where(random.random(shape) < 0.1, -values, values).astype(format_named(dtype).dtype)


def strided(array: Array, row_stride: int) -> Array:
    """The same rows [T, ...], contiguous each, `row_stride` elements apart: a slice of something wider. NaN between."""
    return side_by_side([array], row_stride)[0]


def side_by_side(parts: Sequence[Array], row_stride: int) -> list[Array]:
    """The same rows [T, ...], contiguous each, as slices of one array of rows of `row_stride` elements. NaN behind."""
    lengths = [prod(part.shape[1:]) for part in parts]
    if row_stride < sum(lengths):
        raise ValueError(f"rows of {sum(lengths)} elements cannot be {row_stride} apart")
    dtype = parts[0].dtype
    wide = np.empty((max(1, len(parts[0])), row_stride), dtype)
    wide[:, sum(lengths) :] = np.nan
    slices, first = [], 0
    for part, length in zip(parts, lengths, strict=True):
        strides = (row_stride * dtype.itemsize, *part.strides[1:])
        rows = np.ndarray(part.shape, dtype, wide.view(np.uint8), first * dtype.itemsize, strides)
        rows[:] = part
        slices.append(rows)
        first += length
    return slices


def far_apart(array: Array, row_stride: int) -> Array:
    """The same rows, `row_stride` elements apart, with zeros between that take no memory where nobody looks."""
    length = prod(array.shape[1:])
    if row_stride < length:
        raise ValueError(f"rows of {length} elements cannot be {row_stride} apart")
    memory = np.zeros(max(0, len(array) - 1) * row_stride + length, array.dtype)
    contiguous = np.ascontiguousarray(array)
    rows = np.ndarray(array.shape, array.dtype, memory, 0, (row_stride * array.itemsize, *contiguous.strides[1:]))
    rows[...] = array
    return rows


@lru_cache(maxsize=8)
def angles(head_dim: int, num_positions: int) -> tuple[Array, Array]:
    """cos and sin, f32 [num_positions, head_dim / 2] each."""
    return rope_table(RopeConfig(theta=1e6), head_dim, num_positions)


def spoiled(random: np.random.Generator, rows: Array, kind: str) -> Array:
    """Rows [T, ...] with something in some of them that a kernel may stumble over.

    kind: "normal" gives the rows themselves; "nan", "inf", "zeros" fill about a fifth of them; "tiny" and "huge" scale
    all: squares of "tiny" ones are of the size of a norm's epsilon, those of "huge" ones far beyond it.
    """
    chosen = random.random(len(rows)) < 0.2
    out = rows if kind == "normal" else rows.copy()
    if kind in ("nan", "inf", "zeros"):
        out[chosen] = {"nan": np.nan, "inf": np.inf, "zeros": 0.0}[kind]
    elif kind in ("tiny", "huge"):
        factor = {"tiny": 1e-3, "huge": 1e3}[kind]
        out = (rows.astype(np.float32) * factor).astype(rows.dtype)
    elif kind != "normal":
        raise ValueError(f"unknown kind of rows {kind!r}")
    return out
