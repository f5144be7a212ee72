"""Embedding rows are copies, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from reference.formats import DType
from reference.kernels.embedding import embedding
from tests.reference.kernels.helpers import assert_same_bits, normal
from tests.reference.kernels.torch_arrays import from_torch, to_torch


@pytest.mark.parametrize("num_tokens", [0, 1, 13])
def test_each_token_gets_its_row(run: Callable[..., Any], dtype: DType, num_tokens: int) -> None:
    table = normal(0, 11, 24, dtype=dtype)
    table[3, 5] = np.nan
    token_ids = np.random.default_rng(1).integers(0, 11, num_tokens, dtype=np.int32)
    expected = np.empty((num_tokens, 24), dtype)
    for t, token_id in enumerate(token_ids):
        expected[t] = table[token_id]
    assert_same_bits(run(embedding, token_ids, table), expected)


def test_torch_agrees(dtype: DType) -> None:
    table, token_ids = normal(0, 50, 8, dtype=dtype), np.array([49, 0, 7, 7], np.int32)
    expected = torch.nn.functional.embedding(torch.from_numpy(token_ids), to_torch(table))
    assert_same_bits(embedding(token_ids, table), from_torch(expected))


def test_an_id_beyond_the_table_is_an_error_where_it_can_be() -> None:
    with pytest.raises(IndexError):
        embedding(np.array([11], np.int32), normal(0, 11, 4))
