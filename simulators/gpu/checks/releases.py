"""Releases that are acquired: through strong accesses, fences, barriers and mbarrier objects.

A release is that of a strong store or atomic, or that of a fence before one; what reads it acquires, at once or at its
next fence. Both must reach each other. Atomics after a release carry it on; a store ends it.
Source: PTX ISA, "Memory Consistency Model: Release and Acquire Patterns, Synchronization".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch
from simulators.gpu.checks.clocks import Clocks, Snapshot
from simulators.gpu.checks.knowledge import Knowledge, joined
from simulators.gpu.watch import SCOPES, Access, Key, Scope

_EVENTS = 64  # fences that are remembered, at least


@dataclass(frozen=True)
class _Released:
    """What can be acquired at a place. A later release of the same sequence says more, and is another one of these."""

    sequence: int
    version: int
    wide: Knowledge = field(default_factory=dict)  # of all releases to the whole GPU
    parts: dict[int, Knowledge] = field(default_factory=dict)  # of the same, by block
    narrow: dict[tuple[Scope, int], Knowledge] = field(default_factory=dict)  # of the others, by scope and block


class Releases:
    """Who has released what, where, and who is about to acquire it. Blocks are numbered as the clocks number them."""

    def __init__(self, clocks: Clocks, cluster_blocks: int) -> None:
        self._clocks = clocks
        self._cluster_blocks = cluster_blocks
        self._released: dict[Key, _Released] = {}
        self._arrived: dict[Key, Knowledge]
        self._versions = 0
        self.begin(0)

    def begin(self, threads: int) -> None:
        """New threads, and none before. What was released in global memory is still there."""
        self._released = {key: one for key, one in self._released.items() if key[0] != "shared"}
        self._arrived = {}  # by barrier and phase
        self._promised: dict[Key, Knowledge] = {}
        self._looked: dict[int, Knowledge] = {}  # by thread: at barriers, for its next fence
        self._fences: list[tuple[Snapshot, Scope]] = []
        self._fence_of = np.full(threads, -1, np.intp)  # by thread: its latest fence
        self._place_in_fence = np.zeros(threads, np.intp)
        self._seen: dict[int, dict[tuple[Key, int, Scope], _Released]] = {}  # by thread: for its next fence
        self._learned: dict[tuple[Key, int], NDArray[np.int64]] = {}  # by place and block: each lane's latest version

    def extend(self, batch: Batch) -> None:
        more = batch.num_threads - len(self._fence_of)
        self._fence_of = np.concatenate([self._fence_of, np.full(more, -1, np.intp)])
        self._place_in_fence = np.concatenate([self._place_in_fence, np.zeros(more, np.intp)])

    # -- barriers ---------------------------------------------------------------------------------------------------

    def arrive(self, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        """is_relaxed: only what the threads' latest fences have released."""
        if is_relaxed:
            fenced = [self._fenced(thread)[0] for thread in threads.tolist() if self._fence_of[thread] >= 0]
            self._arrived[key] = joined((*fenced, self._arrived.get(key, {})))
        for part in () if is_relaxed else self._by_block(threads):
            known = self._clocks.release(part)
            self._arrived[key] = joined((known, self._arrived.get(key, {})))
        *barrier, phase = key
        if isinstance(phase, int):
            self._arrived.pop((*barrier, phase - 2), None)  # nobody waits for it any more

    def promise(self, key: Key, known: Knowledge) -> None:
        """It is released when `key` is passed on."""
        self._promised[key] = known

    def pass_on(self, key: Key, to: Key) -> None:
        self._arrived[to] = joined((self._promised.pop(key), self._arrived.get(to, {})))

    def wait(self, threads: NDArray[np.intp], key: Key, *, is_relaxed: bool = False) -> None:
        """is_relaxed: the threads learn of it at their next fence."""
        known = self._arrived.get(key)
        if known is None:
            return
        if is_relaxed:
            for thread in threads.tolist():
                self._looked[thread] = joined((known, self._looked.get(thread, {})))
            return
        for part in self._by_block(threads):
            self._clocks.acquire(part, known)

    def gather(self, arrived: NDArray[np.intp], waited: NDArray[np.intp]) -> None:
        """Threads of one block have come to a barrier, and some of them have waited there."""
        self._clocks.acquire(waited, self._clocks.release(arrived))

    # -- fences -----------------------------------------------------------------------------------------------------

    def fence(self, threads: NDArray[np.intp], scope: Scope) -> None:
        if self._looked:
            for thread in sorted(self._looked.keys() & set(threads.tolist())):
                self._clocks.acquire(np.array([thread]), self._looked.pop(thread))
        if self._seen:
            for thread in sorted(self._seen.keys() & set(threads.tolist())):
                block = self._clocks.block(thread)
                for (_, _, read_scope), released in self._seen.pop(thread).items():
                    known = self._known(released, block, _narrower(scope, read_scope))
                    self._clocks.acquire(np.array([thread]), known)
        if len(self._fences) >= 2 * self._fence_limit:
            used = np.unique(self._fence_of[self._fence_of >= 0])
            held = self._fence_of >= 0
            self._fence_of[held] = np.searchsorted(used, self._fence_of[held])
            self._fences = [self._fences[one] for one in used]
            self._fence_limit = max(len(self._fences), _EVENTS)
        self._fence_of[threads] = len(self._fences)
        self._place_in_fence[threads] = np.arange(len(threads))
        self._fences.append((self._clocks.snapshot(threads), scope))

    _fence_limit = _EVENTS  # as many as threads hold, or so

    # -- strong accesses --------------------------------------------------------------------------------------------

    def access(self, access: Access, buffer: Key) -> None:
        """As if one thread came after the other. buffer: what names it, "shared" first if it is shared memory."""
        threads, offsets = access.threads, access.offsets
        if access.kind == "read" or not self._may_release(access):
            # Nothing is released between them.
            for part in self._by_block(threads, offsets):
                key = (*buffer, int(offsets[part[0]]))
                if access.kind != "write":
                    self._acquire(access, threads[part], key)
            if access.kind == "write":
                for offset in {*offsets.tolist()}:
                    self._released.pop((*buffer, offset), None)  # what is read from now on is not what was released
            return
        for thread, offset in zip(threads.tolist(), offsets.tolist(), strict=True):
            key = (*buffer, offset)
            if access.kind == "update":
                self._acquire(access, np.array([thread]), key)
            self._release(access, thread, key)

    def _may_release(self, access: Access) -> bool:
        return access.order in ("release", "acq_rel") or bool((self._fence_of[access.threads] >= 0).any())

    def _acquire(self, access: Access, threads: NDArray[np.intp], key: Key) -> None:
        """Threads of one block."""
        released = self._released.get(key)
        if released is None:
            return
        block = self._clocks.block(int(threads[0]))
        learned = self._learned.get((key, block))
        if learned is None:
            learned = self._learned[key, block] = np.zeros(self._clocks.layout.threads, np.int64)
        lanes = threads % self._clocks.layout.threads
        new = threads[learned[lanes] != released.version]
        if not len(new):
            return
        if access.order in ("acquire", "acq_rel"):
            learned[lanes] = released.version
            known = self._known(released, block, access.scope)
            if known:
                self._clocks.acquire(new, known)
        else:
            for thread in new.tolist():
                self._seen.setdefault(thread, {})[key, released.sequence, access.scope] = released

    def _release(self, access: Access, thread: int, key: Key) -> None:
        before = self._released.get(key)
        if access.kind == "write":
            before = None
            self._released.pop(key, None)
        if access.order in ("release", "acq_rel"):
            known, scope = self._clocks.release(np.array([thread])), access.scope
        elif self._fence_of[thread] >= 0:
            known, scope = self._fenced(thread)
            scope = _narrower(scope, access.scope)
        else:
            return
        self._versions += 1
        before = before or _Released(self._versions, 0)
        block = self._clocks.block(thread)
        wide, parts, narrow = before.wide, before.parts, before.narrow
        if _is_wide(scope):
            wide, parts = joined((known, wide)), {**parts, block: joined((known, parts.get(block, {})))}
        else:
            narrow = {**narrow, (scope, block): joined((known, narrow.get((scope, block), {})))}
        self._released[key] = _Released(before.sequence, self._versions, wide, parts, narrow)

    def _fenced(self, thread: int) -> tuple[Knowledge, Scope]:
        """What the thread's latest fence has released, and how far."""
        snapshot, scope = self._fences[self._fence_of[thread]]
        return self._clocks.knowledge_of(thread, snapshot, int(self._place_in_fence[thread])), scope

    def _known(self, released: _Released, block: int, scope: Scope) -> Knowledge:
        """What a block acquires at that scope: of the releases that reach it, those which it reaches."""
        parts = [
            known
            for (released_scope, other), known in released.narrow.items()
            if self._reaches(released_scope, block, other) and self._reaches(scope, block, other)
        ]
        if _is_wide(scope):
            return joined([released.wide, *parts])
        return joined(parts + [known for other, known in released.parts.items() if self._reaches(scope, block, other)])

    def _reaches(self, scope: Scope, block: int, other: int) -> bool:
        if scope == "cluster":
            return block // self._cluster_blocks == other // self._cluster_blocks
        return _is_wide(scope) or block == other

    def _by_block(
        self, threads: NDArray[np.intp], offsets: NDArray[np.intp] | None = None
    ) -> Iterator[NDArray[np.intp]]:
        """Parts of one block; with offsets, which of them are of one block and at one place."""
        keys = self._clocks.blocks(threads)
        if offsets is not None:
            keys = keys * (int(offsets.max()) + 1) + offsets
        named = threads if offsets is None else np.arange(len(threads))
        if (keys == keys[0]).all():
            yield named
            return
        order = np.argsort(keys, kind="stable")
        yield from np.split(named[order], np.flatnonzero(np.diff(keys[order])) + 1)


def _is_wide(scope: Scope) -> bool:
    """There is one GPU."""
    return scope in ("gpu", "sys")


def _narrower(one: Scope, other: Scope) -> Scope:
    return min(one, other, key=SCOPES.index)
