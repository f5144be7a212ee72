"""Barriers of a block, of a cluster and of a warp.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: bar, barrier, barrier.cluster,
bar.warp.sync".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import NONE, Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.block_barrier import BARRIERS, Arrival, BlockBarriers
from simulators.gpu.instructions.warp_barrier import tell_synchronized, warp_barrier
from simulators.gpu.instructions.warp_meeting import complete_warps
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting, Operation
from simulators.gpu.machine.scope import Scope
from simulators.gpu.machine.waiting import name_threads
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]


def _decode_barrier(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = tuple(one for one in instruction.modifiers if one != "cta")
    if modifiers[0] == "cluster":
        return _decode_cluster(instruction, modifiers, pc)
    if modifiers[0] == "warp":
        mask = scope.source(instruction, instruction.operands[0], 32)
        return warp_barrier(instruction, pc, mask)
    is_aligned = instruction.opcode == "bar" or "aligned" in modifiers
    kind, *details = [one for one in modifiers if one != "aligned"]
    operands = list(instruction.operands)
    put, flag, reduction = None, None, ""
    if kind == "red":
        reduction = details[0]
        if reduction not in ("popc", "and", "or"):
            raise UnsupportedInstruction(instruction)
        put = scope.destination(instruction, operands.pop(0))
        flag = scope.source(instruction, operands.pop(), 1)
    elif kind not in ("sync", "arrive") or details:
        raise UnsupportedInstruction(instruction)
    if kind == "arrive" and len(operands) < 2:
        raise UnsupportedInstruction(instruction, "who does not wait must say how many threads are waited for")
    number = scope.source(instruction, operands[0], 32)
    count = scope.source(instruction, operands[1], 32) if len(operands) > 1 else None
    place = f"{instruction.place}: {instruction.text}"

    def is_one(machine: Machine, threads: Threads) -> bool:
        """Do all threads name the same barrier, and one that there is?"""
        numbers = np.atleast_1d(number(machine, threads))
        return bool(numbers[0] < BARRIERS and (numbers == numbers[0]).all())

    def meet(machine: Machine, threads: Threads) -> Threads:
        if is_aligned:
            threads = complete_warps(machine, instruction, pc, threads)
        barriers = machine.rendezvous("block barriers", BlockBarriers)
        all_are_here = machine.batch.count(threads) == machine.batch.num_alive
        if kind == "sync" and all_are_here and count is None and barriers.is_empty() and is_one(machine, threads):
            _all_synchronized(machine, threads)
            return threads  # every thread of every block
        numbers = machine.batch.numbers(threads)
        if not len(numbers):
            return NONE
        ids = np.broadcast_to(number(machine, threads), numbers.shape)
        counts = np.broadcast_to(count(machine, threads), numbers.shape) if count else np.zeros_like(ids)
        flags = np.broadcast_to(flag(machine, threads), numbers.shape) if flag else None
        _check(machine, instruction, numbers, ids, counts)
        machine.batch.pc[numbers] = pc
        for one, of_threads in sorted({*zip(ids.tolist(), counts.tolist(), strict=True)}):
            mine = (ids == one) & (counts == of_threads)
            arrival = Arrival(
                numbers[mine],
                kind != "arrive",
                of_threads,
                reduction,
                None if flags is None else flags[mine],
                put,
                place,
            )
            barriers.arrive(machine, instruction, one, arrival)
        return threads if kind == "arrive" else NONE

    return Meeting(instruction, meet)


def _check(machine: Machine, instruction: Instruction, threads: Array, ids: Array, counts: Array) -> None:
    wrong = (ids >= BARRIERS) | (counts % 32 != 0)
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        message = f"barrier {int(ids[first])} for {int(counts[first])} threads: there are {BARRIERS}, for whole warps"
        raise machine.fault(instruction, int(threads[first]), message)


def _all_synchronized(machine: Machine, threads: Threads) -> None:
    machine.changes += 1
    if machine.watchers:
        numbers = machine.batch.numbers(threads)
        tell_synchronized(machine, numbers, machine.batch.slot[numbers])


class ClusterBarrier:
    """How often each thread has arrived, and how often each cluster's threads all have."""

    def __init__(self) -> None:
        self._arrivals = np.zeros(0, np.int64)  # by thread
        self._completed = np.zeros(0, np.int64)  # by cluster
        self._waiting = np.zeros(0, np.bool_)  # by thread

    def arrive(self, machine: Machine, instruction: Instruction, threads: Array, *, releases: bool) -> None:
        self._grow(machine)
        ahead = self._arrivals[threads] > self._completed[_clusters(machine)[threads]]
        if ahead.any():
            raise machine.fault(instruction, int(threads[ahead][0]), "it arrives twice without waiting between")
        self._arrivals[threads] += 1
        for watcher in machine.watchers:
            for cluster, mine in _by_cluster(machine, threads):
                key = "cluster", cluster, int(self._completed[cluster])
                watcher.arrived(machine, mine, key, is_relaxed=not releases)
        self.exited(machine)

    def wait(self, machine: Machine, pc: int, instruction: Instruction, threads: Array) -> NDArray[np.intp]:
        """Those whose barrier is complete. The rest will be resumed."""
        self._grow(machine)
        completed = self._completed[_clusters(machine)[threads]]
        idle = self._arrivals[threads] == 0
        if idle.any():
            raise machine.fault(instruction, int(threads[idle][0]), "it waits without having arrived")
        goes_on = completed >= self._arrivals[threads]
        stays = threads[~goes_on]
        machine.batch.pc[stays] = pc
        self._waiting[stays] = True
        self._acquire(machine, threads[goes_on])
        return threads[goes_on]

    def exited(self, machine: Machine) -> None:
        self._grow(machine)
        clusters = _clusters(machine)
        lacks = machine.batch.alive & (self._arrivals <= self._completed[clusters])
        missing = np.bincount(clusters[lacks], minlength=len(self._completed))
        arrived = np.bincount(clusters[machine.batch.alive], minlength=len(self._completed))
        complete = (missing == 0) & (arrived > 0)
        self._completed[complete] += 1
        released = np.flatnonzero(self._waiting & complete[clusters])
        if len(released):
            self._waiting[released] = False
            self._acquire(machine, released)
            machine.resume(released)

    def waits(self, machine: Machine) -> Iterator[str]:
        waiting = np.flatnonzero(self._waiting)
        if len(waiting):
            absent = np.flatnonzero(machine.batch.alive & (self._arrivals <= self._completed[_clusters(machine)]))
            yield (
                f"{name_threads(machine, waiting)} wait at the cluster's barrier, to which "
                f"{name_threads(machine, absent)} have not come"
            )

    def _acquire(self, machine: Machine, threads: Array) -> None:
        for watcher in machine.watchers:
            for cluster, mine in _by_cluster(machine, threads):
                watcher.waited(machine, mine, ("cluster", cluster, int(self._arrivals[mine[0]]) - 1))

    def _grow(self, machine: Machine) -> None:
        more = machine.batch.num_threads - len(self._arrivals)
        if more:
            self._arrivals = np.concatenate([self._arrivals, np.zeros(more, np.int64)])
            self._waiting = np.concatenate([self._waiting, np.zeros(more, np.bool_)])
            clusters = machine.batch.slots // machine.launch.cluster_blocks
            self._completed = np.concatenate([self._completed, np.zeros(clusters - len(self._completed), np.int64)])


