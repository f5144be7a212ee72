"""Inputs are what they are said to be."""

from __future__ import annotations

import numpy as np
import pytest

from parity.inputs import normal, spoiled, strided, weights
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
