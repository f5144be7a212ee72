"""Shapes padded to a few sizes, so that little is ever compiled."""

from __future__ import annotations

import numpy as np

from reference.model.runner import bucket_length
from reference.model.sample_rows import SamplingRows, Stages

SMALLEST_HISTORY = 256  # tokens to which histories are padded; then to powers of two


def bucket_rows(count: int) -> int:
    """The padded number of rows: 1, 2, 4, 8, then as lengths of sequences."""
    return 1 << (count - 1).bit_length() if count <= 8 else bucket_length(count)


def bucket_queries(count: int) -> int:
    """The padded number of a batch's queries: 32, 128, 512, 2048, ...; batches are cut to such sizes, as a rule."""
    return max(32, 2 * 4 ** ((count - 1).bit_length() // 2))


def bucket_blocks(count: int) -> int:
    """The padded width of a block table: a power of two."""
    return max(4, 1 << (count - 1).bit_length())


def padded(array: np.ndarray, length: int, value: int) -> np.ndarray:
    """More of the first axis, filled with a value."""
    out = np.full((length, *array.shape[1:]), value, array.dtype)
    out[: len(array)] = array
    return out


def padded_rows(rows: SamplingRows, stages: Stages, num_rows: int) -> SamplingRows:
    """Sampling parameters of padded rows. What no stage reads has no width, so that it asks for no new code."""
    ones = ("temperature", "top_p", "repetition")  # the others are 0 on padding, or -1
    ids = ("bias_ids", "banned_ids", "mask_row")
    arrays = {}
    for name, value in rows._asdict().items():
        if name in ("history", "history_row", "history_is_prompt"):
            length = max(SMALLEST_HISTORY, 1 << (len(value) - 1).bit_length()) if stages.adjusts else 0
            arrays[name] = padded(value, length, num_rows if name == "history_row" else 0)
        elif name == "mask":
            arrays[name] = padded(value, bucket_rows(len(value)) if len(value) else 0, 0)
        else:
            fill = 1 if name in ones else -1 if name in ids else 0
            wide = _widened_columns(value, fill) if stages.adjusts and value.ndim == 2 and name != "seed" else value
            arrays[name] = padded(wide, num_rows, fill)
    return SamplingRows(**arrays)


def _widened_columns(array: np.ndarray, value: int) -> np.ndarray:
    out = np.full((len(array), bucket_length(max(1, array.shape[1]))), value, array.dtype)
    out[:, : array.shape[1]] = array
    return out
