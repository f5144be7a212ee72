"""Down projections of a mixture of experts, of each token's own choice, and their weighted sum.

    out[t] = sum over k, ascending, of expert_weights[t, k] (x[t, k] W[e]^T) + residual[t],   e = expert_ids[t, k]

Rounding: one, at the end: an expert's result is not rounded before it is weighted. `grouped_linear` followed by
`moe_combine` rounds it to x's dtype.
Source: Shazeer et al., arXiv:1701.06538.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def routed_linear(
    x: Array,  # [T, K, I]
    weight: Array,  # [E, N, I]
    expert_ids: Array,  # i32 [T, K]
    expert_weights: Array,  # f32 [T, K]
    residual: Array | None = None,  # [T, N]
) -> Array:  # [T, N], x's dtype
    """Project each row by its expert, weight, and add. An id that is negative, or not below E, adds nothing, whatever
    its row and weight hold."""
    xp = x.__array_namespace__()
    is_here = (expert_ids >= 0) & (expert_ids < weight.shape[0])
    of_pairs = wide(weight[xp.where(is_here, expert_ids, 0)])  # [T, K, N, I]
    results = xp.matmul(of_pairs, wide(x)[..., None])[..., 0]
    total = xp.zeros(results[:, 0].shape, dtype=results.dtype)
    for k in range(expert_ids.shape[1]):
        total = total + xp.where(is_here[:, k, None], expert_weights[:, k, None] * results[:, k], 0.0)
    total = total if residual is None else total + wide(residual)
    return xp.astype(total, x.dtype)
