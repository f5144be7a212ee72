"""Kernels that copy one box of a tensor, and what the tests of the copy engine share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.simulators.gpu.launching import kernel

BOX_BYTES = 4096
VARIABLES = f".shared .align 1024 .b8 box[{BOX_BYTES}]; .shared .align 8 .b64 bar;"
# Thread 0 makes an mbarrier for one arrival. %r8 is its address, %r9 that of the box.
BEGIN = """
mov.u32 %r8, bar;
mov.u32 %r9, box;
setp.ne.s32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared.b64 [%r8], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
"""
WAIT = """
WAIT:
mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0;
@!%p2 bra WAIT;
"""
# At most so often, for a chip on which nobody says that it waits for ever. %p2 tells whether the phase has ended.
WAIT_A_WHILE = """
mov.u32 %r13, 0;
WAIT:
add.u32 %r13, %r13, 1;
mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0;
@%p2 bra ENOUGH;
setp.lt.u32 %p4, %r13, 500;
@%p4 bra WAIT;
ENOUGH:
"""
# 32 threads copy the whole box between shared memory and %rd2, 4 bytes at a time.
_WALK = """
shl.b32 %r10, %r1, 2;
{name}:
add.s32 %r11, %r9, %r10;
cvt.u64.u32 %rd10, %r10;
add.s64 %rd11, %rd2, %rd10;
{move}
add.s32 %r10, %r10, 128;
setp.lt.u32 %p3, %r10, {size};
@%p3 bra {name};
"""


def to_array(size: int = BOX_BYTES) -> str:
    return _WALK.format(name="OUT", move="ld.shared.u32 %r12, [%r11]; st.global.u32 [%rd11], %r12;", size=size)


def from_array(size: int = BOX_BYTES) -> str:
    return _WALK.format(name="IN", move="ld.global.u32 %r12, [%rd11]; st.shared.u32 [%r11], %r12;", size=size)


def loading(corner: tuple[int, ...], expected: int, shift: int = 0) -> str:
    """A kernel of (tensor, box, map): the box is first filled from its array, so that what is not copied is seen.
    The box's last 4 bytes say whether as many bytes came as were expected."""
    coordinates = ", ".join(map(str, corner))
    body = f"""
{BEGIN}
{from_array()}
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r8], {expected};
cp.async.bulk.tensor.{len(corner)}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
  [%r9+{shift}], [%rd3, {{{coordinates}}}], [%r8];
ISSUED:
{WAIT_A_WHILE}
{to_array()}
selp.u32 %r12, 1, 0, %p2;
st.global.u32 [%rd2+{BOX_BYTES - 4}], %r12;
"""
    return kernel(body, 3, VARIABLES)


def storing(corner: tuple[int, ...], reduction: str = "", shift: int = 0) -> str:
    """A kernel of (tensor, box, map)."""
    coordinates = ", ".join(map(str, corner))
    opcode = f"cp.reduce.async.bulk.tensor.{len(corner)}d.global.shared::cta.{reduction}.tile.bulk_group"
    if not reduction:
        opcode = f"cp.async.bulk.tensor.{len(corner)}d.global.shared::cta.tile.bulk_group"
    body = f"""
{BEGIN}
{from_array()}
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra DONE;
{opcode} [%rd3, {{{coordinates}}}], [%r9+{shift}];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
"""
    return kernel(body, 3, VARIABLES)


def aligned(array: NDArray[Any], alignment: int = 128) -> NDArray[Any]:
    """A contiguous copy at an address that is a multiple of the alignment."""
    raw = np.zeros(array.nbytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
