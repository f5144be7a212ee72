"""What kernels share whose work is many equal items: one access of a row, apart from every other.

Rows of `row_items` items each are laid end to end, and blocks of threads cut that line into equal parts, wherever a
row ends: so a short row wastes no thread, and one long row is spread over many multiprocessors. Item i of a thread is
`threads` items after its item i - 1, so that neighbouring threads read neighbouring memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
from cutlass import cute


@dataclass(frozen=True)
class ItemLaunch:
    """Threads over items."""

    threads: int  # of a block
    items: int  # of each thread


def item_launch(num_sms: int, num_items: int, *, items: int) -> ItemLaunch:
    """items: how many a thread holds at once where there is work for all.

    Few (decode): one a thread, in small blocks, because nothing but latency counts. Many: blocks of 8 warps, so many
    that each multiprocessor has two at least.
    """
    threads = 256
    is_decode = num_items < 2 * num_sms * threads * items
    return ItemLaunch(128, 1) if is_decode else ItemLaunch(threads, items)


def num_blocks(num_rows: Any, row_items: int, launch: ItemLaunch) -> Any:
    """Of a grid over all items. Host code, compiled."""
    count = cutlass.Int64(num_rows) * row_items
    return cutlass.Int32((count + (launch.threads * launch.items - 1)) // (launch.threads * launch.items))


def item(i: int, row_items: int, launch: ItemLaunch) -> tuple[Any, Any]:
    """(row, number within the row) of this thread's item i; a row beyond the last one where there is no item.

    Only the block's first item may need 64 bits: it is found once, and the compiler sees that it is the same for all i.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    first = cutlass.Uint64(block) * (launch.threads * launch.items)
    row = first // row_items
    number = cutlass.Uint32(first - row * row_items) + cutlass.Uint32(thread + i * launch.threads)
    return cutlass.Int32(row) + cutlass.Int32(number // row_items), cutlass.Int32(number % row_items)


def access(mRow: cute.Tensor, vector: int, number: Any) -> cute.Tensor:  # [vector]
    """Elements number * vector .. of a row, which are loaded or stored at once."""
    return cute.zipped_divide(mRow, (vector,))[None, number]
