"""The reference model against transformers, against float64, and NumPy against JAX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from engine.checkpoint import open_checkpoint
from reference.formats import BFLOAT16, FLOAT64, Array
from reference.kernels.attention import attention
from reference.kernels.embedding import embedding
from reference.kernels.kv_cache import kv_write
from reference.kernels.paged_attention import paged_attention
from reference.model.config import ModelConfig
from reference.model.qwen3 import Positions, attend_whole, decoder_layer, forward, logits
from reference.model.rope_table import rope_table
from reference.model.runner import JaxRunner
from reference.model.weights import Weights, load_weights
from tests.reference.model.models import SHAPES, VOCAB_SIZE, saved_model

LENGTH = 48
STEPS = 64


def prompt(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(7).integers(0, VOCAB_SIZE, length).astype(np.int32)


def at(config: ModelConfig, length: int) -> Positions:
    return Positions(np.arange(length, dtype=np.int32), *rope_table(config.rope, config.head_dim, length))


def widened(weights: Any) -> Any:
    """The same values (of a layer, or of them all) in float64, where the kernels become the oracle."""
    return jax.tree.map(lambda array: np.asarray(array).astype(np.float64), weights)


def whole_logits(weights: Weights, config: ModelConfig, token_ids: Array) -> Array:
    return logits(weights, config, forward(weights, config, token_ids, at(config, len(token_ids))))


@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = saved_model(SHAPES[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    runner = JaxRunner(checkpoint.config, checkpoint.tensors, max_model_len=LENGTH + STEPS)
    tokens = prompt().tolist()

    generated = model.generate(
        torch.tensor([tokens]), max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False, eos_token_id=None
    )[0, LENGTH:].tolist()
    assert len(generated) == STEPS
    whole = np.array(tokens + generated, np.int32)

    theirs = model(torch.from_numpy(whole[None]).long()).logits[0].detach().numpy()
    assert np.abs(theirs).max() > 1.0, "logits too small to tell anything"
    ours = np.stack(list(runner.all_logits(whole.tolist())))
    assert np.abs(ours - theirs).max() <= 1e-4 * np.abs(theirs).max()
    audited = whole_logits(load_weights(checkpoint.config, checkpoint.tensors), checkpoint.config, whole)
    assert np.abs(audited - theirs).max() <= 1e-4 * np.abs(theirs).max()

    # Causal: the row after each prefix, all in one pass. Equal at every step, they are equal when run freely.
    rows = ours[LENGTH - 1 : -1]
    second, first = np.sort(rows, axis=-1)[:, -2:].T
    decided = first - second >= 1e-3  # rung 2: a tie in float32 may fall either way; it is counted
    assert (rows.argmax(-1) == generated)[decided].all()
    assert decided.sum() >= STEPS - STEPS // 8


# A missing norm_topk_prob is a matter of the config: in arithmetic, that shape is one of the others.
@pytest.mark.parametrize("name", [name for name in SHAPES if "missing" not in name])
def test_bfloat16_keeps_the_rounding_contract(name: str, tmp_path: Path) -> None:
    """Layer by layer from equal inputs: JAX stays within twice NumPy's own error against float64, plus half an ULP.

    ULPs at the row's root mean square, for what a layer rounds on its way is as large as that.
    """
    saved_model(SHAPES[name], tmp_path, torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path)
    config = checkpoint.config
    assert config.dtype == BFLOAT16
    weights = load_weights(config, checkpoint.tensors)
    positions = at(config, LENGTH)
    compiled = jax.jit(lambda layer, x: decoder_layer(layer, config, x, positions, attend_whole))
    x = embedding(prompt(), weights.embedding)
    for layer in weights.layers:
        oracle = decoder_layer(widened(layer), config, x.astype(np.float64), positions, attend_whole)
        audited = decoder_layer(layer, config, x, positions, attend_whole)
        served = np.asarray(compiled(jax.tree.map(jnp.asarray, layer), jnp.asarray(x)))
        assert audited.dtype == served.dtype == BFLOAT16.dtype
        scale = np.maximum(np.abs(oracle), np.sqrt((oracle**2).mean(-1, keepdims=True)))
        ulp = np.exp2(np.floor(np.log2(scale)) - 7)
        error = np.abs(audited.astype(np.float64) - oracle) / ulp
        # A router's near tie sends a token to other experts in bf16 than in float64: an outlier row, not an error.
        settled = error.max(-1) < 8
        assert settled.mean() > 0.9
        bound = 2 * max(float(error[settled].max()), 0.5) + 0.5
        assert (np.abs(served.astype(np.float64) - oracle) / ulp)[settled].max() <= bound
        x = audited


@pytest.mark.parametrize("name", ["tied, one query head a KV head", "sparse, normalised"])
def test_bfloat16_is_no_farther_from_float64_than_transformers(name: str, tmp_path: Path) -> None:
    model = saved_model(SHAPES[name], tmp_path, torch.bfloat16)
    checkpoint = open_checkpoint(tmp_path)
    weights = load_weights(checkpoint.config, checkpoint.tensors)
    exact = whole_logits(widened(weights), replace(checkpoint.config, dtype=FLOAT64), prompt())
    ours = whole_logits(weights, checkpoint.config, prompt())
    theirs = model(torch.from_numpy(prompt()[None]).long()).logits[0].detach().float().numpy()
    error, their_error = (np.abs(x - exact).mean() for x in (ours, theirs))
    assert 0 < error <= their_error


@pytest.mark.parametrize("name", ["untied, biased, head_dim apart, 4 query heads a KV head", "sparse, normalised"])
@pytest.mark.parametrize("chunk", [1, 5, 16, LENGTH])
def test_chunks_over_paged_kv_give_the_whole(name: str, chunk: int, tmp_path: Path) -> None:
    """A sequence fed in chunks through scattered, poisoned KV blocks gives the logits of the whole."""
    saved_model(SHAPES[name], tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config = checkpoint.config
    weights = load_weights(config, checkpoint.tensors)
    tokens, block_size = prompt(), 16
    num_blocks = 3 * LENGTH // block_size
    table = np.random.default_rng(3).permutation(num_blocks)[: LENGTH // block_size].astype(np.int32)
    shape = (num_blocks, config.num_kv_heads, block_size, config.head_dim)
    caches = [(np.full(shape, np.nan, np.float32), np.full(shape, np.nan, np.float32)) for _ in weights.layers]
    cos, sin = rope_table(config.rope, config.head_dim, LENGTH)
    rows = []
    for start in range(0, LENGTH, chunk):
        index = np.arange(start, min(start + chunk, LENGTH), dtype=np.int32)
        slots = table[index // block_size].astype(np.int64) * block_size + index % block_size
        x = embedding(tokens[index], weights.embedding)
        for number, layer in enumerate(weights.layers):

            def attend(q: Array, k: Array, v: Array, number: int = number, index: Array = index) -> Array:
                caches[number] = kv_write(k, v, *caches[number], slots)  # noqa: B023
                ends = np.array([0, len(index)], np.int32)
                seen = np.array([index[-1] + 1], np.int32)
                return paged_attention(q, *caches[number], table[None], ends, seen, max_query_len=chunk)

            x = decoder_layer(layer, config, x, Positions(index, cos, sin), attend)
        rows.append(logits(weights, config, x))
    expected = whole_logits(weights, config, tokens)
    assert np.abs(np.concatenate(rows) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_a_long_sequence_attends_in_chunks_of_queries() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1100, heads, 8)).astype(np.float32) for heads in (4, 2, 2))
    np.testing.assert_allclose(attend_whole(q, k, v), attention(q, k, v, start=0), rtol=1e-5, atol=1e-6)
