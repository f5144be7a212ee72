"""The router of a mixture of experts: which experts a token goes to, and with what weight.

    y[t] = sum over k of weights[t, k] * expert[expert_ids[t, k]](x[t])

Rounding: none after float32; transformers rounds the weights to the model's dtype.
Sources: Shazeer et al., arXiv:1701.06538; the Qwen3 technical report, arXiv:2505.09388; transformers `qwen3_moe`.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.precision import wide


def router_top_k(
    logits: Array,  # [T, E]
    k: int,
    *,
    normalize: bool,
) -> tuple[Array, Array]:  # i32 [T, K], f32 [T, K]
    """The k likeliest experts of each token in falling order, and their weights.

    weights = softmax(logits) over all E experts, in float32; with `normalize` (`norm_topk_prob`) divided by the sum
    of the k that were chosen. A tie goes to the lower id. The order is that of the logits: softmax keeps it, and so
    the ids do not depend on how a chip rounds its exponential. A row with a NaN gets NaN weights and valid ids.
    """
    xp = logits.__array_namespace__()
    logits = wide(logits)
    exponentials = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    probabilities = exponentials / xp.sum(exponentials, axis=-1, keepdims=True)
    expert_ids = xp.argsort(-logits, axis=-1, stable=True)[:, :k]
    weights = xp.take_along_axis(probabilities, expert_ids, axis=-1)
    if normalize:
        weights = weights / xp.sum(weights, axis=-1, keepdims=True)
    return xp.astype(expert_ids, xp.int32), weights
