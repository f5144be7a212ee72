"""The whole mixture, router to combination: against a loop over tokens, the dense formula, and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from parity.ulp import oracle
from reference.formats import Array, DType
from reference.kernels.activation import gated_activation
from reference.kernels.grouped_linear import grouped_linear
from reference.kernels.moe_combine import moe_combine
from reference.kernels.moe_dispatch import gather_rows, moe_dispatch
from reference.kernels.router_top_k import router_top_k
from tests.reference.kernels.helpers import normal, run_jax, run_numpy

Run = Callable[..., Any]


def mixture(
    x: Array, logits: Array, gate: Array, up: Array, down: Array, *, k: int = 2, tile: int = 4, normalize: bool = True
) -> Array:
    ids, weights = router_top_k(logits, k, normalize=normalize)
    dispatch = moe_dispatch(ids, logits.shape[1], tile=tile)
    rows = gather_rows(x, dispatch.src_token)
    gated = gated_activation(
        grouped_linear(rows, gate, dispatch.expert_offsets, tile=tile),
        grouped_linear(rows, up, dispatch.expert_offsets, tile=tile),
        kind="silu",
    )
    return moe_combine(grouped_linear(gated, down, dispatch.expert_offsets, tile=tile), dispatch.row_of, weights)


def example(tokens: int, dtype: DType) -> list[Array]:
    """x [T, 24], logits [T, 5], gate and up [5, 16, 24], down [5, 24, 16]; outputs are of order 1."""
    return [
        normal(0, tokens, 24, dtype=dtype),
        normal(1, tokens, 5, dtype=dtype),
        normal(2, 5, 16, 24, dtype=dtype, scale=0.4),
        normal(3, 5, 16, 24, dtype=dtype, scale=0.4),
        normal(4, 5, 24, 16, dtype=dtype, scale=0.4),
    ]


def relative_error(actual: Array, exact: Array) -> float:
    """The largest error over its row's root mean square."""
    rms = np.sqrt(np.mean(exact * exact, axis=-1, keepdims=True))
    return float(np.max(np.abs(actual.astype(float) - exact) / rms, initial=0.0))


@pytest.mark.parametrize("tokens", [0, 9])
def test_the_mixture_is_a_loop_over_tokens(run: Run, tokens: int) -> None:
    x, logits, gate, up, down = arrays = example(tokens, np.dtype(np.float32))
    exact = np.zeros((tokens, 24))
    for t in range(tokens):
        probability = np.exp(logits[t].astype(float))
        chosen = np.argsort(-probability)[:2]
        for expert in chosen:
            h = gate[expert].astype(float) @ x[t]
            h = h / (1 + np.exp(-h)) * (up[expert].astype(float) @ x[t])
            exact[t] += probability[expert] / probability[chosen].sum() * (down[expert].astype(float) @ h)
    assert relative_error(run(mixture, *arrays), exact) < 2e-6
    assert tokens == 0 or 0.3 < np.abs(exact).mean() < 3


def test_numpy_and_jax_agree_in_every_dtype(dtype: DType) -> None:
    arrays = example(9, dtype)
    exact = oracle(mixture, *arrays)
    for run in (run_numpy, run_jax):
        # Three products round in turn, and an output adds up what came of two of them.
        assert relative_error(run(mixture, *arrays), exact) < 8 * float(ml_dtypes.finfo(dtype).eps)


def test_a_token_is_the_same_in_any_company() -> None:
    arrays = example(9, np.dtype(np.float64))
    together = mixture(*arrays)
    for t in range(9):
        alone = mixture(arrays[0][t : t + 1], arrays[1][t : t + 1], *arrays[2:])
        assert np.allclose(alone[0], together[t], rtol=0, atol=1e-12)


def test_gradients_are_those_of_the_dense_formula() -> None:
    arrays = [jnp.asarray(array) for array in example(9, np.dtype(np.float32))]

    def dense(x: Array, logits: Array, gate: Array, up: Array, down: Array) -> Array:
        """Every expert for every token; the unchosen have weight 0."""
        ids, weights = router_top_k(logits, 2, normalize=True)
        dense_weights = jnp.sum(jax.nn.one_hot(ids, 5) * weights[..., None], axis=1)
        h = jax.nn.silu(jnp.einsum("th,eih->tei", x, gate)) * jnp.einsum("th,eih->tei", x, up)
        return jnp.einsum("te,tei,ehi->th", dense_weights, h, down)

    def gradients(function: Callable[..., Array]) -> Array:
        cotangent = normal(5, 9, 24)
        return jax.jit(jax.grad(lambda *a: jnp.sum(function(*a) * cotangent), argnums=range(5)))(*arrays)

    for gradient, expected in zip(gradients(mixture), gradients(dense), strict=True):
        assert np.abs(expected).mean() > 0.01
        assert np.allclose(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalize", [False, True])
def test_transformers_agrees(normalize: bool) -> None:
    config = Qwen3MoeConfig(
        hidden_size=24, moe_intermediate_size=16, num_experts=5, num_experts_per_tok=2, norm_topk_prob=normalize
    )
    block = Qwen3MoeSparseMoeBlock(config)
    x, _, gate, up, down = example(9, np.dtype(np.float32))
    router = normal(6, 5, 24)
    with torch.no_grad():
        block.gate.weight.copy_(torch.from_numpy(router))
        block.experts.gate_up_proj.copy_(torch.from_numpy(np.concatenate([gate, up], axis=1)))
        block.experts.down_proj.copy_(torch.from_numpy(down))
        expected = block(torch.from_numpy(x)[None])[0].numpy()
        logits, weights, ids = (tensor.numpy() for tensor in block.gate(torch.from_numpy(x)))
    actual_ids, actual_weights = router_top_k(logits, 2, normalize=normalize)
    assert np.array_equal(actual_ids, ids)
    assert np.allclose(actual_weights, weights, rtol=1e-5, atol=0)
    actual = mixture(x, logits, gate, up, down, normalize=normalize)
    assert np.abs(expected).mean() > 0.3
    assert np.allclose(actual, expected, rtol=1e-4, atol=1e-5)
