"""From a thread's address in a state space to bytes of a buffer.

Global memory is where the host put it. A block's shared memory begins at `SHARED_BASE`, as on a GPU, where the system
takes the bytes before; bits 24 and up of a shared address are the block's rank in its cluster, and so is the address
that another block of the cluster is given by `mapa`. Generic addresses of shared, local and parameter memory lie in
windows far beyond any address of the host. Source: PTX ISA, "State Spaces".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Batch, Threads
from simulators.gpu.memory.buffer import LINE, Buffer, Indices
from simulators.gpu.memory.global_memory import GlobalMemory

SHARED_BASE = 1024
RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1
WINDOWS = {"shared": 1 << 60, "local": 1 << 61, "param": 1 << 62}  # of generic addresses
_FIRST_WINDOW = np.uint64(1 << 60)
_WINDOW_MASK = (1 << 60) - 1

Addresses = NDArray[np.uint64]


class MemoryFault(Exception):
    """An access that is not within memory, or not aligned; which of the accesses, and why."""

    def __init__(self, which: int, message: str) -> None:
        super().__init__(message)
        self.which = which


class Target(NamedTuple):
    """Where some of a set of accesses go."""

    which: Indices | None  # which of them; None: all
    buffer: Buffer
    offsets: Indices  # bytes into the buffer
    space: str  # "global", "shared", "local", "param"
    written: NDArray[np.bool_] | None  # by byte of the buffer; None: every byte holds a value
    name: str  # of the allocation
    start: int = 0  # the offset of the allocation's first byte
    replica: int = 0  # of a multicast window: its number


class PerOwner:
    """Memory of which every resident block, or thread, has a piece of its own."""

    def __init__(
        self, owners: int, size: int, noise: np.random.Generator | None = None, *, keeps_track: bool = True
    ) -> None:
        """size: bytes of each piece. noise: what they hold before they are written; None: zeros. keeps_track: of which
        bytes have been written."""
        self.size = size
        self._noise = noise
        self.stride = -(-size // LINE) * LINE
        self.buffer = Buffer.of_size(owners * self.stride)
        self._blur(0)
        self.written = np.zeros(len(self.buffer.bytes), np.bool_) if keeps_track else None  # by byte

    def extend(self, owners: int) -> None:
        """Room for more, so many in all."""
        longer = Buffer.of_size(owners * self.stride)
        before = len(self.buffer.bytes)
        longer.bytes[:before] = self.buffer.bytes
        self.buffer = longer
        self._blur(before)
        if self.written is not None:
            self.written = np.concatenate([self.written, np.zeros(len(longer.bytes) - before, np.bool_)])

    def _blur(self, first: int) -> None:
        """What lies from there on holds anything."""
        if self._noise is not None:
            fresh = self.buffer.bytes[first:]
            fresh[:] = np.frombuffer(self._noise.bytes(len(fresh)), np.uint8)


class Spaces:
    """All that a thread can address."""

    def __init__(
        self, batch: Batch, memory: GlobalMemory, shared: PerOwner, local: PerOwner, parameters: bytes
    ) -> None:
        self._batch = batch
        self._global = memory
        self.shared = shared
        self.local = local
        self._parameter_bytes = len(parameters)
        self._own_shared = batch.slot.astype(np.intp) * shared.stride  # where each thread's block has its own
        self.parameters = Buffer.of_size(max(len(parameters), 1))
        self.parameters.bytes[: len(parameters)] = np.frombuffer(parameters, np.uint8)

    def extend(self, batch: Batch) -> None:
        """The batch has more blocks."""
        self.shared.extend(batch.slots)
        self._own_shared = batch.slot.astype(np.intp) * self.shared.stride
        if self.local.size:
            self.local.extend(batch.num_threads)

    def targets(self, space: str, addresses: Addresses, size: int, threads: Threads) -> Iterator[Target]:
        """addresses u64: one for each of the threads. size: bytes of an access, to which it must be aligned: a power of
        two. Errors: MemoryFault."""
        self.check_alignment(addresses, size)
        return self.unaligned_targets(space, addresses, size, threads)

    @staticmethod
    def check_alignment(addresses: Addresses, size: int) -> None:
        if size > 1:
            low_bits = np.uint64(size - 1)
            if np.bitwise_or.reduce(addresses) & low_bits:
                which = int(np.flatnonzero(addresses & low_bits)[0])
                raise MemoryFault(which, f"address {int(addresses[which]):#x} is not a multiple of {size} bytes")

    def unaligned_targets(self, space: str, addresses: Addresses, size: int, threads: Threads) -> Iterator[Target]:
        """As `targets`, for accesses of bytes."""
        if addresses.size == 0:
            return
        match space:
            case "generic":
                yield from self._generic(addresses, size, threads)
            case "global" | "const":
                yield from self._in_global(addresses, size)
            case "shared" | "shared::cluster":
                yield self._in_shared(addresses, size, threads)
            case "shared::cta":
                yield self._in_shared(addresses, size, threads, is_own=True)
            case "local":
                yield self._in_local(addresses, size, threads)
            case "param":
                yield self._in_parameters(addresses, size)
            case _:
                raise ValueError(f"unknown state space {space!r}")

    def _generic(self, addresses: Addresses, size: int, threads: Threads) -> Iterator[Target]:
        if addresses.max() < _FIRST_WINDOW:
            yield from self._in_global(addresses, size)
            return
        numbers = self._batch.numbers(threads)
        windows = addresses >> np.uint64(60)
        for window in np.unique(windows):
            which = np.flatnonzero(windows == window)
            space = {0: "global", 1: "shared", 2: "local", 4: "param"}.get(int(window))
            if space is None:
                raise MemoryFault(int(which[0]), f"address {int(addresses[which[0]]):#x} is in no state space")
            within = addresses[which] & np.uint64(_WINDOW_MASK)
            for target in self.unaligned_targets(space, within, size, numbers[which]):
                place = which if target.which is None else which[target.which]
                whole = place if len(place) < addresses.size else None
                yield Target(
                    whole, target.buffer, target.offsets, target.space, target.written, target.name, target.start
                )

    def _in_global(self, addresses: Addresses, size: int) -> Iterator[Target]:
        for which, allocation in self._global.split(addresses, size):
            if allocation is None:
                first = 0 if which is None else int(which[0])
                where = self._global.describe(int(addresses[first]))
                raise MemoryFault(first, f"{size} bytes at {where}, are not within an allocation")
            some = addresses if which is None else addresses[which]
            offsets = (some - np.uint64(allocation.origin)).view(np.intp)
            yield Target(
                which, allocation.buffer, offsets, "global", allocation.written, allocation.name, allocation.start
            )

    def multicast_targets(self, space: str, addresses: Addresses, size: int, threads: Threads) -> Iterator[Target]:
        """As `targets`, through multicast windows: of each window all replicas, in their order."""
        self.check_alignment(addresses, size)
        for which, window in self._global.split_multicast(addresses, size):
            if window is None:
                first = 0 if which is None else int(which[0])
                where = self._global.describe(int(addresses[first]))
                raise MemoryFault(first, f"{size} bytes at {where}, are not within a multicast window")
            within = (addresses if which is None else addresses[which]) - np.uint64(window.address)
            for number, (one, address) in enumerate(window.replicas):
                offsets = (within + np.uint64(address - one.origin)).view(np.intp)
                yield Target(which, one.buffer, offsets, "global", one.written, one.name, one.start, number)

    def _in_shared(self, addresses: Addresses, size: int, threads: Threads, *, is_own: bool = False) -> Target:
        """is_own: of the thread's own block alone."""
        shared = self.shared
        if self._batch.launch.cluster_blocks > 1:
            offsets = (addresses & np.uint64(OFFSET_MASK)) - np.uint64(SHARED_BASE)
            starts = self._starts_in_cluster(addresses, threads, is_own)
        else:
            offsets, starts = addresses - np.uint64(SHARED_BASE), self._own_shared[threads]
        if shared.size < size or offsets.max() > shared.size - size:  # what is before the first byte is huge
            self._check(addresses >> np.uint64(RANK_SHIFT) < 256, addresses, "is not in shared memory")
            inside = _is_within(offsets, size, shared.size)
            self._check(inside, addresses, f"is not within the block's {shared.size} bytes of shared memory")
        return Target(None, shared.buffer, starts + offsets.view(np.intp), "shared", shared.written, "shared memory")

    def _starts_in_cluster(self, addresses: Addresses, threads: Threads, is_own: bool) -> Indices:
        """Where in the buffer the shared memory begins that each address names."""
        of_cluster = self._batch.launch.cluster_blocks
        slots = self._batch.slot[threads].astype(np.intp)
        ranks, own = (addresses >> np.uint64(RANK_SHIFT)).astype(np.intp), slots % of_cluster
        self._check(ranks < of_cluster, addresses, "names a block that its cluster has not")
        if is_own:
            message = "is in another block of the cluster, which .shared::cluster reaches and .shared{::cta} does not"
            self._check(ranks == own, addresses, message)
        return (slots - own + ranks) * self.shared.stride

    def _in_local(self, addresses: Addresses, size: int, threads: Threads) -> Target:
        local = self.local
        inside = _is_within(addresses, size, local.size)
        self._check(inside, addresses, f"is not within the thread's {local.size} bytes of local memory")
        offsets = self._batch.numbers(threads) * local.stride + addresses.astype(np.intp)
        return Target(None, local.buffer, offsets, "local", local.written, "local memory")

    def _in_parameters(self, addresses: Addresses, size: int) -> Target:
        inside = _is_within(addresses, size, self._parameter_bytes)
        self._check(inside, addresses, f"is not within the {self._parameter_bytes} bytes of parameters")
        return Target(None, self.parameters, addresses.astype(np.intp), "param", None, "parameters")

    @staticmethod
    def _check(right: NDArray[np.bool_], addresses: Addresses, message: str) -> None:
        if not right.all():
            which = int(np.flatnonzero(~right)[0])
            raise MemoryFault(which, f"address {int(addresses[which]):#x} {message}")


def _is_within(addresses: Addresses, size: int, end: int) -> NDArray[np.bool_]:
    """Are these bytes before the end?"""
    return addresses <= np.uint64(end - size) if size <= end else np.zeros(len(addresses), np.bool_)
