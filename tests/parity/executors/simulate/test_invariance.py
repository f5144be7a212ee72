"""A row of a product by quack, and a query of attention, have the same bits alone, in company, and in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.library import Library
from optimized.kernels.linear_many_rows import linear_many_rows
from optimized.kernels.prefill_attention import CHOICES, prefill_attention
from optimized.libraries import FLASH_ATTENTION, QUACK, missing
from parity.cases.prefill_attention import BASE
from parity.cases.prefill_attention import inputs as attention_inputs
from parity.executors.poisoned import contiguous
from parity.executors.simulate.checked_gpu import CheckedGpu
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.program import Runtime
from parity.inputs import normal
from reference.formats import Array
from simulators.gpu.chip import H200

pytestmark = pytest.mark.skipif(missing(QUACK, FLASH_ATTENTION) is not None, reason="the libraries are not installed")


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDevice:
    return SimulatedDevice(Runtime(CheckedGpu(H200), H200), SM_90A, Library((tmp_path_factory.mktemp("kernels"),)))


def given(device: SimulatedDevice, array: Array) -> Any:
    placed = device.allocate(contiguous("input", array.shape, array.dtype), is_initialized=True)
    placed.fill(array)
    return placed.view


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint16)


def test_rows_of_a_product(device: SimulatedDevice) -> None:
    """Of any tiles, too: the sum over k is one, in order."""
    random = np.random.default_rng(0)
    x, weight = normal(random, 140, 200, dtype="bfloat16"), normal(random, 72, 200, dtype="bfloat16")
    order = random.permutation(len(x))

    def product(rows: Array, tiles: str) -> Array:
        with device.memory(0xFF):
            out = linear_many_rows(given(device, rows), given(device, weight), choice=f"quack {tiles}")
            return bits(out.array.copy())

    tilings = "128x192 2x1 pingpong", "128x64 1x1 pingpong"
    whole = product(x, tilings[0])
    assert len(np.unique(whole)) > 1000
    assert np.array_equal(whole[133:134], product(x[133:134], tilings[0]))
    assert np.array_equal(whole[order], product(x[order], tilings[0]))
    assert np.array_equal(whole, product(x, tilings[1]))


def test_queries_of_a_chunk(device: SimulatedDevice) -> None:
    """Those of the last 60 tokens, as a chunk of their own and as the end of a larger one, beside another request; and
    by each choice, since what `diptych tune` has measured may make another for another number of tokens."""
    call = attention_inputs(BASE | {"requests": [[150, 200], [20, 20]]}, np.random.default_rng(0))
    arrays = dict(call.arrays)

    def attended(choice: str | None = None, **changed: Array) -> Array:
        with device.memory(0xFF):
            out = prefill_attention(*(given(device, array) for array in (arrays | changed).values()), choice=choice)
            return bits(out.array.copy())

    whole = attended()
    starts, lens = np.array([0, 60], np.int32), arrays["seq_lens"][:1]
    part = attended(
        q=arrays["q"][90:150], block_table=arrays["block_table"][:1].copy(), query_start=starts, seq_lens=lens
    )
    assert np.array_equal(whole[90:150], part)
    assert not np.array_equal(whole[89:149], part)
    for choice in CHOICES:
        assert np.array_equal(whole, attended(choice)), choice
