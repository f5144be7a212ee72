"""What an engine tells of itself while it works, for metrics. Declarations only."""

from __future__ import annotations

from typing import Protocol


class CoreObserver(Protocol):
    """Told by the engine's thread; must be quick and must not raise. Times are in seconds."""

    def scheduled(self, queue_seconds: float) -> None:
        """A sample ran for the first time, that long after its request was added."""

    def prefix_lookup(self, num_tokens: int, num_cached: int) -> None:
        """A sample was admitted with that many known tokens, of which so many were in the prefix cache."""

    def preempted(self) -> None:
        """A running sample lost its KV blocks and will be recomputed."""

    def stepped(self, *, num_running: int, num_waiting: int, num_batched_tokens: int, kv_usage: float) -> None:
        """A step was planned: samples in it or waiting, its tokens, and the share of KV blocks that samples hold."""


class Silent:
    """Tells nobody."""

    def scheduled(self, queue_seconds: float) -> None: ...

    def prefix_lookup(self, num_tokens: int, num_cached: int) -> None: ...

    def preempted(self) -> None: ...

    def stepped(self, *, num_running: int, num_waiting: int, num_batched_tokens: int, kv_usage: float) -> None: ...
