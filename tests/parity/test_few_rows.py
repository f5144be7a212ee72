"""A row of a product for few rows has the same bits alone and in any company, on simulated chips: rung 3 of the
design."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.library import Library
from optimized.kernels import few_rows_launch
from parity.cases import twin_named
from parity.cases.linear import optimized as linear
from parity.executors.poisoned import POISONS
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import call_of, try_case
from parity.judge import expectations
from parity.twin import Call
from reference.formats import Array
from simulators.gpu.chip import CHIPS
from simulators.gpu.gpu import Gpu

ROWS = 64
BAD = (1, 17, 40)  # rows of NaN and infinity
# Rows by number: alone, among the first of others, in another order, and beside those that are bad.
COMPANIES = ([0], [33], [0, 1], [62, 40, 5, 1, 3, 2, 8, 9, 63], [*range(0, 34, 2)], [*range(ROWS - 1, 30, -1)])
# K: with steps that are not whole, and enough of them that units begin at different ones. Several units of 16 rows.
CONFIGS: dict[str, dict[str, Any]] = {
    "linear": {"in_features": 840, "out_features": 56, "adds": "both"},
    "gated_linear": {"in_features": 840, "intermediate": 28},
    "vocabulary_head": {"in_features": 840, "vocab": 56},
}


def some_rows(call: Call, rows: Iterable[int]) -> Call:
    """The call of these rows alone."""
    chosen = list(rows)
    of_rows = {name: call.arrays[name][chosen] for name in ("x", "residual") if name in call.arrays}
    return replace(call, arrays={**call.arrays, **of_rows})


def bits_of(name: str, call: Call, executor: SimulateExecutor) -> list[Array]:
    twin = twin_named(name)
    results = executor.run_once(twin, call, expectations(twin, call), POISONS[0])
    return [np.ascontiguousarray(one).view(f"u{one.dtype.itemsize}") for one in results]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library((tmp_path_factory.mktemp("kernels"),))


@pytest.mark.parametrize(
    ("name", "arch", "norm"),
    [
        ("linear", SM_90A, False),
        ("linear", SM_100A, True),
        ("gated_linear", SM_100A, False),
        ("vocabulary_head", SM_90A, False),
    ],
)
def test_a_row_has_the_same_bits_in_any_company(name: str, arch: Arch, norm: bool, kernels: Library) -> None:
    executor = SimulateExecutor(arch, kernels, Gpu(CHIPS[arch.name]))
    corner = next(iter(twin_named(name).corners()))
    call = call_of(twin_named(name), {**corner, **CONFIGS[name], "tokens": ROWS, "norm": norm})
    call.arrays["x"][BAD, :] = np.array([np.nan, np.inf, -np.inf])[:, None]
    whole = bits_of(name, call, executor)
    assert all(len(np.unique(one)) > ROWS / 2 for one in whole), "rows differ, so that another's would be seen"
    for rows in COMPANIES:
        alike = bits_of(name, some_rows(call, rows), executor)
        for one, of_whole in zip(alike, whole, strict=True):
            assert np.array_equal(one, of_whole[rows]), f"rows {rows}"


def into_residual(*arrays: Any, **constants: Any) -> Any:
    """`linear`, whose output is its residual."""
    return linear(*arrays, **constants, out=arrays[-1])


def test_the_output_may_be_the_residual(kernels: Library) -> None:
    twin = replace(
        twin_named("linear"),
        name="linear in place",
        outputs=(replace(twin_named("linear").outputs[0], in_place="residual"),),
        optimized=f"{__name__}:into_residual",
    )
    config = {**next(iter(twin.corners())), "tokens": 9, "adds": "residual", "pdl": True}
    record = try_case(twin, config, SimulateExecutor(SM_90A, kernels))
    assert record.ok, record.reason


def test_another_order_of_the_sum_would_be_seen(kernels: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float32 results, at least; of those of 16 bits one in hundreds tells."""
    executor = SimulateExecutor(SM_90A, kernels, Gpu(CHIPS["sm_90a"]))
    corner = next(iter(twin_named("vocabulary_head").corners()))
    config = {**corner, **CONFIGS["vocabulary_head"], "tokens": 8, "gives": ["logits"]}
    call = call_of(twin_named("vocabulary_head"), config)
    before, *_ = bits_of("vocabulary_head", call, executor)
    monkeypatch.setattr(few_rows_launch, "tiles_of", lambda *_: 2)
    after, *_ = bits_of("vocabulary_head", call, executor)
    assert np.count_nonzero(before != after) > before.size / 4
