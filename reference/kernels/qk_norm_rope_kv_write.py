"""What is done to q, k and v between their projection and attention, as one operation.

    q, k = qk_norm(q, k)      q, k = rope(q), rope(k)      caches = kv_write(k, v)

Rounding: three kernels after one another would round q and k twice, and so does this: to q's dtype after the norm, and
to it again after the rotation. Fusing them saves memory traffic, and changes no number. v is copied as it is.
Sources: those of `qk_norm`, `rope` and `kv_cache`.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.kv_cache import kv_write
from reference.kernels.qk_norm import qk_norm
from reference.kernels.rope import rope


def qk_norm_rope_kv_write(
    q: Array,  # [T, Nq, D]
    k: Array,  # [T, Nkv, D]
    v: Array,  # [T, Nkv, D]
    q_weight: Array,  # [D]
    k_weight: Array,  # [D]
    positions: Array,  # i32 [T], each in 0 .. P-1
    cos: Array,  # f32 [P, D/2]
    sin: Array,  # f32 [P, D/2]
    k_cache: Array,  # [B, Nkv, bs, D]
    v_cache: Array,  # [B, Nkv, bs, D]
    slot_mapping: Array,  # i32 or i64 [T]: block * bs + offset, or -1
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[Array, Array, Array]:  # (q [T, Nq, D], k_cache, v_cache), new arrays; the inputs stay as they are
    """q as attention takes it, and the caches after k and v of T tokens were written.

    Precondition of the operation, which its twin rests on and this one does not: the tokens of a sequence follow each
    other in the order of their slots, none left out; no slot is named twice; slots are below 2^31.
    """
    q, k = qk_norm(q, k, q_weight, k_weight, eps, weight_bias=weight_bias)
    q, k = (rope(x, positions, cos, sin) for x in (q, k))
    return q, *kv_write(k, v, k_cache, v_cache, slot_mapping)
