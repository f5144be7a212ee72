"""The benchmark's sampling: each way that a model samples, and what torch does with the same logits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from parity.bench.kernel_peers import PEERS, Operands
from parity.bench.kernel_work import configs_of_model
from parity.cases import twin_named
from parity.executors.placement import place_all
from parity.harness import call_of
from parity.judge import in_dtype
from parity.shape import MOST_DECODES, Shape
from parity.twin import Call
from reference.formats import Array
from tests.parity.planted import to_numpy, to_torch

TINY = Shape("tiny", 64, 4, 2, 64, 96, 500, 4096, 0, 0)
TWINS = ("sample_tokens", "token_log_probs", "adjust_logits")


def calls(name: str, tokens: int) -> dict[str, Call]:
    twin = twin_named(name)
    return {way: call_of(twin, config) for way, config in configs_of_model(twin, TINY, tokens).items()}


def by_torch(name: str, call: Call, expected: tuple[Array, ...]) -> tuple[Array, ...]:
    out = tuple(to_torch(np.array(one)) for one in expected[name == "adjust_logits" :])
    operands = Operands(place_all(call.arrays, torch.device("cpu")), call.constants, out)
    result: Any = PEERS[name]["torch operations"](operands)
    return tuple(to_numpy(one) for one in (result if isinstance(result, tuple) else (result,)))


def test_each_way_is_measured_at_each_step_of_decode() -> None:
    ways = {"greedy", "qwen3", "temperature", "top_p"}
    for tokens in (1, MOST_DECODES):
        assert calls("sample_tokens", tokens).keys() == {f"sample_tokens {way}" for way in ways}
        assert calls("token_log_probs", tokens).keys() == {"token_log_probs top 20", "token_log_probs alone"}
        assert calls("adjust_logits", tokens).keys() == {"adjust_logits 200", "adjust_logits 4000"}
    for name in TWINS:
        assert calls(name, MOST_DECODES + 1) == {}


@pytest.mark.parametrize("name", TWINS)
def test_bytes_are_those_of_the_arrays(name: str) -> None:
    """Of logits that are adjusted, those that change, and those that are named and do not."""
    twin = twin_named(name)
    assert twin.bytes_moved is not None
    for config in configs_of_model(twin, TINY, 3).values():
        call = call_of(twin, config)
        results = in_dtype(twin, call)
        arrays = [*call.arrays.values(), *results]
        if name == "adjust_logits":
            arrays = [*call.arrays.values(), *results[1:]][1:]
            starts, history = call.arrays["history_start"], call.arrays["history"]
            rows = [history[first:end] for first, end in pairwise(starts)]
            arrays += [np.unique(row[row >= 0]).astype(np.int64) for row in rows]  # of 8 bytes: read and written
        assert twin.bytes_moved(config) == sum(one.nbytes for one in arrays)


@pytest.mark.parametrize("name", ["token_log_probs", "adjust_logits"])
def test_torch_does_what_the_reference_does(name: str) -> None:
    for made in calls(name, 5).values():
        arrays = dict(made.arrays)
        if name == "token_log_probs":
            arrays["token_ids"] = np.abs(arrays["token_ids"])
        else:
            arrays["repetition"] = np.minimum(arrays["repetition"], np.float32(2.0**64))  # the reference's limit
        call = Call(arrays, made.constants)
        expected = in_dtype(twin_named(name), call)
        actual = by_torch(name, call, expected)
        for one, result in zip(expected, actual, strict=True):
            assert result.shape == one.shape
            np.testing.assert_allclose(result, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["greedy", "qwen3", "temperature", "top_p"])
def test_torch_samples_from_the_same_distribution(way: str) -> None:
    """The same row again and again: tokens that the reference gives often, torch does too; and it can fail."""
    rows = 3000
    call = calls("sample_tokens", 1)[f"sample_tokens {way}"]
    arrays = {name: array if name == "mask" else np.repeat(array, rows, axis=0) for name, array in call.arrays.items()}
    arrays["position"] = np.arange(rows, dtype=np.int32)
    if way != "greedy":
        arrays["temperature"][:], arrays["top_p"][:] = 0.7, 0.9 if way != "temperature" else 1.0
    call = Call(arrays, call.constants)
    [own] = in_dtype(twin_named("sample_tokens"), call)
    torch.manual_seed(0)
    [other] = by_torch("sample_tokens", call, (own,))
    shares = [np.bincount(tokens, minlength=TINY.vocab) / rows for tokens in (own, other)]
    assert np.abs(shares[0] - shares[1]).max() < 0.04
    assert np.abs(shares[0] - np.roll(shares[1], 1)).max() > 0.05
