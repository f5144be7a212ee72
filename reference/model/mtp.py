"""Multi-token prediction (MTP): one small layer that guesses the token after the next, for speculative decoding.

The kind that Qwen3-Next carries. Position i knows its own final hidden state and the token that follows it:

    h_i      = fc([rms_norm(embedding[token_{i+1}]); rms_norm(hidden_i)])           [T, 2H] -> [T, H]
    h        = decoder_layer(h)                                                     causal over the positions
    logits_i = lm_head(rms_norm(h_i))                                               predicts token_{i+2}

hidden_i is the model's state after its final norm. Embedding and vocabulary head are the model's own.
Sources: DeepSeek-V3 technical report, arXiv:2412.19437, section 2.2; vLLM `qwen3_next_mtp.py` for tensor names
and the order of the two halves. transformers ignores `mtp.*`, so there is no outside oracle.
"""

from __future__ import annotations

from reference.formats import Array
from reference.kernels.embedding import embedding
from reference.kernels.rms_norm import rms_norm
from reference.model.config import ModelConfig
from reference.model.qwen3 import Positions, attend_whole, decoder_layer, project, vocabulary_head
from reference.model.weights import Weights


def mtp_logits(
    weights: Weights,
    config: ModelConfig,
    hidden: Array,  # [T, H] the residual stream after the last layer, as `qwen3.forward` gives it
    next_token_ids: Array,  # i32 [T] the token that follows each position
    positions: Positions,
) -> Array:  # f32 [T, V]
    """Errors: ValueError if the checkpoint has no MTP layer."""
    mtp = weights.mtp
    if mtp is None:
        raise ValueError("this model has no multi-token-prediction layer (num_nextn_predict_layers is 0)")
    eps = config.rms_norm_eps
    xp = hidden.__array_namespace__()
    normed = rms_norm(hidden, weights.norm, eps)
    halves = (
        rms_norm(embedding(next_token_ids, weights.embedding), mtp.embedding_norm, eps),
        rms_norm(normed, mtp.hidden_norm, eps),
    )
    x = project(xp.concat(halves, axis=-1), mtp.fc)
    for layer in mtp.layers:
        x = decoder_layer(layer, config, x, positions, attend_whole)
    return vocabulary_head(weights, rms_norm(x, mtp.norm, eps))
