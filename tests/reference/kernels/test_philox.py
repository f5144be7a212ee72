"""Philox against the known answers of Random123, products against Python's integers, and the laws of the noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.formats import Array
from reference.kernels.philox import MULTIPLIERS, gumbel, philox_4x32, uniform
from tests.reference.kernels.helpers import assert_same_bits, run_jax, run_numpy

Run = Callable[..., Any]
WORD = st.integers(0, 2**32 - 1)

KNOWN_ANSWERS = [  # counter, key, answer: Random123, tests/kat_vectors, philox4x32 10
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def columns(texts: list[str]) -> list[Array]:
    """u32 [answers], one array a word."""
    return list(np.array([[int(word, 16) for word in text.split()] for text in texts], np.uint32).T)


def test_known_answers(run: Run) -> None:
    counters, keys, answers = (columns(list(texts)) for texts in zip(*KNOWN_ANSWERS, strict=True))
    actual = run(lambda *words: philox_4x32(words[:4], words[4:]), *counters, *keys)
    for word, right in zip(actual, answers, strict=True):
        assert_same_bits(word, right)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """The same in Python's integers, which have no width."""
    c, k = list(counter), list(key)
    for _ in range(10):
        first, second = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second % 2**32, first >> 32 ^ c[3] ^ k[1], first % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@given(st.lists(WORD, min_size=4, max_size=4), st.lists(WORD, min_size=2, max_size=2))
def test_words_are_those_of_unbounded_integers(counter: list[int], key: list[int]) -> None:
    arrays = [np.array([word], np.uint32) for word in (*counter, *key)]
    c0, c1, c2, c3, k0, k1 = arrays
    actual = philox_4x32((c0, c1, c2, c3), (k0, k1))
    assert [int(word[0]) for word in actual] == plain_philox(counter, key)


def rows(seeds: list[int], positions: list[int], samples: list[int]) -> tuple[Array, Array, Array]:
    seed = np.array([[s & 0xFFFFFFFF, s >> 32] for s in seeds], np.uint32)
    return seed, np.array(positions, np.int32), np.array(samples, np.int32)


@pytest.mark.parametrize("vocab_size", [1, 4, 7, 1001])
def test_each_id_has_the_word_that_the_counter_says(run: Run, vocab_size: int) -> None:
    seeds, positions, samples = [0, 2**64 - 1, 0x0123456789ABCDEF], [0, 5, 40000], [0, 127, 3]
    actual = run(uniform, *rows(seeds, positions, samples), vocab_size=vocab_size)
    assert actual.shape == (3, vocab_size) and actual.dtype == np.float32
    for r in range(3):
        key = [seeds[r] % 2**32, seeds[r] >> 32]
        for token_id in {0, vocab_size // 2, vocab_size - 1}:
            word = plain_philox([positions[r], token_id // 4, samples[r], 0], key)[token_id % 4]
            assert float(actual[r, token_id]) == (2 * (word >> 9) + 1) * 2.0**-24, "exact in float32"


def test_the_largest_vocabulary_needs_no_more_than_its_own_columns(run: Run) -> None:
    arguments = rows([7], [3], [0])
    whole = run(uniform, *arguments, vocab_size=151_936)
    assert whole.shape == (1, 151_936)
    assert_same_bits(whole[:, :151_669], run(uniform, *arguments, vocab_size=151_669))


def test_a_row_is_the_same_in_any_batch() -> None:
    seed, position, sample = rows([3, 9, 3, 3], [1, 1, 2, 1], [0, 0, 0, 1])
    together = gumbel(seed, position, sample, 50)
    for r in range(4):
        assert_same_bits(gumbel(seed[r : r + 1], position[r : r + 1], sample[r : r + 1], 50), together[r : r + 1])
    assert len({row.tobytes() for row in together}) == 4, "seed, position and sample each make another row"


@pytest.mark.parametrize("seeds", [(1, 1 << 32), (1, 1 + (1 << 32)), (1 << 63, 0)])
def test_both_words_of_the_seed_count(seeds: tuple[int, int]) -> None:
    first, second = uniform(*rows(list(seeds), [0, 0], [0, 0]), 64)
    assert not np.any(first == second)


def test_noise_is_minus_log_of_minus_log(run: Run) -> None:
    arguments = rows([11, 12], [0, 1], [0, 0])
    u = uniform(*arguments, 100_000).astype(float)
    noise = run(gumbel, *arguments, vocab_size=100_000)
    assert noise.dtype == np.float32
    assert np.max(np.abs(noise - -np.log(-np.log(u)))) < 2e-6


def test_extreme_words_give_finite_noise(run: Run) -> None:
    extremes = np.array([2.0**-24, 1 - 2.0**-24], np.float32)
    assert np.all((extremes > 0) & (extremes < 1))
    noise = run(lambda u: -u.__array_namespace__().log(-u.__array_namespace__().log(u)), extremes)
    assert -2.82 < noise[0] < -2.81 and 16.63 < noise[1] < 16.64


def test_uniforms_are_uniform_and_independent_of_their_neighbours() -> None:
    u = uniform(*rows([5], [0], [0]), 400_000).astype(float)[0]
    counts = np.bincount((u * 256).astype(int), minlength=256)
    chi_square = np.sum((counts - u.size / 256) ** 2 / (u.size / 256))
    assert chi_square < 255 + 5 * np.sqrt(2 * 255)
    for lag in (1, 2, 3, 4):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 5 / np.sqrt(u.size)


def test_no_64_bit_integers_are_needed() -> None:
    """JAX has none here, and yet gives what NumPy gives."""
    assert jnp.asarray(np.uint64(1)).dtype == np.uint32
    arguments = rows([2**64 - 1], [2**31 - 1], [127])
    assert_same_bits(run_jax(uniform, *arguments, vocab_size=64), run_numpy(uniform, *arguments, vocab_size=64))
