"""A row of a grouped product for few rows has the same bits alone and in any company, whichever experts have rows
beside its own, and on its way through a whole mixture of experts: on simulated chips. Rung 3 of the design."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.library import Library
from optimized.kernels import few_rows_grouped_launch
from optimized.kernels.grouped_gated_linear import grouped_gated_linear
from optimized.kernels.grouped_linear import grouped_linear
from optimized.kernels.moe_dispatch import moe_dispatch
from parity.cases import twin_named
from parity.cases.grouped_linear import offsets_of
from parity.executors.poisoned import POISONS
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import call_of, try_case
from parity.inputs import normal
from parity.judge import Expectation, expectations
from parity.twin import Call, Output, Twin
from reference.formats import Array
from simulators.gpu.chip import CHIPS
from simulators.gpu.gpu import Gpu

PAIRS, EXPERTS = 45, 4
# Of experts that are hit, one has more rows than a chunk takes. K has steps that are not whole, and several of them.
CONFIG = {"pairs": PAIRS, "experts": EXPERTS, "hit": 3, "spread": "uneven", "in_features": 840, "rest": 0}
SIZES: dict[str, dict[str, Any]] = {
    "grouped_linear": {"out_features": 56},
    "grouped_gated_linear": {"out_features": 28, "tokens": PAIRS},
}
# Rows by number: alone, some of one expert, some of each, in another order; chunks are of other sizes then.
COMPANIES = ([0], [33], [44, 3, 20, 21, 1], [*range(PAIRS - 1, 4, -2)])


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library((tmp_path_factory.mktemp("kernels"),))


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def some_rows(call: Call, rows: list[int]) -> tuple[Call, list[int]]:
    """The call of these rows alone, and which they are, in the order in which they stand there: expert by expert."""
    expert = np.searchsorted(call.arrays["expert_offsets"], rows, side="right") - 1
    chosen = [row for _, row in sorted(zip(expert, rows, strict=True), key=lambda pair: pair[0])]
    by_row = "src_token" if "src_token" in call.arrays else "x"
    arrays = {
        "expert_offsets": offsets_of(np.bincount(expert, minlength=EXPERTS), 1),
        by_row: call.arrays[by_row][chosen],
        "out": call.arrays["out"][chosen],
    }
    return replace(call, arrays={**call.arrays, **arrays}), chosen


def results_of(twin: Twin, call: Call, executor: SimulateExecutor) -> Array:
    (result,) = executor.run_once(twin, call, expectations(twin, call), POISONS[0])
    return result


@pytest.mark.parametrize(("name", "arch"), [("grouped_linear", SM_90A), ("grouped_gated_linear", SM_100A)])
def test_a_row_has_the_same_bits_in_any_company(name: str, arch: Arch, kernels: Library) -> None:
    twin, executor = twin_named(name), SimulateExecutor(arch, kernels, Gpu(CHIPS[arch.name]))
    call = call_of(twin, {**next(iter(twin.corners())), **CONFIG, **SIZES[name]})
    call.arrays["x"][[1, 17, 40], :] = np.array([np.nan, np.inf, -np.inf])[:, None]
    whole = results_of(twin, call, executor)
    assert len(np.unique(whole)) > PAIRS, "rows differ, so that another's would be seen"
    for rows in COMPANIES:
        some, chosen = some_rows(call, rows)
        assert np.array_equal(bits(results_of(twin, some, executor)), bits(whole[chosen])), f"rows {rows}"


def test_another_order_of_the_sum_shows_in_some_bit(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests here would tell: units of other sizes begin their sums at other places."""
    twin, executor = twin_named("grouped_linear"), SimulateExecutor(SM_90A, kernels, Gpu(CHIPS["sm_90a"]))
    call = call_of(twin, {**next(iter(twin.corners())), **CONFIG, **SIZES["grouped_linear"]})
    whole = results_of(twin, call, executor)
    monkeypatch.setattr(few_rows_grouped_launch, "grouped_tiles_of", lambda *_: 3)
    differs = np.count_nonzero(bits(results_of(twin, call, executor)) != bits(whole))
    assert 0 < differs < whole.size / 20


TOKENS, PER_TOKEN, HIDDEN, INTERMEDIATE = 7, 3, 72, 40


def mixture(x: Any, expert_ids: Any, gate_up: Any, down: Any, *, tile: int, out: Any) -> Any:
    """Dispatch and both products, as decode runs them."""
    offsets, src_token, row_of, gathered, rows, result = out
    moe_dispatch(x, expert_ids, EXPERTS, tile=tile, out=(offsets, src_token, row_of, gathered))
    grouped_gated_linear(x, gate_up, offsets, src_token, kind="silu", pdl=True, out=rows)
    grouped_linear(rows, down, offsets, pdl=True, out=result)
    return out


NAMES = ("expert_offsets", "src_token", "row_of", "gathered", "rows", "result")
MIXTURE = Twin(
    "mixture",
    tuple(Output(name, exact=True) for name in NAMES),
    lambda: (),
    None,  # type: ignore[arg-type]
    None,  # type: ignore[arg-type]
    optimized=f"{__name__}:mixture",
)


