"""Gate and up of a mixture of experts: each expert's tokens with both of its weights, and the gated activation.

    out[row] = act(x[t] Wg[e]^T) * (x[t] Wu[e]^T)    for the rows of each expert e, t = src_token[row]

Rounding: both products are accumulated in float32, the activation and the last product are computed in float32, and
there is ONE rounding, to the dtype of x. `grouped_linear` followed by `gated_activation` rounds gate and up as well.
Source: Shazeer et al., arXiv:1701.06538; GLU variants, arXiv:2002.05202.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.activation import gated_activation
from reference.kernels.grouped_linear import grouped_linear
from reference.kernels.moe_dispatch import gather_rows
from reference.kernels.precision import wide


def grouped_gated_linear(
    x: Array,  # [T, H]
    weight: Array,  # [E, 2 I, H]: gate, then up
    expert_offsets: Array,  # i32 [E + 1], multiples of tile
    src_token: Array,  # i32 [rows]: -1 on padding
    *,
    tile: int,
    kind: str,  # one of reference.model.config.ACTIVATIONS
) -> Array:  # [rows, I]
    """Gather each row's token, multiply it by its expert's gate and up, and combine the two. Padding, and rows beyond
    the last expert, give 0. Errors: ValueError for an activation that is not known."""
    xp = x.__array_namespace__()
    products = grouped_linear(wide(gather_rows(x, src_token)), weight, expert_offsets, tile=tile)  # float32
    half = weight.shape[1] // 2
    return xp.astype(gated_activation(products[:, :half], products[:, half:], kind=kind), x.dtype)
