"""The batches that a runner was handed and whose results were not taken: at most two, first in first out."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from reference.serving.runner import MAX_IN_FLIGHT

T = TypeVar("T")


class InFlight(Generic[T]):
    """Whatever a runner keeps of each batch, under the ticket that it gave out."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, T]] = deque()
        self._num_added = 0

    def check_room(self) -> None:
        """Errors: ValueError if no more may be submitted."""
        if len(self._kept) == MAX_IN_FLIGHT:
            raise ValueError(f"{MAX_IN_FLIGHT} batches are in flight already; take a result first")

    def add(self, kept: T) -> int:
        """The ticket of one more."""
        self._num_added += 1
        self._kept.append((self._num_added, kept))
        return self._num_added

    def take(self, ticket: int) -> T:
        """Errors: ValueError for any ticket but the oldest; nothing is lost then."""
        if not self._kept:
            raise ValueError("no batch is in flight")
        expected, kept = self._kept[0]
        if ticket != expected:
            raise ValueError(f"results are taken in order: expected ticket {expected}, got {ticket}")
        self._kept.popleft()
        return kept

    def clear(self) -> None:
        self._kept.clear()
