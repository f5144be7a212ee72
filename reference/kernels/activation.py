"""The gated activation of an MLP: out = act(gate) * up.

    silu(x)              = x sigmoid(x)
    gelu(x)              = x Phi(x) = x erfc(-x / sqrt 2) / 2
    gelu_pytorch_tanh(x) = x sigmoid(2 z),  z = sqrt(2 / pi) (x + 0.044715 x^3)

The last two are usually written 0.5 x (1 + erf ..) and 0.5 x (1 + tanh z). These are the same functions, without
the cancellation in 1 - 0.9999.. that costs every digit of the negative tail.

Rounding: once, after the product. transformers rounds act(gate) to the model's dtype before it multiplies by up.
Source: GLU variants, arXiv:2002.05202; GELU, arXiv:1606.08415; SiLU, arXiv:1702.03118.
"""

from __future__ import annotations

import math

import jax.scipy.special
import numpy as np
import scipy.special

from reference.formats import Array
from reference.kernels.precision import wide


def gated_activation(
    gate: Array,  # [..., I]
    up: Array,  # [..., I]
    *,
    kind: str,  # one of reference.model.config.ACTIVATIONS
) -> Array:  # [..., I], gate's dtype
    """act(gate) * up, element by element. Errors: ValueError for an activation that is not known."""
    xp = gate.__array_namespace__()
    return xp.astype(_activation(wide(gate), kind) * wide(up), gate.dtype)


def _activation(x: Array, kind: str) -> Array:
    if kind == "silu":
        return x * _sigmoid(x)
    if kind == "gelu":
        return x * (_erfc(x * -math.sqrt(0.5)) / 2.0)
    if kind == "gelu_pytorch_tanh":
        bounded = x.__array_namespace__().clip(x, -1e4, 1e4)  # x^3 must not overflow; sigmoid is 0 or 1 long before
        z = math.sqrt(2.0 / math.pi) * (bounded + 0.044715 * bounded * bounded * bounded)
        return x * _sigmoid(2.0 * z)
    raise ValueError(f"unknown activation {kind!r}")


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by the one of its two forms whose exponential cannot overflow."""
    xp = x.__array_namespace__()
    decay = xp.exp(-xp.abs(x))
    return xp.where(x >= 0.0, 1.0, decay) / (1.0 + decay)


def _erfc(x: Array) -> Array:
    # The array API has no erf.
    return scipy.special.erfc(x) if isinstance(x, np.ndarray) else jax.scipy.special.erfc(x)
