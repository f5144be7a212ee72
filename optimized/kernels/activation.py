"""The activations of gated MLPs on a GPU, of one number in a register, and the checks of operations that have one.

For outputs of float32 every step is the reference's own, so that only exp is not the same to the bit: products that an
addition follows are kept from becoming one fused operation. For outputs of 16 bits exp and the reciprocal are the
chip's approximations, which err by a few ULPs of float32: no output shows it.
"""

from __future__ import annotations

import math

import cutlass
from cutlass import const_expr, cute

from optimized.kernels.precise import exp_of_negative, product
from reference.model.config import ACTIVATIONS


@cute.jit
def activated(
    x: cutlass.Float32,
    kind: cutlass.Constexpr[str],  # one of ACTIVATIONS
    dtype: cutlass.Constexpr[str],  # of the output
) -> cutlass.Float32:
    """act(x), in the forms of the reference, which cancel nowhere."""
    if const_expr(kind == "silu"):
        result = x * _sigmoid(x, dtype)
    elif const_expr(kind == "gelu"):
        result = x * (_erfc(x * -math.sqrt(0.5), dtype) * 0.5)
    else:
        # NaN stays NaN: a comparison with it is false.
        bounded = cutlass.Float32(1e4) if x > 1e4 else (cutlass.Float32(-1e4) if x < -1e4 else x)
        cube = product(product(product(bounded, 0.044715), bounded), bounded)
        result = x * _sigmoid(2.0 * product(bounded + cube, math.sqrt(2.0 / math.pi)), dtype)
    return result


@cute.jit
def _sigmoid(x: cutlass.Float32, dtype: cutlass.Constexpr[str]) -> cutlass.Float32:
    magnitude = cute.math.abs(x)
    if const_expr(dtype == "float32"):
        decay = exp_of_negative(-magnitude)
        result = (cutlass.Float32(1.0) if x >= 0.0 else decay) / (1.0 + decay)
    else:
        decay = cute.math.exp2(magnitude * -math.log2(math.e), approx=True)
        result = (cutlass.Float32(1.0) if x >= 0.0 else decay) * cute.math.rcp(1.0 + decay, approx=True, ftz=True)
    return result


@cute.jit
def _erfc(x: cutlass.Float32, dtype: cutlass.Constexpr[str]) -> cutlass.Float32:
    """The compiler's erfc errs by up to 4 ULPs in float32; SciPy's, which the reference calls, is a double's rounded,
    and so is this one where it shows."""
    if const_expr(dtype == "float32"):
        result = cute.math.erfc(x.to(cutlass.Float64)).to(cutlass.Float32)
    else:
        result = cute.math.erfc(x)
    return result


def require_activation(operation: str, kind: str) -> None:
    """Errors: ValueError for one that is not known."""
    if kind not in ACTIVATIONS:
        raise ValueError(f"{operation}: unknown activation {kind!r}; known are {', '.join(ACTIVATIONS)}")


def half_of(operation: str, name: str, count: int, what: str) -> int:
    """Of `count` rows or channels of a tensor, those of gate, or of up. Errors: ValueError for an odd number."""
    if count % 2:
        raise ValueError(f"{operation}: {name} has {count} {what}; gate and up must have as many as each other")
    return count // 2
