"""ldmatrix, stmatrix and movmatrix: who holds what, by the figures of the PTX ISA; and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.machine.machine import Machine
from simulators.gpu.watch import Access, Watcher
from tests.simulators.gpu.launching import kernel, run

TILE = ".shared .align 128 .b8 tile[512]; .reg .b32 %base, %own, %row;"
# Each thread brings 16 bytes into the tile, and has the address of the row of its own number.
FILL = """
mov.u32 %base, tile;
shl.b32 %own, %r1, 4;
add.u32 %own, %own, %base;
mul.wide.u32 %rd10, %r1, 16;
add.u64 %rd11, %rd1, %rd10;
ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd11];
st.shared.v4.b32 [%own], {%r4, %r5, %r6, %r7};
bar.warp.sync -1;
"""
KEEP = "add.u64 %rd12, %rd2, %rd10; st.global.v4.b32 [%rd12], {%r8, %r9, %r10, %r11};"


def tile() -> np.ndarray:
    """u16 [matrix, row, column]: every value is its place."""
    return np.arange(4 * 8 * 8, dtype=np.uint16).reshape(4, 8, 8)


def load_text(trans: str) -> str:
    body = FILL + f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%own];" + KEEP
    return kernel(body, 2, TILE)


def store_text(trans: str) -> str:
    body = f"stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%own], {{%r4, %r5, %r6, %r7}}; bar.warp.sync -1;"
    return kernel(FILL + body + "ld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%own];" + KEEP, 2, TILE)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_a_lane_loads_two_neighbours_of_each_matrix(trans: str, seed: int | None) -> None:
    source, out = tile(), np.zeros((32, 4, 2), np.uint16)
    gpu = Gpu(H200, seed=seed)
    run(load_text(trans), [source, out], gpu=gpu)
    for lane in range(32):
        for i in range(4):
            matrix = source[i].T if trans else source[i]
            assert out[lane, i].tolist() == matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_a_lane_stores_two_neighbours_of_each_matrix(trans: str) -> None:
    held, out = tile().reshape(32, 4, 2), np.zeros((4, 8, 8), np.uint16)
    run(store_text(trans), [held, out])
    for lane in range(32):
        for i in range(4):
            matrix = out[i].T if trans else out[i]
            assert held[lane, i].tolist() == matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2].tolist()


def test_movmatrix_transposes() -> None:
    source, out = np.arange(64, dtype=np.uint16).reshape(8, 8), np.zeros((8, 8), np.uint16)
    body = """
    mul.wide.u32 %rd10, %r1, 4; add.u64 %rd11, %rd1, %rd10; add.u64 %rd12, %rd2, %rd10;
    ld.global.b32 %r4, [%rd11];
    movmatrix.sync.aligned.m8n8.trans.b16 %r5, %r4;
    st.global.b32 [%rd12], %r5;
    """
    run(kernel(body, 2), [source, out])
    assert out.tolist() == source.T.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("add.u32 %own, %own, 8;", "is not a multiple of 16 bytes"),
        ("add.u32 %own, %own, 16;", r"thread \(31, 0, 0\).*is not within"),
        ("setp.eq.u32 %p1, %r1, 9; @%p1 exit;", "less than 32 threads"),
    ],
)
def test_wrong_rows_are_told(change: str, message: str) -> None:
    text = load_text("").replace("ldmatrix", change + "\nldmatrix")
    with pytest.raises(SimulatorError, match=message):
        run(text, [tile(), np.zeros((4, 8, 8), np.uint16)])


def test_only_the_first_rows_are_read_where_there_are_fewer_matrices() -> None:
    """x1: the addresses of lanes 8 and up mean nothing."""
    body = FILL + "setp.gt.u32 %p1, %r1, 7; @%p1 mov.b32 %own, 3;"
    body += "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r8}, [%own]; mov.b32 %r9, 0; mov.b32 %r10, 0; mov.b32 %r11, 0;"
    out = np.zeros((32, 4, 2), np.uint16)
    run(kernel(body + KEEP, 2, TILE), [tile(), out])
    assert out[:, 0].tolist() == tile()[0].reshape(32, 2).tolist()


def test_watchers_are_told_of_rows() -> None:
    class Rows(Watcher):
        def __init__(self) -> None:
            self.seen: list[tuple[str, int, int]] = []

        def access(self, machine: Machine, access: Access) -> None:
            if "matrix" in access.instruction.opcode:
                self.seen.append((access.kind, access.size, len(access.threads)))

    for text, kind in ((load_text(""), "read"), (store_text(""), "write")):
        (rows,) = run(text, [tile(), np.zeros((4, 8, 8), np.uint16)], watchers=[Rows]).watchers
        assert isinstance(rows, Rows) and rows.seen == [(kind, 16, 32)]


def test_other_forms_are_refused() -> None:
    for form in ("m16n16.x1.trans.shared.b8", "m8n16.x1.shared.b8x16.b6x16_p32", "m8n8.x8.shared.b16"):
        with pytest.raises(UnsupportedInstruction, match="ldmatrix"):
            run(kernel(f"ldmatrix.sync.aligned.{form} {{%r4}}, [tile];", 0, TILE), [])
