"""Gate and up of a mixture of experts, of each token's own choice: no rows are brought together by expert.

    out[t, k] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T),   e = expert_ids[t, k]

Rounding: one, at the end: neither gate and up nor act(gate) is rounded before. `moe_dispatch` followed by
`grouped_gated_linear` gives the same, at other places.
Source: Shazeer et al., arXiv:1701.06538; GLU variants, arXiv:2002.05202.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.activation import gated_activation
from reference.kernels.precision import wide


def routed_gated_linear(
    x: Array,  # [T, H]
    weight: Array,  # [E, 2 I, H]: gate above up
    expert_ids: Array,  # i32 [T, K]
    *,
    kind: str,  # one of reference.model.config.ACTIVATIONS
) -> Array:  # [T, K, I], x's dtype
    """Project each token by each of its experts, and gate. An id that is negative, or not below E, gives 0."""
    xp = x.__array_namespace__()
    size = weight.shape[1] // 2
    is_here = (expert_ids >= 0) & (expert_ids < weight.shape[0])
    of_pairs = wide(weight[xp.where(is_here, expert_ids, 0)])  # [T, K, 2 I, H]
    products = xp.matmul(of_pairs, wide(x)[:, None, :, None])[..., 0]
    gated = gated_activation(products[..., :size], products[..., size:], kind=kind)
    return xp.astype(xp.where(is_here[..., None], gated, 0.0), x.dtype)
