"""The combination of a mixture of experts: each token's rows (`moe_dispatch`), weighted and added.

    y[t] = sum over k, ascending, of weights[t, k] * rows[row_of[t, k]]

Rounding: the weights stay float32, and the sum is rounded once. transformers rounds the weights, and each expert's
weighted row, to the model's dtype before it adds them.
Source: Shazeer et al., arXiv:1701.06538; transformers `qwen3_moe`.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def moe_combine(
    rows: Array,  # [rows, H]
    row_of: Array,  # i32 [T, K]
    weights: Array,  # f32 [T, K]
) -> Array:  # [T, H]
    """y[t] = sum over k, ascending, of weights[t, k] * rows[row_of[t, k]].

    Summed in float32, rounded once to the dtype of `rows`. An unrouted (token, k) contributes 0, whatever its weight.
    """
    xp = rows.__array_namespace__()
    num_tokens, experts_per_token = row_of.shape
    total = xp.zeros((num_tokens, rows.shape[1]), dtype=wide(rows).dtype)
    for k in range(experts_per_token):
        is_routed = row_of[:, k] >= 0
        expert_row = wide(rows[xp.where(is_routed, row_of[:, k], 0)])
        total = total + xp.where(is_routed[:, None], weights[:, k, None] * expert_row, 0.0)
    return xp.astype(total, rows.dtype)
