"""Addresses that are in no memory, or in that of a block which has ended; and what memory holds at first."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.launching import kernel, run

VARIABLES = ".local .align 4 .b8 l[8]; .shared .align 4 .b8 t[8];"


@pytest.mark.parametrize(
    "access",
    [
        "ld.global.u32 %r5, [%rd5+-4];",
        "st.global.u32 [%rd5+-4], %r1;",
        "ld.local.u32 %r5, [%rd5+-4];",
        "st.local.u32 [%rd5+-128], %r1;",
        "ld.param.u32 %r5, [%rd5+-4];",
        "ld.shared.u32 %r5, [%rd5+-4];",
    ],
)
def test_an_address_below_zero(access: str) -> None:
    with pytest.raises(SimulatorError, match=r"is not within|are not within|is not in"):
        run(kernel(f"mov.u64 %rd5, 0;\n{access}", 1, VARIABLES), [np.zeros(64, np.uint32)])


def test_shared_memory_of_a_block_that_has_ended() -> None:
    body = """
setp.eq.u32 %p1, %r2, 1;
@%p1 bra WAIT;
st.release.gpu.global.u32 [%rd1], 1;
ret;
WAIT:
ld.acquire.gpu.global.u32 %r5, [%rd1];
setp.eq.u32 %p2, %r5, 0;
@%p2 bra WAIT;
mov.u32 %r6, t;
mapa.shared::cluster.u32 %r7, %r6, 0;
ld.shared::cluster.u32 %r8, [%r7];
"""
    with pytest.raises(SimulatorError, match=r"of a block that has ended: ld.shared::cluster"):
        run(kernel(body, 1, VARIABLES), [np.zeros(1, np.uint32)], grid=2, block=1, cluster=(2, 1, 1))


@pytest.mark.parametrize("load", ["ld.shared.u32 %r5, [t];", "ld.local.u32 %r5, [l];", "mov.b32 %r5, %r31;"])
def test_what_nobody_has_written_is_zero_or_by_seed_anything(load: str) -> None:
    seen = []
    for seed in (None, None, 0, 0, 1):
        out = np.zeros(1, np.uint32)
        run(kernel(f"{load}\nst.global.u32 [%rd1], %r5;", 1, VARIABLES), [out], gpu=Gpu(H200, seed=seed), block=1)
        seen.append(int(out[0]))
    assert seen[:2] == [0, 0] and seen[2] == seen[3] and len({*seen}) == 3


def test_which_space_an_address_is_in() -> None:
    text = kernel(
        """
cvta.const.u64 %rd5, c;
cvta.shared.u64 %rd6, t;
cvt.u32.u64 %r5, %rd6;
mapa.u64 %rd7, %rd6, 1;
"""
        + "".join(
            f"isspacep.{space} %p1, %rd{register};\nselp.b32 %r6, 1, 0, %p1;\nst.global.u32 [%rd1+{4 * i}], %r6;\n"
            for i, (space, register) in enumerate(
                (space, register)
                for register in (1, 5, 6, 7)
                for space in ("global", "const", "shared::cta", "shared::cluster")
            )
        ),
        1,
        VARIABLES,
    ).replace(".visible", ".const .align 4 .b32 c[2] = {1, 2};\n.visible")
    out = np.zeros(16, np.uint32)
    run(text, [out], grid=2, block=1, cluster=(2, 1, 1), gpu=Gpu(H200))
    # Of the block of rank 1, which is the last to write: the address that mapa gives it is its own.
    assert out.reshape(4, 4)[:2].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert out.reshape(4, 4)[2:, 3].tolist() == [1, 1] and out.reshape(4, 4)[2:, :2].sum() == 0
    assert out[10] == 1


@pytest.mark.parametrize("access", ["ld{} %r8, [%r7];", "st{} [%r7], %r1;", "atom{}.add %r8, [%r7], 1;"])
def test_another_blocks_shared_memory_is_reached_as_the_clusters(access: str) -> None:
    body = """
mov.u32 %r6, t;
mov.u32 %r5, %cluster_ctarank;
xor.b32 %r5, %r5, {};
mapa.shared::cluster.u32 %r7, %r6, %r5;
{}
barrier.cluster.arrive;
barrier.cluster.wait;
"""

    def launch(space: str, other: int) -> None:
        suffix = space if access.startswith("atom") else f"{space}.u32"
        text = body.format(other, access.format(suffix)).replace(".add %r8", ".add.u32 %r8")
        run(kernel(text, 1, VARIABLES), [np.zeros(1, np.uint32)], grid=4, cluster=(2, 1, 1))

    launch(".shared::cluster", 1)
    for own in (".shared", ".shared::cta"):
        launch(own, 0)
        with pytest.raises(SimulatorError, match=r"another block of the cluster, which .shared::cluster reaches"):
            launch(own, 1)
