"""Which counter of a device a launch takes whose blocks wait for each other: no two that may run at once share one.

A launch that is made now takes the counter of its stream, on which launches follow each other. A launch that is
captured takes one that no other launch ever gets: its graph may be replayed on any stream, beside other graphs and
beside launches that are made now, but not beside itself.
"""

from __future__ import annotations

import threading

NUM_COUNTERS = 65536  # of a device: for its streams, and for each captured launch


class CounterNumbers:
    """Deals out 0 .. count - 1. Threads may share one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._next = 0
        self._of_stream: dict[int, int] = {}
        self._lock = threading.Lock()

    def take(self, stream: int, is_captured: bool) -> int:
        """stream: its handle. Errors: RuntimeError if all are taken."""
        with self._lock:
            if is_captured:
                return self._another()
            if stream not in self._of_stream:
                self._of_stream[stream] = self._another()
            return self._of_stream[stream]

    def _another(self) -> int:
        if self._next == self._count:
            raise RuntimeError(
                f"all {self._count} counters of grid barriers are taken: each captured launch keeps one for good, "
                "so this process can capture no more of them"
            )
        self._next += 1
        return self._next - 1
