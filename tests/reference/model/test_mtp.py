"""The multi-token-prediction layer: its dataflow, in NumPy and JAX. (Trained ones are in `builtin`.)"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from reference.model.mtp import mtp_logits
from reference.model.qwen3 import Positions, attend_whole, decoder_layer, forward
from reference.model.rope_table import rope_table
from reference.model.weights import Weights, load_weights
from tests.reference.model.models import VOCAB_SIZE, random_checkpoint

LENGTH = 12


@pytest.fixture(params=["qwen3", "qwen3_moe"])
def loaded(request: pytest.FixtureRequest) -> tuple[Weights, Any, Positions]:
    config, tensors = random_checkpoint(request.param, num_nextn_predict_layers=1, num_hidden_layers=1)
    cos, sin = rope_table(config.rope, config.head_dim, LENGTH)
    return load_weights(config, tensors), config, Positions(np.arange(LENGTH, dtype=np.int32), cos, sin)


def predict(weights: Weights, config: Any, positions: Positions, tokens: np.ndarray) -> np.ndarray:
    hidden = forward(weights, config, tokens[:-1], positions)
    return mtp_logits(weights, config, hidden, tokens[1:], positions)


def test_each_position_sees_its_own_past_and_the_next_token_alone(
    loaded: tuple[Weights, Any, Positions],
) -> None:
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, LENGTH + 1).astype(np.int32)
    before = predict(*loaded, tokens)
    assert before.shape == (LENGTH, VOCAB_SIZE)
    assert before.dtype == np.float32
    changed = tokens.copy()
    changed[7] = (changed[7] + 1) % VOCAB_SIZE
    after = predict(*loaded, changed)
    np.testing.assert_allclose(after[:6], before[:6], rtol=1e-5, atol=1e-5)
    for position in range(6, LENGTH):  # position 6 reads token 7 as its next token
        assert np.abs(after[position] - before[position]).max() > 1e-3


def test_norms_and_halves_are_where_the_formula_has_them(loaded: tuple[Weights, Any, Positions]) -> None:
    weights, config, positions = loaded
    mtp = weights.mtp
    assert mtp is not None
    tokens = np.random.default_rng(3).integers(0, VOCAB_SIZE, LENGTH + 1).astype(np.int32)

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * weight

    hidden = norm(forward(weights, config, tokens[:-1], positions), weights.norm)
    halves = norm(weights.embedding[tokens[1:]], mtp.embedding_norm), norm(hidden, mtp.hidden_norm)
    x = np.concatenate(halves, axis=-1) @ mtp.fc.weight.T
    for layer in mtp.layers:
        x = decoder_layer(layer, config, x, positions, attend_whole)
    head = weights.embedding if weights.lm_head is None else weights.lm_head
    expected = norm(x, mtp.norm) @ head.T
    np.testing.assert_allclose(predict(*loaded, tokens), expected, rtol=1e-3, atol=1e-4)


def test_numpy_and_jax_are_equal(loaded: tuple[Weights, Any, Positions]) -> None:
    weights, config, positions = loaded
    tokens = np.random.default_rng(2).integers(0, VOCAB_SIZE, LENGTH + 1).astype(np.int32)
    compiled = jax.jit(lambda weights, positions, tokens: predict(weights, config, positions, tokens))
    served = compiled(jax.tree.map(jnp.asarray, weights), Positions(*map(jnp.asarray, positions)), jnp.asarray(tokens))
    np.testing.assert_allclose(np.asarray(served), predict(*loaded, tokens), rtol=2e-4, atol=2e-4)


def test_a_model_without_one_says_so() -> None:
    config, tensors = random_checkpoint("qwen3")
    with pytest.raises(ValueError, match="num_nextn_predict_layers"):
        mtp_logits(load_weights(config, tensors), config, np.zeros((1, 64)), np.zeros(1, np.int32), None)  # type: ignore[arg-type]
