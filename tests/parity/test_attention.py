"""Faults that kernels of attention have had, here or elsewhere, are told of by the cases of both twins."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from parity.cases import paged_attention, prefill_attention, twin_named
from parity.judge import Judgement, expectations, judge
from parity.twin import Call, Config
from reference.formats import Array

SPLIT = 64  # keys that are attended to apart, before their results are put together
PAGED = paged_attention.BASE | {"lengths": [150, 37, 290], "queries": [4, 3, 1]}
PREFILL = prefill_attention.BASE | {"block_size": 16}
FAULTS = (
    "last block missing",
    "last key missing",
    "first key missing",
    "mask ends a key early",
    "mask ends a key late",
    "merged without the largest score",
    "last split not counted",
    "heads in turn",
    "weights rounded twice",
)
# Beside weights that are rounded, as the library's are, these show where scores are large, or terms do not cancel.
FAULTS_OF_PAGED = ("one key too many", "scores rounded", "weights rounded", "weights fall short")
FAULTS_OF_PREFILL = (("scores rounded", "large"), ("weights fall short", "positive"))


def judged(name: str, config: Config, fault: str = "") -> Judgement:
    """What the cases of a twin say of a call with a fault."""
    twin = twin_named(name)
    call = twin.inputs(config, np.random.default_rng(0))
    with np.errstate(all="ignore"):
        (expected,) = expectations(twin, call)
        return judge(expected, attend(call, fault))


def attend(call: Call, fault: str) -> Array:
    """Split by split, as kernels do it, in float32."""
    q, k_cache, v_cache, table, starts, lengths = call.arrays.values()
    group, block_size = q.shape[1] // k_cache.shape[1], k_cache.shape[2]
    heads = np.arange(q.shape[1])
    heads = heads % k_cache.shape[1] if fault == "heads in turn" else heads // group
    found = np.zeros(q.shape, np.float32)
    for blocks, first, end, length in zip(table, starts[:-1], starts[1:], lengths, strict=True):
        counts = {"last block missing": (length - 1) // block_size * block_size, "last key missing": length - 1}
        count = (counts | {"one key too many": length + 1}).get(fault, length)
        last = np.arange(length - (end - first), length)[:, None]  # key that each query sees
        last = last + {"mask ends a key early": -1, "mask ends a key late": 1}.get(fault, 0)
        k, v = (_keys(cache[blocks])[heads, :count].astype(np.float32) for cache in (k_cache, v_cache))
        scores = q[first:end].astype(np.float32).transpose(1, 0, 2) @ k.transpose(0, 2, 1)
        if fault == "scores rounded":
            scores = scores.astype(q.dtype).astype(np.float32)
        keys = np.arange(k.shape[1])
        hidden = (keys > last) | ((keys == 0) & (fault == "first key missing"))
        scores = np.where(hidden, -np.inf, scores * np.float32(call.constants.get("scale") or q.shape[-1] ** -0.5))
        parts = [slice(begin, begin + SPLIT) for begin in range(0, len(keys), SPLIT)]
        results = [_of_split(scores[..., part], v[:, part], q.dtype, fault) for part in parts]
        found[first:end] = _merged(results, fault).transpose(1, 0, 2)
    return found.astype(q.dtype)


def _keys(blocks: Array) -> Array:
    """[n, Nkv, bs, D] as [Nkv, n bs, D]."""
    return blocks.transpose(1, 0, 2, 3).reshape(blocks.shape[1], -1, blocks.shape[3])


def _of_split(scores: Array, v: Array, dtype: Any, fault: str) -> tuple[Array, Array, Array]:
    """(largest score, sum of weights, sum of values that they weight)."""
    largest = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(largest), 0, largest))
    total = weights.sum(axis=-1, keepdims=True)
    if fault in ("weights rounded", "weights rounded twice"):
        weights = weights.astype(dtype).astype(np.float32)
    if fault == "weights rounded twice":  # the second time to fewer digits
        weights = weights.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if fault == "weights fall short":
        weights = weights * np.float32(1 - 2.0**-8)
    return largest, total, weights @ v


def _merged(results: list[tuple[Array, Array, Array]], fault: str) -> Array:
    largest, totals, sums = (np.stack(one) for one in zip(*results, strict=True))
    most = largest.max(axis=0)
    shares = np.exp(largest - np.where(np.isinf(most), 0, most))
    if fault == "merged without the largest score":
        shares = np.ones_like(shares)
    counted = (shares * totals)[: -1 if fault == "last split not counted" and len(shares) > 1 else None]
    total = counted.sum(axis=0)
    return (shares * sums).sum(axis=0) / np.where(total == 0, 1, total)


@pytest.mark.parametrize("dtype", paged_attention.DTYPES)
@pytest.mark.parametrize(("name", "config"), [("paged_attention", PAGED), ("prefill_attention", PREFILL)])
def test_without_a_fault_it_is_right(name: str, config: Config, dtype: str) -> None:
    """Which the tests below would not tell."""
    for values in ("", "large", "positive"):
        judgement = judged(name, config | {"dtype": dtype, "values": values})
        assert judgement.ok, judgement


@pytest.mark.parametrize("dtype", paged_attention.DTYPES)
@pytest.mark.parametrize("fault", FAULTS + FAULTS_OF_PAGED)
def test_a_fault_of_paged_attention_is_told_of(fault: str, dtype: str) -> None:
    assert not judged("paged_attention", PAGED | {"dtype": dtype}, fault).ok


@pytest.mark.parametrize("dtype", prefill_attention.DTYPES)
@pytest.mark.parametrize(("fault", "values"), [*((fault, "") for fault in FAULTS), *FAULTS_OF_PREFILL])
def test_a_fault_of_prefill_attention_is_told_of(fault: str, values: str, dtype: str) -> None:
    assert not judged("prefill_attention", PREFILL | {"dtype": dtype, "values": values}, fault).ok


def test_prefill_attention_may_round_its_weights_once() -> None:
    """As the library does."""
    assert judged("prefill_attention", PREFILL, "weights rounded").ok
