"""Which tokens a draw may give: those within rounding of the reference's, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parity.cases.sample_tokens import BASE, TWIN, inputs
from parity.judge import expectations, judge
from parity.near_draws import kept, may_be_drawn, nearly_drawn
from parity.twin import Call
from reference.formats import Array
from reference.kernels.philox import uniform
from reference.kernels.sample_tokens import sample_tokens

DRAWS = 100_000
VOCAB = 128


def call_of(way: str, rows: int = 4, **config: Any) -> Call:
    return inputs(BASE | {"way": way, "rows": rows} | config, np.random.default_rng(0))


def tied(ulps: int, base: float = 2.0) -> tuple[Array, Array]:
    """Logits and uniforms of three tokens: the perturbed logit of the second is so many ULPs under the first's, and the
    third is far behind."""
    u = np.array([0.25, 0.75, 0.5], np.float32)
    noise = -np.log(-np.log(u.astype(np.float64)))
    top = np.float32(base + noise[0])
    second = np.float64(top) - ulps * np.spacing(top) - noise[1]
    return np.array([base, second, base - 9], np.float32), u


def test_a_tie_may_fall_either_way() -> None:
    for ulps in (0, 1, 3):
        assert set(may_be_drawn(*tied(ulps), top_p=1.0, min_p=0.0)) == {0, 1}


@pytest.mark.parametrize("ulps", [40, 1000, 10**6])
def test_what_is_no_tie_may_not(ulps: int) -> None:
    """The negative control: forty ULPs are no rounding."""
    assert may_be_drawn(*tied(ulps), top_p=1.0, min_p=0.0) == [0]
    assert may_be_drawn(*tied(-ulps), top_p=1.0, min_p=0.0) == [1]


def test_equal_logits_with_equal_noise_are_no_matter_of_rounding() -> None:
    logits, u = np.full(4, 1.5, np.float32), np.array([0.5, 0.9, 0.9, 0.1], np.float32)
    assert may_be_drawn(logits, u, top_p=1.0, min_p=0.0) == [1]


def test_noise_that_is_rounded_away_decides_nothing() -> None:
    """Of logits of 10^7 the noise changes no bit: all are equal, and the lowest id is right."""
    logits, u = np.full(3, 1e9, np.float32), np.array([0.3, 0.99, 0.5], np.float32)
    assert may_be_drawn(logits, u, top_p=1.0, min_p=0.0) == [0]


@pytest.mark.parametrize(("factor", "either"), [(1 - 1e-7, True), (1 + 1e-7, True), (1 - 1e-4, False), (1.0001, False)])
def test_a_token_at_the_end_of_a_nucleus(factor: float, either: bool) -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    surely, maybe = kept(logits, top_p=0.8 * factor, min_p=0.0)
    assert surely.sum() == (2 if either or factor < 1 else 3)
    assert maybe.sum() == (3 if either or factor > 1 else 2)


def test_sums_of_ones_have_no_error() -> None:
    surely, maybe = kept(np.zeros(8, np.float32), top_p=0.5, min_p=1.0)
    assert surely.tolist() == maybe.tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    ("factor", "either"), [(1 - 1e-7, True), (1 + 1e-7, True), (1 - 1e-5, False), (1.00001, False)]
)
def test_a_token_at_the_end_of_min_p(factor: float, either: bool) -> None:
    logits = np.array([0.0, -1.0], np.float32)
    surely, maybe = kept(logits, top_p=1.0, min_p=np.exp(-1) * factor)
    assert surely[1] == (not either and factor < 1)
    assert maybe[1] == (either or factor < 1)


def test_greedy_rows_have_one_right_token() -> None:
    call = call_of("greedy", logits="ties")
    assert nearly_drawn(**call.arrays, **call.constants).shape == (4, 1)


@pytest.mark.parametrize("way", ["temperature", "few", "top_p", "min_p"])
def test_another_token_than_those_fails(way: str) -> None:
    call = call_of(way)
    [one] = expectations(TWIN, call)
    assert judge(one, one.like).ok and judge(one, one.like).differing == 0
    for row in range(4):
        actual = one.like.copy()
        actual[row] = (actual[row] + 1) % BASE["vocab"]
        judgement = judge(one, actual)
        assert not judgement.ok and judgement.worst == (row,) and judgement.mismatches == 1


def test_a_tie_passes_and_is_counted() -> None:
    """Of two tokens of one row, which the same call may give."""
    call = call_of("temperature", rows=1, vocab=3)
    arrays = dict(call.arrays) | {"temperature": np.ones(1, np.float32)}
    u = uniform(arrays["seed"], arrays["position"], arrays["sample_index"], 3)[0].astype(np.float64)
    noise = -np.log(-np.log(u))
    arrays["logits"] = (3.0 - noise[None]).astype(np.float32) - np.array([[0, 0, 4]], np.float32)
    [one] = expectations(TWIN, Call(arrays, call.constants))
    other = 1 - one.like
    judgement = judge(one, other)
    assert judgement.ok and judgement.differing == 1 and judgement.mismatches == 0
    assert not judge(one, np.full_like(other, 2)).ok


def test_draws_that_disagree_are_few_and_among_those() -> None:
    """Logarithms that err by another half ULP, as those of another panel do, give another token in few of 10^5 draws,
    and none that is not listed."""
    random = np.random.default_rng(1)
    seen = 0
    for first in range(0, DRAWS, DRAWS // 10):
        rows = DRAWS // 10
        call = call_of("temperature", rows, vocab=VOCAB)
        arrays = dict(call.arrays) | {"temperature": np.ones(rows, np.float32)}
        arrays["logits"] = random.normal(0, 2, (rows, VOCAB)).astype(np.float32)
        arrays["position"] = (first + np.arange(rows)).astype(np.int32)
        own = sample_tokens(**arrays, **call.constants)
        u = uniform(arrays["seed"], arrays["position"], arrays["sample_index"], VOCAB)
        inner = -np.log(u.astype(np.float64)).astype(np.float32)
        noise = -np.log(inner.astype(np.float64)).astype(np.float32)
        other = np.argmax(arrays["logits"] + noise, axis=1)
        [differ] = np.nonzero(own != other)
        seen += len(differ)
        for row in differ:
            one = {name: array if name == "mask" else array[row : row + 1] for name, array in arrays.items()}
            assert other[row] in nearly_drawn(**one, **call.constants)[0]
    assert seen <= 5
