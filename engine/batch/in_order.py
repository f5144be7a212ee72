"""Many items at work at once, and their results in order, with no more of them held than fits a window."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sized
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R", bound=Sized)


@dataclass(frozen=True)
class Limits:
    """Each at least 1."""

    running: int  # items at work
    held: int  # items that are taken, and whose results are not given yet
    waiting_size: int  # of all results that wait for an earlier one; beyond it no item is begun


async def in_order(
    items: AsyncIterator[T], work: Callable[[T], Awaitable[R]], give: Callable[[R], None], limits: Limits
) -> None:
    """Call `give` with the result of `work` for each of the items, in their order.

    An item is taken when it can be begun, and not before. Results are given while the next item is awaited.
    Errors: the first of `items`, `work` and `give`; what is at work is cancelled.
    """
    begun: asyncio.Queue[asyncio.Task[R] | None] = asyncio.Queue()
    changed = asyncio.Event()
    num_running = num_held = waiting_size = 0

    def is_full() -> bool:
        return num_running >= limits.running or num_held >= limits.held or waiting_size >= limits.waiting_size

    async def worked(item: T) -> R:
        nonlocal num_running, waiting_size
        result = await work(item)
        num_running -= 1
        waiting_size += len(result)
        changed.set()
        return result

    async def begin(group: asyncio.TaskGroup) -> None:
        nonlocal num_running, num_held
        while True:
            while is_full():
                changed.clear()
                await changed.wait()
            try:
                item = await anext(items)
            except StopAsyncIteration:
                break
            num_running += 1
            num_held += 1
            begun.put_nowait(group.create_task(worked(item)))
        begun.put_nowait(None)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(begin(group))
            while (task := await begun.get()) is not None:
                result = await task
                give(result)
                num_held -= 1
                waiting_size -= len(result)
                changed.set()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
