"""QK-norm: RMSNorm over each head of q and of k, before the rotary embedding.

    q[t, n] = rms_norm(q[t, n], q_weight)      k[t, n] = rms_norm(k[t, n], k_weight)

The mean is over one head (D values), not over all heads of a token. All heads of q share one weight[D], all heads of
k another; v is not normalised. Whatever the projections do, |q . k| <= max|q_weight| max|k_weight| D: attention logits
cannot run away in training, which is why Qwen3 has it in place of the q, k, v biases of Qwen2.

Rounding: once each, as in `rms_norm`, and transformers differs as stated there.
Source: the Qwen3 technical report, arXiv:2505.09388, section 2; Dehghani et al., arXiv:2302.05442, section 2.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.rms_norm import rms_norm


def qk_norm(
    q: Array,  # [T, Nq, D]
    k: Array,  # [T, Nkv, D]
    q_weight: Array,  # [D]
    k_weight: Array,  # [D]
    eps: float,
    *,
    weight_bias: float = 0.0,
) -> tuple[Array, Array]:  # (q [T, Nq, D], k [T, Nkv, D]), each in its input's dtype
    """Normalise every head of q and of k by itself."""
    return (
        rms_norm(q, q_weight, eps, weight_bias=weight_bias),
        rms_norm(k, k_weight, eps, weight_bias=weight_bias),
    )
