"""Inputs are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from parity.inputs import MOST_DRAWN, far_apart, normal, side_by_side, spoiled, strided, weights
from reference.formats import ACTIVATION_FORMATS

DTYPES = pytest.mark.parametrize("dtype", [one.name for one in ACTIVATION_FORMATS])


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@DTYPES
def test_values_are_of_order_one(random: np.random.Generator, dtype: str) -> None:
    for values in (normal(random, 50, 40, dtype=dtype), weights(random, 2000, dtype=dtype)):
        assert str(values.dtype) == dtype
        assert 0.5 < np.sqrt(np.mean(values.astype(np.float64) ** 2)) < 2
        assert (values < 0).any() and (values > 0).any()


def test_rows_of_repeated_values_are_no_copies(random: np.random.Generator) -> None:
    rows = normal(random, 3000, 1024, dtype="float16")
    assert rows.size > 3 * MOST_DRAWN
    assert len(np.unique(np.ascontiguousarray(rows[:, :8]).view("V16"))) == len(rows)


def test_rows_side_by_side(random: np.random.Generator) -> None:
    for tokens in (0, 1, 5):
        q, k = normal(random, tokens, 3, 4, dtype="bfloat16"), normal(random, tokens, 1, 4, dtype="bfloat16")
        parts = side_by_side([q, k], 18)
        assert parts[0].base is parts[1].base
        for part, whole in zip(parts, (q, k), strict=True):
            assert np.array_equal(part, whole)
            assert part.strides == (36, 8, 2) or tokens == 0
        assert np.isnan(parts[0].base[:, 16:]).all()  # type: ignore[index]
    with pytest.raises(ValueError, match="rows of 16 elements cannot be 15 apart"):
        side_by_side([q, k], 15)


@DTYPES
@pytest.mark.parametrize("shape", [(5, 8), (5, 2, 4), (1, 8), (0, 8)])
def test_strided_rows_are_the_same_rows_apart(random: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> None:
    rows = normal(random, *shape, dtype=dtype)
    apart = strided(rows, 11)
    assert apart.shape == shape and np.array_equal(apart, rows)
    if len(rows) > 1:
        assert apart.strides == (11 * rows.itemsize, *rows.strides[1:])
        between = np.lib.stride_tricks.as_strided(apart, (len(rows) - 1, 11), (11 * rows.itemsize, rows.itemsize))
        assert np.isnan(between[:, 8:]).all()


@pytest.mark.parametrize("shape", [(5, 8), (5, 2, 4), (1, 8), (0, 8)])
def test_rows_far_apart_take_no_memory(random: np.random.Generator, shape: tuple[int, ...]) -> None:
    rows = normal(random, *shape, dtype="bfloat16")
    apart = far_apart(rows, 1 << 26)
    assert apart.shape == shape and np.array_equal(apart, rows)
    assert apart.strides == (2 << 26, *rows.strides[1:]) or len(rows) == 0


def test_strided_rows_do_not_overlap(random: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="rows of 8 elements cannot be 7 apart"):
        strided(normal(random, 3, 8, dtype="float32"), 7)


@pytest.mark.parametrize(("kind", "is_so"), [("nan", np.isnan), ("inf", np.isinf), ("zeros", lambda rows: rows == 0)])
def test_some_rows_are_spoiled_whole(random: np.random.Generator, kind: str, is_so: object) -> None:
    assert callable(is_so)
    rows = normal(random, 100, 6, dtype="float16")
    spoilt = is_so(spoiled(random, rows, kind))
    assert np.array_equal(spoilt.all(axis=1), spoilt.any(axis=1))
    assert 5 < spoilt.all(axis=1).sum() < 50


def test_scaled_rows(random: np.random.Generator) -> None:
    rows = normal(random, 20, 6, dtype="float16")
    assert spoiled(random, rows, "normal").tobytes() == rows.tobytes()
    assert np.abs(spoiled(random, rows, "tiny")).max() < 0.01
    assert np.abs(spoiled(random, rows, "huge")).max() > 100
    with pytest.raises(ValueError, match="unknown kind of rows 'odd'"):
        spoiled(random, rows, "odd")
