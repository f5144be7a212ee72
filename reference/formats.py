"""Number formats and array layouts, declared once for both panels and the engine.

Only declarations: no arithmetic lives here, and nothing here needs JAX.
Sources: IEEE 754-2019 (binary16/32/64), the OCP 8-bit floating point specification (E4M3, E5M2),
the OCP microscaling specification (E8M0, E2M1), and the safetensors format for the dtype codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = Any  # an array of any namespace that follows the array API (numpy.ndarray, jax.Array)
DType = np.dtype[Any]


@dataclass(frozen=True)
class Format:
    """A number format: its usual name, NumPy dtype, safetensors code and largest finite magnitude."""

    name: str
    dtype: DType
    safetensors: str
    max: float


FLOAT64 = Format("float64", np.dtype(np.float64), "F64", float(np.finfo(np.float64).max))
FLOAT32 = Format("float32", np.dtype(np.float32), "F32", float(np.finfo(np.float32).max))
FLOAT16 = Format("float16", np.dtype(np.float16), "F16", 65504.0)
BFLOAT16 = Format("bfloat16", np.dtype(ml_dtypes.bfloat16), "BF16", float(ml_dtypes.finfo(ml_dtypes.bfloat16).max))
FLOAT8_E4M3 = Format("float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), "F8_E4M3", 448.0)
FLOAT8_E5M2 = Format("float8_e5m2", np.dtype(ml_dtypes.float8_e5m2), "F8_E5M2", 57344.0)

FORMATS = (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2)
BY_NAME = {f.name: f for f in FORMATS}
BY_SAFETENSORS = {f.safetensors: f for f in FORMATS}

# Formats a model computes in (activations, unquantized weights, KV cache).
ACTIVATION_FORMATS = (FLOAT32, FLOAT16, BFLOAT16)

# FP8 checkpoints carry one float32 factor for each block of this many rows and columns; it is MULTIPLIED.
FP8_WEIGHT_BLOCK = (128, 128)
# Their activations are scaled for each token and group of this many channels.
FP8_ACTIVATION_BLOCK = (1, 128)

# A KV cache holds K and V apart, a pair a layer, with heads leading (HND): a head's tokens are contiguous, so that
# KV can be split or merged between mismatched shardings while it is sent.
KV_LAYOUT = ("block", "kv_head", "token", "head_dim")


def format_named(name: str) -> Format:
    """The format of that name ("bfloat16" or "torch.bfloat16"). Errors: ValueError that lists the names there are."""
    try:
        return BY_NAME[name.removeprefix("torch.")]
    except KeyError:
        raise ValueError(f"unknown number format {name!r}; known are {', '.join(BY_NAME)}") from None
