"""Token embedding on a GPU: rows of a table, copied in the widest accesses that they allow.

Rounding: none. A row may be spread over several blocks of threads, so that one token alone is not read by one
multiprocessor. Ids are trusted, as in the reference: one beyond the table reads memory that is not the table's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute, range_constexpr

from optimized.arguments import INT32, output, sizes_of
from optimized.compile.kernel import Kernel
from optimized.device import Tensor, device_of, dtype_of
from optimized.kernels.items import ItemLaunch, access, item, item_launch, num_blocks
from optimized.kernels.rows import Vectorized, common_vector, rows_of, vector_of


@dataclass(frozen=True)
class Embedding(Vectorized, Kernel):
    """out[t] = table[token_ids[t]]."""

    hidden_size: int
    dtype: str
    vector: int
    threads: int
    items: int

    def arguments(self) -> tuple[Any, ...]:
        num_tokens = cute.sym_int()
        table, out = (rows_of(self.dtype, rows, self.hidden_size, self.vector) for rows in (cute.sym_int(), num_tokens))
        return vector_of("int32", num_tokens), table, out

    @cute.jit
    def __call__(
        self,
        mTokenIds: cute.Tensor,  # [T]
        mTable: cute.Tensor,  # [V, H]
        mOut: cute.Tensor,  # [T, H]
        stream: Any,
    ) -> None:
        launch = ItemLaunch(self.threads, self.items)
        self.kernel(mTokenIds, mTable, mOut).launch(
            grid=[num_blocks(mOut.shape[0], self.hidden_size // self.vector, launch), 1, 1],
            block=[self.threads, 1, 1],
            stream=stream,
        )

    @cute.kernel
    def kernel(self, mTokenIds: cute.Tensor, mTable: cute.Tensor, mOut: cute.Tensor) -> None:
        launch = ItemLaunch(self.threads, self.items)
        row_items = self.hidden_size // self.vector
        num_tokens = mOut.shape[0]
        # All ids, then all rows, then all stores: a thread waits twice for memory, not twice an item.
        rId = cute.make_rmem_tensor((self.items,), cutlass.Int32)
        rRow = cute.make_rmem_tensor((self.vector, self.items), mOut.element_type)
        for i in range_constexpr(self.items):
            token, _ = item(i, row_items, launch)
            if token < num_tokens:
                rId[i] = mTokenIds[token]
        for i in range_constexpr(self.items):
            token, number = item(i, row_items, launch)
            if token < num_tokens:
                cute.autovec_copy(access(mTable[rId[i], None], self.vector, number), rRow[None, i])
        for i in range_constexpr(self.items):
            token, number = item(i, row_items, launch)
            if token < num_tokens:
                cute.autovec_copy(rRow[None, i], access(mOut[token, None], self.vector, number))


def embedding(
    token_ids: Tensor,  # i32 [T], each in 0 .. V-1
    table: Tensor,  # [V, H], rows contiguous
    *,
    out: Tensor | None = None,  # [T, H]
) -> Tensor:  # [T, H], the table's dtype: `out`, or new memory
    """Look up rows. Errors: ValueError, TypeError for tensors that do not fit."""
    device = device_of(table)
    _, hidden_size = sizes_of("embedding", "table", table, ("V", "H"))
    num_tokens, *_ = sizes_of("embedding", "token_ids", token_ids, ("T",), INT32)
    dtype = dtype_of(table)
    out = output("embedding", "out", out, device, (num_tokens, hidden_size), dtype)
    if num_tokens == 0:
        return out
    vector = common_vector(device.arch, hidden_size, table, out)
    launch = item_launch(device.num_sms, num_tokens * (hidden_size // vector), items=4)
    device.run(Embedding(hidden_size, dtype, vector, launch.threads, launch.items), token_ids, table, out)
    return out