def pairs_of(call: Call, executor: SimulateExecutor) -> Array:
    """[T, K, H]: the result of each token and each of its experts; 0 for experts that are elsewhere."""
    tokens, dtype = len(call.arrays["x"]), call.arrays["x"].dtype
    capacity = tokens * PER_TOKEN
    sizes = {"expert_offsets": (EXPERTS + 1,), "src_token": (capacity,), "row_of": (tokens, PER_TOKEN)}
    rows = {"gathered": HIDDEN, "rows": INTERMEDIATE, "result": HIDDEN}
    likes = [
        np.zeros(sizes[name], np.int32) if name in sizes else np.zeros((capacity, rows[name]), dtype) for name in NAMES
    ]
    expected = [Expectation(name, like, None, np.zeros(()), like) for name, like in zip(NAMES, likes, strict=True)]
    _, _, row_of, _, _, result = executor.run_once(MIXTURE, call, expected, POISONS[0])
    return np.where(row_of[:, :, None] >= 0, result[row_of], np.zeros((), dtype))


def test_a_token_has_the_same_bits_in_any_batch(kernels: Library) -> None:
    """Tile 1: no padding, so that nothing is computed of rows that nobody wrote, which is an error of the simulator."""
    random = np.random.default_rng(3)
    ids = np.argsort(random.random((TOKENS, EXPERTS + 1)), axis=1)[:, :PER_TOKEN].astype(np.int32)  # one is elsewhere
    arrays = {
        "x": normal(random, TOKENS, HIDDEN, dtype="bfloat16"),
        "expert_ids": ids,
        "gate_up": normal(random, EXPERTS, 2 * INTERMEDIATE, HIDDEN, dtype="bfloat16", scale=0.2),
        "down": normal(random, EXPERTS, HIDDEN, INTERMEDIATE, dtype="bfloat16", scale=0.2),
    }
    call = Call(arrays, {"tile": 1})
    executor = SimulateExecutor(SM_90A, kernels)
    whole = pairs_of(call, executor)
    assert (np.abs(whole.astype(np.float64)).max(axis=-1) > 0.01).sum() == np.count_nonzero(ids < EXPERTS)
    for tokens in ([0], [4], [6, 2, 4, 3]):
        some = replace(call, arrays={**arrays, "x": arrays["x"][tokens], "expert_ids": ids[tokens]})
        assert np.array_equal(bits(pairs_of(some, executor)), bits(whole[tokens])), f"tokens {tokens}"


# Without a dispatch. A token alone is another kernel; it has an expert elsewhere, and one twice.
ROUTED: dict[str, dict[str, Any]] = {
    "routed_gated_linear": {"out_features": 28},
    "routed_linear": {"out_features": 56, "residual": True},
}


@pytest.mark.parametrize(("name", "arch"), [("routed_gated_linear", SM_90A), ("routed_linear", SM_100A)])
def test_a_routed_token_has_the_same_bits_in_any_company(name: str, arch: Arch, kernels: Library) -> None:
    twin, executor = twin_named(name), SimulateExecutor(arch, kernels, Gpu(CHIPS[arch.name]))
    sizes = {"tokens": 21, "experts": EXPERTS, "per_token": PER_TOKEN, "in_features": 840, "routing": "even"}
    call = call_of(twin, {**next(iter(twin.corners())), **sizes, **ROUTED[name]})
    call.arrays["expert_ids"][[0, 5], 1] = -1
    call.arrays["expert_ids"][[0, 6], 2] = call.arrays["expert_ids"][[0, 6], 0]
    call.arrays["x"][[1, 17], :] = np.array([np.nan, np.inf]).reshape(2, *[1] * (call.arrays["x"].ndim - 1))
    whole = results_of(twin, call, executor)
    assert len(np.unique(whole)) > 21, "rows differ, so that another's would be seen"
    for tokens in ([0], [20], [6, 0], [12, 5, 1, 0, 19, 3, 17, 8, 4, 6]):
        of_tokens = {key: array[tokens] for key, array in call.arrays.items() if key != "weight"}
        some = replace(call, arrays={**call.arrays, **of_tokens})
        assert np.array_equal(bits(results_of(twin, some, executor)), bits(whole[tokens])), f"tokens {tokens}"


# One token that goes to the same expert each time; an expert with more pairs than a chunk takes, whose chunks blocks
# take in any order.
CROWDED = ({"tokens": 1, "experts": 1, "per_token": 20}, {"tokens": 40, "experts": 16, "per_token": 2})


@pytest.mark.parametrize("sizes", CROWDED)
@pytest.mark.parametrize("name", ["routed_gated_linear", "routed_linear"])
def test_one_expert_may_have_all_pairs(name: str, sizes: dict[str, int], kernels: Library) -> None:
    twin = twin_named(name)
    config = {**next(iter(twin.corners())), **sizes, "routing": "one", "in_features": 64, "out_features": 24}
    record = try_case(twin, config, SimulateExecutor(SM_90A, kernels))
    assert record.ok, record.reason
