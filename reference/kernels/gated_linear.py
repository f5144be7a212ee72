"""The first half of a gated MLP as one operation: act(gate) * up, of the two projections of x.

    out[t, i] = act(g[t, i]) u[t, i],   g = x Wg^T,   u = x Wu^T                see `linear` and `gated_activation`

One weight holds both, rows of gate first, then those of up.

Rounding: one, at the end: neither g and u nor act(g) is rounded before. With a norm weight x is normalised first, and
rounded where `linear` says.
Source: GLU variants, arXiv:2002.05202.
"""

from __future__ import annotations

from reference.formats import Array, DType
from reference.kernels.activation import gated_activation
from reference.kernels.linear import product


def gated_linear(
    x: Array,  # [T, K]
    weight: Array,  # [2 I, K], gate above up
    *,
    kind: str,  # one of reference.model.config.ACTIVATIONS
    norm_weight: Array | None = None,  # [K]
    eps: float = 0.0,
    weight_bias: float = 0.0,
    rounded_to: DType | None = None,
) -> Array:  # [T, I], x's dtype
    """Project every token, and gate. eps, weight_bias, rounded_to: of the norm, see `product`."""
    xp = x.__array_namespace__()
    size = weight.shape[0] // 2
    gate_up = product(x, weight, norm_weight, eps=eps, weight_bias=weight_bias, rounded_to=rounded_to)
    return xp.astype(gated_activation(gate_up[:, :size], gate_up[:, size:], kind=kind), x.dtype)
