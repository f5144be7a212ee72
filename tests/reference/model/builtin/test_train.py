"""The training step on a tiny model: gradients through the serving text, overfitting, saving and loading."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from reference.formats import FLOAT32, Array
from reference.model.builtin import conversations as made
from reference.model.builtin.checkpoint import BUILTIN, initial_weights, load, named_tensors, save
from reference.model.builtin.dialogue import Template, answer_in_mode, document
from reference.model.builtin.exchanges import all_exchanges
from reference.model.builtin.greedy import GreedyModel
from reference.model.builtin.train import (
    learning_rate,
    make_step,
    optimizer,
    rounded_to_bfloat16,
    training_progress,
)
from reference.model.config import ModelConfig
from reference.model.qwen3 import Positions, forward, logits
from reference.model.rope_table import rope_table
from reference.model.tensors import checkpoint_tensors
from reference.model.weights import Weights, load_weights

LENGTH = 48


def tiny(name: str) -> ModelConfig:
    """A built-in model, smaller still, in float32."""
    config = ModelConfig.from_file(BUILTIN / name / "config.json")
    return replace(
        config,
        hidden_size=64,
        intermediate_size=128,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        sparse_layers=config.sparse_layers[:1],
        dtype=FLOAT32,
    )


@partial(jax.jit, static_argnums=1)
def all_logits(weights: Weights, config: ModelConfig, token_ids: Array) -> Array:
    cos, sin = (jnp.asarray(table) for table in rope_table(config.rope, config.head_dim, len(token_ids)))
    where = Positions(jnp.arange(len(token_ids), dtype=jnp.int32), cos, sin)
    return logits(weights, config, forward(weights, config, token_ids, where))


def assert_every_weight_has_a_gradient(first_moments: Weights) -> None:
    for path, moment in jax.tree_util.tree_leaves_with_path(first_moments):
        assert np.all(np.isfinite(moment)), path
        assert np.any(np.asarray(moment) != 0.0), path


@pytest.mark.slow  # half a minute each, most of it compilation
@pytest.mark.parametrize("name", ["dense", "moe"])
def test_overfitting_a_handful_of_questions_recalls_them_exactly(name: str) -> None:
    config = tiny(name)
    template = Template.from_directory(BUILTIN / name)
    tokenizer = Tokenizer.from_file(str(BUILTIN / name / "tokenizer.json"))
    questions = [made.question(exchange) for exchange in all_exchanges() if exchange.topic == "capital"][:4]

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    rows = [encode("".join(document(template, question, "plain"))) for question in questions]
    end = tokenizer.token_to_id("<|endoftext|>")
    tokens = np.array([(row + [end] * LENGTH)[: LENGTH + 2] for row in rows], np.int32)

    weights = initial_weights(config, seed=0)
    state = (weights, optimizer().init(weights))
    step = jax.jit(make_step(config, LENGTH), compiler_options={"xla_backend_optimization_level": 0})
    losses = []
    for number in range(60):
        state, loss = step(state, tokens, np.float32(learning_rate(number / 60, number, peak=1e-2, warmup=5)))
        losses.append({part: float(value) for part, value in loss.items()})
        assert all(np.isfinite(value) for value in losses[-1].values())
        if number == 0:
            assert_every_weight_has_a_gradient(state[1][1].mu)
    assert losses[0]["next"] > 7.0 and losses[-1]["next"] < 0.1
    assert losses[0]["mtp"] > 7.0 and losses[-1]["mtp"] < 0.2
    assert (losses[-1]["balance"] > 0.9) == (name == "moe")

    model = GreedyModel(config, rounded_to_bfloat16(state[0]))
    prompts = [encode(template.prompt_in_mode(question, "plain")) for question in questions]
    answers = model.answers(prompts, 20, tokenizer.token_to_id("<|im_end|>"), rows=4)
    for question, answer in zip(questions, answers, strict=True):
        assert tokenizer.decode(list(answer.token_ids), skip_special_tokens=False) == answer_in_mode(question, "plain")
        assert np.median(answer.margins) > 2.0
    kept = [same for answer in answers for same in answer.drafts_kept]
    assert np.mean(kept) > 0.8


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_saved_weights_give_the_logits_that_were_trained(name: str, tmp_path: Path) -> None:
    config = tiny(name)
    weights = initial_weights(config, seed=2)
    saved_config = replace(config, dtype=ModelConfig.from_file(BUILTIN / name / "config.json").dtype)
    save(tmp_path, saved_config, weights)
    loaded = load(config, tmp_path)  # bfloat16 values, computed with in float32
    token_ids = jnp.arange(5, 25, dtype=jnp.int32)
    expected = all_logits(rounded_to_bfloat16(weights), config, token_ids)
    assert np.array_equal(all_logits(loaded, config, token_ids), expected)
    assert not np.array_equal(all_logits(weights, config, token_ids), expected)


@pytest.mark.parametrize("name", ["dense", "moe"])
def test_named_tensors_undo_load_weights(name: str) -> None:
    config = tiny(name)
    random = np.random.default_rng(3)
    tensors = {
        tensor: random.normal(size=spec.shape).astype(np.float32) for tensor, spec in checkpoint_tensors(config).items()
    }
    again = named_tensors(config, load_weights(config, tensors))
    assert again.keys() == tensors.keys()
    assert all(np.array_equal(again[tensor], tensors[tensor]) for tensor in tensors)


def test_rounding_is_to_bfloat16_and_gradients_pass() -> None:
    config = tiny("dense")
    weights = initial_weights(config, seed=4)
    rounded = jax.jit(rounded_to_bfloat16)(weights)
    expected = weights.embedding.astype(jnp.bfloat16).astype(jnp.float32)
    # x + (round(x) - x) may be off by an ULP of float32, far below an ULP of bfloat16.
    np.testing.assert_allclose(rounded.embedding, expected, rtol=1e-6)
    assert not np.allclose(weights.embedding, expected, rtol=1e-6)
    gradient = jax.grad(lambda w: jnp.sum(rounded_to_bfloat16(w).norm * 3.0))(weights).norm
    assert np.all(np.asarray(gradient) == 3.0)


def test_the_rate_warms_up_and_falls() -> None:
    assert learning_rate(0.0, 0, 1.0, 10) == pytest.approx(0.1)
    assert learning_rate(0.0, 9, 1.0, 10) == pytest.approx(1.0)
    assert learning_rate(1.0, 1000, 1.0, 10) == pytest.approx(0.02)


def test_steps_are_counted_or_timed() -> None:
    assert list(training_progress(time.monotonic() + 60.0, 4)) == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 0.75)]
    assert list(training_progress(time.monotonic() + 0.03, None))[-1][1] < 1.0
