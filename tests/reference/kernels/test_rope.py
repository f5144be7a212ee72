"""RoPE: the tables against extended precision and transformers, the rotation against its two defining properties."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding, apply_rotary_pos_emb

from parity.ulp import oracle, rounded_once, ulp_error
from reference.formats import DType
from reference.kernels.rope import rope
from reference.model.config import RopeConfig
from reference.model.rope_table import rope_frequencies, rope_table
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch

QWEN3 = RopeConfig(1e6)
YARN = RopeConfig(1e6, "yarn", 4.0, original_max_position_embeddings=32768)
TABLE = rope_table(QWEN3, 64, 10001)
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn, short context": {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 128},
    "yarn, context beyond the longest wave": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 131072,
    },
    "yarn, tiny context": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8},
    "yarn, every field": {
        "rope_type": "yarn",
        "factor": 2.5,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.25,
    },
    "yarn, factor 1": {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096},
}


def transformers_rope(scaling: dict[str, Any], theta: float, head_dim: int) -> Qwen3RotaryEmbedding:
    return Qwen3RotaryEmbedding(
        Qwen3Config(head_dim=head_dim, max_position_embeddings=40960, rope_parameters={"rope_theta": theta, **scaling})
    )


def rope_config(scaling: dict[str, Any], theta: float) -> RopeConfig:
    fields = {("kind" if name == "rope_type" else name): value for name, value in scaling.items()}
    return RopeConfig(theta, **fields)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize(("theta", "head_dim"), [(1e6, 128), (1e4, 64)])
def test_frequencies_are_those_of_transformers(name: str, theta: float, head_dim: int) -> None:
    theirs = transformers_rope(SCALINGS[name], theta, head_dim)
    frequencies, attention_factor = rope_frequencies(rope_config(SCALINGS[name], theta), head_dim)
    assert np.allclose(frequencies, from_torch(theirs.inv_freq), rtol=1e-6, atol=0)
    assert attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_yarn_at_factor_4() -> None:
    frequencies, attention_factor = rope_frequencies(YARN, 128)
    plain, _ = rope_frequencies(QWEN3, 128)
    ratio = frequencies / plain
    turns = 32768 * plain / (2 * np.pi)
    assert attention_factor == pytest.approx(1.13863, abs=5e-6)
    assert np.all(ratio[turns > 32 * 1.25] == 1.0)
    assert np.allclose(ratio[turns < 1 / 1.25], 0.25, rtol=1e-15)
    assert np.all(np.diff(ratio) <= 0)
    assert np.count_nonzero((ratio > 0.26) & (ratio < 0.99)) > 5


def test_yarn_changes_short_prompts_too() -> None:
    cos, _ = rope_table(YARN, 128, 1)
    assert_same_bits(cos, np.full((1, 64), 0.1 * math.log(4.0) + 1.0).astype(np.float32))


def test_linear_stretches_positions() -> None:
    stretched, plain = rope_table(RopeConfig(1e6, "linear", 4.0), 64, 41), rope_table(RopeConfig(1e6), 64, 11)
    for table, expected in zip(stretched, plain, strict=True):
        assert_same_bits(table[::4], expected)
        assert not np.array_equal(table[1], expected[1])


def test_tables_are_rounded_once_from_exact_angles() -> None:
    cos, sin = rope_table(QWEN3, 128, 40961)
    positions = np.array([0, 1, 2, 1000, 32767, 40960])
    frequencies = np.longdouble(1e6) ** -(np.arange(0, 128, 2, dtype=np.longdouble) / 128)
    angles = positions[:, None].astype(np.longdouble) * frequencies
    for table, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        assert table.dtype == np.float32
        assert table.shape == (40961, 64)
        assert np.max(np.abs(table[positions] - exact) / np.spacing(np.abs(exact).astype(np.float32))) <= 0.501


def test_transformers_angles_are_off_where_the_docstring_says() -> None:
    theirs = transformers_rope(SCALINGS["default"], 1e6, 128)
    angles = np.float32(40000) * from_torch(theirs.inv_freq)
    error = np.max(np.abs(angles.astype(np.float64) - 40000 * rope_frequencies(QWEN3, 128)[0]))
    assert 1e-3 < error < 3e-3


@pytest.mark.parametrize("rope_", [RopeConfig(1e6, "dynamic", 2.0), RopeConfig(1e6, "yarn", 2.0)])
def test_what_is_not_known_is_an_error(rope_: RopeConfig) -> None:
    with pytest.raises(ValueError, match="rope scaling"):
        rope_table(rope_, 64, 8)


@pytest.mark.parametrize(("num_tokens", "head_dim"), [(0, 128), (1, 2), (7, 128)])
def test_one_rounding_away_from_the_oracle(
    run: Callable[..., Any], dtype: DType, num_tokens: int, head_dim: int
) -> None:
    cos, sin = rope_table(YARN, head_dim, 300)
    x = normal(0, num_tokens, 3, head_dim, dtype=dtype)
    positions = np.random.default_rng(1).integers(0, 300, num_tokens, dtype=np.int32)
    actual = run(rope, x, positions, cos, sin)
    assert actual.dtype == dtype
    # 64: where two products cancel, their error is large in ULPs of what is left
    assert ulp_error(actual, oracle(rope, x, positions, cos, sin)) <= rounded_once(dtype, 64)


def test_transformers_turns_the_same_way() -> None:
    x, positions = normal(0, 9, 4, 64), np.array([0, 1, 2, 3, 50, 51, 199, 7, 7], np.int32)
    theirs = transformers_rope(SCALINGS["yarn"], 1e6, 64)
    cos, sin = theirs(to_torch(x), to_torch(positions)[None])
    expected, _ = apply_rotary_pos_emb(to_torch(x)[None], to_torch(x)[None], cos, sin, unsqueeze_dim=2)
    actual = rope(x, positions, *rope_table(YARN, 64, 200))
    assert np.allclose(actual, from_torch(expected)[0], atol=5e-5)  # their angles are float32


def test_channels_are_paired_by_halves_not_by_neighbours() -> None:
    cos, sin = rope_table(QWEN3, 8, 4)
    x = np.zeros((1, 1, 8), np.float32)
    x[0, 0, 1] = 1.0
    turned = rope(x, np.array([3], np.int32), cos, sin)[0, 0]
    assert np.flatnonzero(turned).tolist() == [1, 5]
    assert turned[1] == cos[3, 1]
    assert turned[5] == sin[3, 1]


def test_position_zero_changes_nothing(run: Callable[..., Any], dtype: DType) -> None:
    x = normal(0, 3, 2, 64, dtype=dtype)
    assert_same_bits(run(rope, x, np.zeros(3, np.int32), *rope_table(QWEN3, 64, 2)), x)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), position=st.integers(0, 9999))
def test_turning_keeps_every_pairs_length(seed: int, position: int) -> None:
    x = normal(seed, 1, 2, 64).astype(np.float64)
    y = rope(x, np.array([position], np.int32), *TABLE)
    assert np.allclose(np.hypot(y[..., :32], y[..., 32:]), np.hypot(x[..., :32], x[..., 32:]), rtol=1e-6)


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), of_q=st.integers(0, 4999), of_k=st.integers(0, 4999), shift=st.integers(1, 5000))
def test_scores_depend_on_relative_position_alone(seed: int, of_q: int, of_k: int, shift: int) -> None:
    q, k = normal(seed, 1, 1, 64).astype(np.float64), normal(seed + 1, 1, 1, 64).astype(np.float64)

    def score(position_q: int, position_k: int) -> float:
        turned = [rope(x, np.array([p], np.int32), *TABLE) for x, p in ((q, position_q), (k, position_k))]
        return float(np.sum(turned[0] * turned[1]))

    size = float(np.linalg.norm(q) * np.linalg.norm(k))
    assert abs(score(of_q + shift, of_k + shift) - score(of_q, of_k)) < 1e-6 * size
    assert abs(score(of_q + 1, of_k) - score(of_q, of_k)) > 1e-6 * size  # absolute position is not ignored
