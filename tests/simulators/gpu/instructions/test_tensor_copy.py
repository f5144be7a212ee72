"""Copies of boxes of tensors: as an H200 does them, through CuTeDSL's own maps, and across a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.machine.waiting import Deadlock
from simulators.gpu.memory.tensor_map import TensorMap, encode
from tests.simulators.gpu.instructions.box_cases import ILLEGAL, box_case, digest
from tests.simulators.gpu.instructions.boxes import BEGIN, BOX_BYTES, VARIABLES, WAIT, aligned, from_array, to_array
from tests.simulators.gpu.launching import kernel, run

ON_CHIP = json.loads(Path(__file__).with_name("boxes.json").read_text())
TENSOR = np.arange(40 * 64, dtype=np.uint16).reshape(40, 64)
MAP = TensorMap(0, "u16", (64, 40), (128,), (32, 8), (1, 1))


def map_of(array: NDArray[Any], tensor_map: TensorMap) -> NDArray[Any]:
    return aligned(np.frombuffer(encode(replace(tensor_map, address=array.ctypes.data)), np.uint8))


@pytest.mark.parametrize("seed", range(len(ON_CHIP)))
def test_what_an_h200_did(seed: int) -> None:
    case = box_case(seed)
    tensor, box = (aligned(array) for array in case.memory())
    arrays = [tensor, box, map_of(tensor, case.tensor_map)]
    if ON_CHIP[seed] == ILLEGAL:
        with pytest.raises(SimulatorError, match=r"no multiple of 16|none may be negative"):
            run(case.text(), arrays)
    else:
        run(case.text(), arrays)
        assert digest(tensor, box) == ON_CHIP[seed]


LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


def loaded(body: str, seed: int | None = None, grid: int = 1, **launch: Any) -> NDArray[np.uint16]:
    """What each block then has as its box: [grid, 8, 32]. %rd3 is the map, %p1 false for thread 0 alone."""
    tensor, out = aligned(TENSOR), aligned(np.zeros(grid * BOX_BYTES, np.uint8))
    text = kernel(
        f"{BEGIN} mul.wide.u32 %rd9, %r2, {BOX_BYTES}; add.s64 %rd2, %rd2, %rd9; {body} {to_array()}", 3, VARIABLES
    )
    run(text, [tensor, out, map_of(tensor, MAP)], gpu=Gpu(H200, seed=seed), grid=grid, **launch)
    return out.reshape(grid, BOX_BYTES)[:, :512].view(np.uint16).reshape(grid, 8, 32)


def load(expected: int, modifiers: str = "", operands: str = "") -> str:
    return f"""
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], {expected};
    @!%p1 {LOAD}{modifiers} [%r9], [%rd3, {{32, 16}}], [%r8]{operands};
    """


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_load(seed: int | None) -> None:
    assert np.array_equal(loaded(load(512, ".L2::cache_hint", ", %rd1") + WAIT, seed)[0], TENSOR[16:24, 32:])


def test_nothing_is_there_before_the_wait() -> None:
    assert not loaded(load(512)).any()


@pytest.mark.parametrize(("expected", "missing"), [(516, "lacks 4 bytes of transactions"), (500, "12 bytes have come")])
def test_a_wrong_number_of_bytes_is_a_deadlock_that_says_it(expected: int, missing: str) -> None:
    with pytest.raises(Deadlock, match=missing):
        loaded(load(expected) + WAIT)


# Each block of a cluster loads a half of the box for all, and waits for both halves.
MULTICAST = f"""
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
mov.u32 %r14, %cluster_ctarank;
shl.b32 %r15, %r14, 8;
add.s32 %r15, %r15, %r9;
shl.b32 %r16, %r14, 2;
mov.b16 %rs1, 3;
@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 512;
@!%p1 {LOAD}.multicast::cluster.L2::cache_hint [%r15], [%rd3, {{32, %r16}}], [%r8], %rs1, %rd1;
{WAIT}
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_multicast(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MAP", replace(MAP, box=(32, 4)))
    boxes = loaded(MULTICAST, seed, grid=4, cluster=(2, 1, 1))
    assert all(np.array_equal(box, TENSOR[:8, 32:]) for box in boxes)


def test_a_mask_of_more_blocks_than_there_are() -> None:
    with pytest.raises(SimulatorError, match="mask 0x7 of a cluster of 2 blocks"):
        loaded(MULTICAST.replace("%rs1, 3", "%rs1, 7"), grid=2, cluster=(2, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%r9]", "%r9+64]", "not a multiple of 128"),
        ("[%rd3,", "[%rd3+32,", "not a multiple of 64"),
        ("{32, 16}", "{32, 16, 0}", "3 coordinates|not known|2d"),
        (".tile", ".im2col", "not known"),
        ("[%rd3,", "[%rd1,", "tensor map"),
        (", [%r8];", ";", "its operands are not those"),
    ],
)
def test_misuse(old: str, new: str, message: str) -> None:
    body = load(512)
    assert old in body.split("cp.async")[1]
    changed = "cp.async".join([body.split("cp.async")[0], body.split("cp.async")[1].replace(old, new)])
    with pytest.raises((SimulatorError, UnsupportedInstruction), match=message):
        loaded(changed)


def test_a_map_that_claims_more_than_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.MAP", replace(MAP, shape=(64, 41)))
    with pytest.raises(SimulatorError, match="past the end of 'array 0'"):
        loaded(load(512).replace("{32, 16}", "{32, 40}"))


STORE = f"""
{BEGIN}
{from_array()}
bar.sync 0;
@%p1 bra DONE;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd3, {{0, 0}}], [%r9];
cp.async.bulk.commit_group;
@WAIT@
st.shared.u32 [%r9], 7;
DONE:
"""


@pytest.mark.parametrize(("wait", "first"), [("cp.async.bulk.wait_group.read 0;", 1), ("", 7)])
def test_the_source_of_a_store_may_change_only_after_a_wait(wait: str, first: int) -> None:
    tensor, box = aligned(np.zeros_like(TENSOR)), aligned(np.ones(BOX_BYTES // 2, np.uint16))
    run(kernel(STORE.replace("@WAIT@", wait), 3, VARIABLES), [tensor, box, map_of(tensor, MAP)])
    assert tensor[0, 0] == first and tensor[0, 2] == 1 and tensor.sum() == 256 + (first - 1) + (0 if first == 1 else -1)
