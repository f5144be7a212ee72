"""What kernels over rows share: tensors of rows, a thread's part of one, a sum over it.

A row of H elements is read in accesses of `vector` elements. Access i of thread t of a row is number i * threads + t,
so that neighbouring threads read neighbouring memory. Where H is no multiple of that, the last accesses are left out;
the registers for them hold 0.
"""

from __future__ import annotations

import operator
from typing import Any

import cutlass
from cutlass import const_expr, cute, range_constexpr
from cutlass.cute.runtime import make_fake_tensor
from cutlass.memory import SmemAllocator

from optimized.compile.arch import Arch
from optimized.compile.launch_policy import WARP, vector_elements
from optimized.device import Tensor, alignment_of, dtype_of

DTYPES = {
    "float32": cutlass.Float32,
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "int32": cutlass.Int32,
    "uint32": cutlass.Uint32,
    "int64": cutlass.Int64,
}


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return DTYPES[dtype].width // 8


class Vectorized:
    """A kernel that reads and writes elements of `dtype` in accesses of `vector`."""

    dtype: str
    vector: int

    @property
    def widest_access(self) -> int:
        return self.vector * itemsize(self.dtype)


def common_vector(arch: Arch, length: int, *rows: Tensor, beside: tuple[Tensor, ...] = ()) -> int:
    """Elements of the widest access that suits rows of `length` elements in all these tensors, whose first stride is
    that from row to row, and tensors beside them that are read likewise and have but one row."""
    tensors = (*rows, *beside)
    return vector_elements(
        arch,
        max(itemsize(dtype_of(one)) for one in tensors),
        length=length,
        strides=tuple(one.stride()[0] for one in rows),
        alignment=alignment_of(*tensors),
    )


def rows_of(dtype: str, num_rows: Any, length: int, vector: int) -> Any:
    """A fake tensor [num_rows, length] whose rows are contiguous and begin at multiples of an access. The stride has
    64 bits: a row's number times its length passes 2^31 in tensors that fit a chip."""
    stride = cute.sym_int64(divisibility=vector)
    return make_fake_tensor(DTYPES[dtype], (num_rows, length), (stride, 1), assumed_align=vector * itemsize(dtype))


def vector_of(dtype: str, length: Any, vector: int = 1) -> Any:
    """A fake tensor [length], contiguous, read in accesses of `vector` elements."""
    return make_fake_tensor(DTYPES[dtype], (length,), (1,), assumed_align=vector * itemsize(dtype))


@cute.jit
def load_row(
    mRow: cute.Tensor,  # [H]
    lane: cutlass.Int32,  # the thread's number within its row
    is_row: cutlass.Boolean,  # false for a thread beyond the last row
    vector: cutlass.Constexpr,
    vectors: cutlass.Constexpr,
    threads: cutlass.Constexpr,
) -> cute.Tensor:  # [vector, vectors] in registers
    """A thread's part of a row; 0 where there is none."""
    gRow = cute.zipped_divide(mRow, (vector,))  # [vector, H / vector]
    rRow = cute.make_rmem_tensor((vector, vectors), mRow.element_type)
    rRow.fill(0)
    count = cute.size(mRow) // vector
    for i in range_constexpr(vectors):
        number = lane + i * threads
        if const_expr((i + 1) * threads <= count):
            if is_row:
                cute.autovec_copy(gRow[None, number], rRow[None, i])
        else:  # noqa: PLR5501, the outer condition is of compile time
            if is_row and number < count:
                cute.autovec_copy(gRow[None, number], rRow[None, i])
    return rRow


@cute.jit
def store_row(
    rRow: cute.Tensor,  # [vector, vectors] in registers
    mRow: cute.Tensor,  # [H]
    lane: cutlass.Int32,
    is_row: cutlass.Boolean,
    threads: cutlass.Constexpr,
) -> None:
    """What `load_row` reads, written."""
    vector, vectors = rRow.shape
    gRow = cute.zipped_divide(mRow, (vector,))
    count = cute.size(mRow) // vector
    for i in range_constexpr(vectors):
        number = lane + i * threads
        if is_row and number < count:
            cute.autovec_copy(rRow[None, i], gRow[None, number])


@cute.jit
def sum_of_row(
    value: cutlass.Float32,
    threads: cutlass.Constexpr,  # of a row: a power of two; whole warps above 32
    rows: cutlass.Constexpr,  # of a block
) -> cutlass.Float32:
    """The sum over a row's threads, the same bits in each of them: a butterfly within warps, then over warps in
    order. Every thread of the block must call it."""
    total = cute.arch.warp_reduction(value, operator.add, threads_in_group=min(threads, WARP))
    if const_expr(threads > WARP):
        warps = threads // WARP
        sums = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(warps * rows))
        warp, lane = cute.arch.warp_idx(), cute.arch.lane_idx()
        if lane == 0:
            sums[warp] = total
        cute.arch.sync_threads()
        first = warp // warps * warps
        total = cutlass.Float32(0.0)
        for i in range_constexpr(warps):
            total += sums[first + i]
    return total
