"""Arrays to call operations with. Values are of order 1, so that no answer passes by being small."""

from __future__ import annotations

import numpy as np

from reference.formats import Array, format_named


def normal(random: np.random.Generator, *shape: int, dtype: str, scale: float = 1.0) -> Array:
    """Normally distributed, rounded to dtype."""
    return (random.standard_normal(shape, np.float32) * scale).astype(format_named(dtype).dtype)


def weights(random: np.random.Generator, *shape: int, dtype: str) -> Array:
    """Factors around 1, of both signs here and there: weights of a norm."""
    values = 1 + 0.25 * random.standard_normal(shape, np.float32)
    return np.where(random.random(shape) < 0.1, -values, values).astype(format_named(dtype).dtype)


def strided(array: Array, row_stride: int) -> Array:
    """The same rows [T, ...], contiguous each, `row_stride` elements apart: a slice of something wider. NaN between."""
    length = int(np.prod(array.shape[1:]))
    if row_stride < length:
        raise ValueError(f"rows of {length} elements cannot be {row_stride} apart")
    wide = np.full((len(array), row_stride), np.nan).astype(array.dtype)
    wide[:, :length] = array.reshape(len(array), length)
    rows = wide[:, :length]
    strides = (rows.strides[0], *array.strides[1:])
    return np.lib.stride_tricks.as_strided(rows, array.shape, strides)


def spoiled(random: np.random.Generator, rows: Array, kind: str) -> Array:
    """Rows [T, ...] with something in some of them that a kernel may stumble over.

    kind: "normal" leaves them; "nan", "inf", "zeros" fill about a fifth of the rows; "tiny" and "huge" scale all, to
    where squares underflow float32 or come near its end.
    """
    chosen = random.random(len(rows)) < 0.2
    out = rows.copy()
    if kind in ("nan", "inf", "zeros"):
        out[chosen] = {"nan": np.nan, "inf": np.inf, "zeros": 0.0}[kind]
    elif kind in ("tiny", "huge"):
        factor = {"tiny": 1e-3, "huge": 1e3}[kind]
        out = (rows.astype(np.float32) * factor).astype(rows.dtype)
    elif kind != "normal":
        raise ValueError(f"unknown kind of rows {kind!r}")
    return out
