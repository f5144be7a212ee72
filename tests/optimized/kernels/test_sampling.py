"""Sampling, its log-probabilities and its penalties: a row's bits do not depend on its company, and tensors of no or
one element may have any strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from optimized.compile.arch import SM_90A
from optimized.compile.library import Library
from optimized.kernels.adjust_logits import adjust_logits
from optimized.kernels.row_cluster import cluster_of, longest_row, slice_of
from optimized.kernels.sample_part import MOST_ELEMENTS, parts_of
from optimized.kernels.sample_part import slice_of as slice_of_part
from optimized.kernels.sample_tokens import sample_tokens
from optimized.kernels.token_log_probs import token_log_probs
from parity.cases import adjust_logits as adjust_cases
from parity.cases import sample_tokens as cases
from parity.cases import token_log_probs as log_probs_cases
from parity.executors.poisoned import Layout, contiguous
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.program import Runtime
from parity.twin import Call, Config, as_tuple
from reference.formats import Array
from reference.kernels.sample_tokens import sample_tokens as reference
from reference.serving.runner import UNUSABLE_LOGITS
from simulators.gpu.chip import CHIPS
from simulators.gpu.gpu import Gpu

VOCAB = 4500  # two blocks a row
TWO_PARTS = MOST_ELEMENTS + 4


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDevice:
    chip = CHIPS["sm_90a"]
    return SimulatedDevice(Runtime(Gpu(chip), chip), SM_90A, Library((tmp_path_factory.mktemp("kernels"),)))


def run(
    device: SimulatedDevice,
    operation: Callable[..., Any],
    arrays: dict[str, Array],
    strides: dict[str, tuple[int, ...]] | None = None,
    **constants: Any,
) -> list[Array]:
    """strides: of tensors of no or one element along an axis."""
    with device.memory(0xFF):
        placed = []
        for name, array in arrays.items():
            layout = contiguous(name, array.shape, array.dtype)
            if strides and name in strides:
                layout = Layout(name, array.shape, strides[name], array.dtype)
            placed.append(device.allocate(layout, is_initialized=True))
            if array.size:
                placed[-1].fill(array)
        results = as_tuple(operation(*(one.view for one in placed), **constants))
        return [result.array.copy() for result in results]


def call(module: Any, **config: Any) -> Call:
    made: Call = module.inputs(module.BASE | {"vocab": VOCAB} | config, np.random.default_rng(3))
    return made


def rows_of(arrays: dict[str, Array], rows: Sequence[int]) -> dict[str, Array]:
    """The call of these rows alone, in this order."""
    return {name: array if name == "mask" else array[list(rows)] for name, array in arrays.items()}


def same_bits(one: Array, other: Array) -> bool:
    return one.tobytes() == other.tobytes()


@pytest.fixture(scope="module")
def sampled() -> dict[str, Array]:
    """Rows that go every way, by a mass of probability spread over so many tokens that each sum of it counts; and one
    of NaN."""
    arrays = dict(call(cases, rows=7, way="all", forbids="both", vocab=TWO_PARTS).arrays)
    arrays["temperature"][:] = 1.0, 1.0, 3.0, 0.0, 1.0, 1.0, 1.0
    arrays["top_k"][:] = 0, 20, 2000, 0, 0, 0, 0
    arrays["top_p"][:] = 0.9, 0.95, 0.9, 1.0, 1.0, 0.5, 1.0
    arrays["min_p"][:] = 0.0, 0.01, 0.0, 0.0, 0.05, 0.0, 0.0
    arrays["logits"][6] = np.nan
    return arrays


@pytest.mark.slow
def test_a_draw_is_the_same_alone_in_company_and_in_any_order(
    device: SimulatedDevice, sampled: dict[str, Array]
) -> None:
    constants = {"num_token_ids": TWO_PARTS - 3}
    [together] = run(device, sample_tokens, sampled, **constants)
    assert together[6] == UNUSABLE_LOGITS and (together[:6] >= 0).all()
    assert np.array_equal(together, reference(**sampled, **constants))
    for rows in ([6, 5, 4, 3, 2, 1, 0], [6, 0, 6], [2, 2]):
        assert np.array_equal(run(device, sample_tokens, rows_of(sampled, rows), **constants)[0], together[rows]), rows
    for row in range(7):
        assert run(device, sample_tokens, rows_of(sampled, [row]), **constants)[0] == together[row], row


def test_log_probabilities_have_the_same_bits_alone_in_company_and_in_any_order(device: SimulatedDevice) -> None:
    arrays = dict(call(log_probs_cases, rows=4).arrays)
    arrays["logits"][3, 5] = np.nan
    together = run(device, token_log_probs, arrays, num_top=5)
    for rows in ([3, 2, 1, 0], [3, 1], [0], [1], [2]):
        for one, whole in zip(run(device, token_log_probs, rows_of(arrays, rows), num_top=5), together, strict=True):
            assert same_bits(one, whole[rows]), rows


@pytest.mark.parametrize("length", [1, 31, 4096, 4097, 32768, 151936, longest_row()])
def test_blocks_of_a_row_hold_it(length: int) -> None:
    blocks, each = cluster_of(length), slice_of(length)
    assert blocks in (1, 2, 4, 8) and each % 32 == 0
    assert (blocks - 1) * each < max(length, blocks * 32) <= blocks * each + 31


@pytest.mark.parametrize("length", [1, 31, MOST_ELEMENTS, TWO_PARTS, 151936, longest_row()])
def test_parts_of_a_row_hold_it(length: int) -> None:
    parts, each = parts_of(length), slice_of_part(length)
    assert each % 32 == 0 and each <= MOST_ELEMENTS
    assert (parts - 1) * each < length <= parts * each


@pytest.mark.parametrize(
    "strides",
    [
        {"banned_ids": (0, 0), "mask": (0, 0), "turned": (0, 0)},
        {"banned_ids": (7, 7), "mask": (1, 1), "turned": (5, 0)},
        {"logits": (3, 1), "temperature": (9,), "top_k": (0,), "seed": (0, 1), "mask_row": (4,)},
    ],
    ids=["as of torch", "others", "of one row"],
)
def test_axes_of_no_or_one_element_have_any_strides(
    device: SimulatedDevice, strides: dict[str, tuple[int, ...]]
) -> None:
    made = call(cases, rows=1, vocab=40, way="greedy")
    constants = dict(made.constants) | {"draws": False}
    plain = run(device, sample_tokens, dict(made.arrays), **constants)
    assert run(device, sample_tokens, dict(made.arrays), strides, **constants) == plain


def test_one_token_one_ban_and_one_word_of_a_mask_have_any_strides(device: SimulatedDevice) -> None:
    made = call(cases, rows=3, vocab=1, way="greedy", forbids="both")
    arrays = dict(made.arrays) | {"banned_ids": made.arrays["banned_ids"][:, :1].copy()}
    arrays["mask_row"][:] = 0, 1, -1
    strides = {"logits": (1, 5), "banned_ids": (1, 9), "mask": (1, 0)}
    right = reference(**arrays, **made.constants)
    assert np.array_equal(run(device, sample_tokens, arrays, strides, **made.constants)[0], right)


def test_no_history_and_no_bias_have_any_strides(device: SimulatedDevice) -> None:
    """Also both at once: then each row is told that nothing of it was turned."""
    for config in ({"history": 0}, {"biases": 0}, {"history": 0, "biases": 0}):
        arrays = dict(call(adjust_cases, rows=2, vocab=40, **config).arrays)
        strides = {name: (0,) * array.ndim for name, array in arrays.items() if not array.size}
        assert strides
        plain, odd = (run(device, adjust_logits, arrays, given) for given in (None, strides))
        assert all(same_bits(one, other) for one, other in zip(plain, odd, strict=True))
        assert (plain[1] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("limits", ["none", "few"])
def test_rows_that_ask_for_more_than_is_said_get_a_token(device: SimulatedDevice, limits: str) -> None:
    """As if they had asked for less: without the limits that are left out."""
    made = call(cases, rows=3, vocab=300, way="all")
    arrays = dict(made.arrays) | {"min_p": np.zeros(3, np.float32), "temperature": np.ones(3, np.float32)}
    arrays["top_k"][:] = 5, 100, 0
    less = dict(arrays) | {"top_p": np.ones(3, np.float32), "top_k": np.zeros(3, np.int32)}
    if limits == "few":
        less["top_k"][0], less["top_p"][0] = 5, arrays["top_p"][0]
    constants = dict(made.constants)
    right = reference(**less, **(constants | {"limits": "any"}))
    assert np.array_equal(run(device, sample_tokens, arrays, **(constants | {"limits": limits}))[0], right)


def configs_of_no_rows() -> list[tuple[Any, Callable[..., Any], Config]]:
    return [
        (cases, sample_tokens, {"rows": 0}),
        (log_probs_cases, token_log_probs, {"rows": 0}),
        (adjust_cases, adjust_logits, {"rows": 0}),
    ]


@pytest.mark.parametrize(("module", "operation", "config"), configs_of_no_rows())
def test_no_rows(device: SimulatedDevice, module: Any, operation: Callable[..., Any], config: Config) -> None:
    made = call(module, **config)
    for result in run(device, operation, dict(made.arrays), **made.constants):
        assert result.shape[0] == 0
    assert device.launched == []
