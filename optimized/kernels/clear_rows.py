"""Filling rows with 0 from one on whose number only the device knows: what no expert and no request owns."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from optimized.compile.kernel import Kernel
from optimized.device import Device, Tensor, dtype_of, part_of
from optimized.kernels.rows import DTYPES, Vectorized, common_vector, itemsize, vector_of

_THREADS = 256
_BLOCKS_PER_SM = 4


@dataclass(frozen=True)
class ClearRows(Vectorized, Kernel):
    """out[row] = 0 for every row from mStarts[-1] on."""

    dtype: str
    length: int  # elements of a row
    vector: int
    blocks: int  # at most; each takes every so manyth row

    @property
    def widest_access(self) -> int:
        return 0

    @property
    def widest_store(self) -> int:
        return self.vector * itemsize(self.dtype)

    def arguments(self) -> tuple[Any, ...]:
        stride = cute.sym_int64(divisibility=self.vector)
        shape, strides = (cute.sym_int(), self.length), (stride, 1)
        rows = make_fake_tensor(DTYPES[self.dtype], shape, strides, assumed_align=self.vector * itemsize(self.dtype))
        return vector_of("int32", cute.sym_int()), rows

    @cute.jit
    def __call__(
        self,
        mStarts: cute.Tensor,  # i32 [R + 1]
        mOut: cute.Tensor,  # [T, H]
        stream: Any,
    ) -> None:
        self.kernel(mStarts, mOut).launch(
            grid=[cutlass.min(mOut.shape[0], self.blocks), 1, 1], block=[_THREADS, 1, 1], stream=stream
        )

    @cute.kernel
    def kernel(self, mStarts: cute.Tensor, mOut: cute.Tensor) -> None:
        thread, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        blocks, _, _ = cute.arch.grid_dim()
        first, num_rows = mStarts[mStarts.shape[0] - 1], mOut.shape[0]
        rZero = cute.make_rmem_tensor((self.vector,), mOut.element_type)
        rZero.fill(0)
        row = first + block
        while row < num_rows:
            gRow = cute.zipped_divide(mOut[row, None], (self.vector,))
            number = thread
            while number < self.length // self.vector:
                cute.autovec_copy(rZero, gRow[None, number])
                number += _THREADS
            row += blocks


def clear_rows(device: Device, starts: Tensor, out: Tensor) -> None:
    """starts: i32 [R + 1]; the last one is the first row of out, [T, ...] with contiguous rows, that is filled."""
    length = prod(out.shape[1:])
    rows = part_of(out, (out.shape[0], length), (out.stride()[0], 1))
    vector = common_vector(device.arch, length, rows)
    blocks = _BLOCKS_PER_SM * device.num_sms
    device.run(ClearRows(dtype_of(out), length, vector, blocks), starts, rows)