def _clusters(machine: Machine) -> NDArray[np.intp]:
    """Of each thread."""
    return (machine.batch.slot // machine.launch.cluster_blocks).astype(np.intp)


def _by_cluster(machine: Machine, threads: Array) -> Iterator[tuple[int, NDArray[np.intp]]]:
    clusters = _clusters(machine)[threads]
    for cluster in np.unique(clusters):
        yield int(cluster), threads[clusters == cluster]


def _decode_cluster(instruction: Instruction, modifiers: tuple[str, ...], pc: int) -> Operation:
    kind = modifiers[1]
    if kind not in ("arrive", "wait") or set(modifiers[2:]) - {"aligned", "release", "acquire", "relaxed"}:
        raise UnsupportedInstruction(instruction)

    def meet(machine: Machine, threads: Threads) -> Threads:
        if "aligned" in modifiers:
            threads = complete_warps(machine, instruction, pc, threads)
        barrier = machine.rendezvous("cluster barrier", ClusterBarrier)
        numbers = machine.batch.numbers(threads)
        if not len(numbers):
            return NONE
        if kind == "wait":
            return machine.batch.as_set(barrier.wait(machine, pc, instruction, numbers))
        releases = "relaxed" not in modifiers
        if machine.late_stores is not None and releases:
            machine.late_stores.let_out(machine.batch.slot[numbers])
        barrier.arrive(machine, instruction, numbers, releases=releases)
        return threads

    return Meeting(instruction, meet)


DECODERS = {"bar": _decode_barrier, "barrier": _decode_barrier}
