"""How instructions reach memory: by thread, with every access checked, and told to those who watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import SimulatorError
from simulators.gpu.memory.buffer import mark
from simulators.gpu.memory.spaces import MemoryFault, Target
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Access, Completion, Kind, Order, Scope

if TYPE_CHECKING:
    from simulators.gpu.machine.machine import Machine

Array = NDArray[Any]


@dataclass(frozen=True)
class Way:
    """How an instruction accesses memory."""

    instruction: Instruction
    space: str  # "generic", "global", "shared", ...
    width: int  # bytes of an element
    count: int = 1  # elements of each thread
    order: Order = "weak"
    scope: Scope = "gpu"
    completion: Completion | None = None  # of what an engine does later; None: it is done at once
    is_multicast: bool = False  # through a multicast window, to each of its replicas

    @property
    def size(self) -> int:
        return self.width * self.count


def load(machine: Machine, way: Way, addresses: Array, threads: Threads) -> tuple[Array, ...]:
    """u64 addresses [N] to `count` new arrays [N]."""
    found: tuple[Array, ...] | None = None
    for target in targets(machine, way, addresses, threads, "read"):
        values = target.buffer.gather(target.offsets, way.width, way.count)
        if target.which is None:
            return values
        if found is None:
            found = tuple(np.empty(len(addresses), one.dtype) for one in values)
        for whole, part in zip(found, values, strict=True):
            whole[target.which] = part
    assert found is not None
    return found


def load_replicas(
    machine: Machine, way: Way, addresses: Array, threads: Threads
) -> list[tuple[NDArray[np.intp] | None, list[tuple[Array, ...]]]]:
    """Of each multicast window: which of the accesses go there (None: all), and what each replica holds, as `load`."""
    windows: list[tuple[NDArray[np.intp] | None, list[tuple[Array, ...]]]] = []
    for target in targets(machine, way, addresses, threads, "read"):
        if target.replica == 0:
            windows.append((target.which, []))
        windows[-1][1].append(target.buffer.gather(target.offsets, way.width, way.count))
    return windows


def store(machine: Machine, way: Way, addresses: Array, values: Sequence[Array], threads: Threads) -> None:
    """values: `count` arrays [N], or scalars, of the width's unsigned dtype."""
    for target in targets(machine, way, addresses, threads, "write", values):
        part = tuple(_part(value, target.which) for value in values)
        if machine.late_stores is not None and target.space == "global":
            slots = machine.batch.slot[_part(machine.batch.numbers(threads), target.which)]
            machine.late_stores.hold(slots, target.buffer, target.offsets, part, way.width)
        else:
            machine.write(target.buffer, target.offsets, part, way.width)


def update(
    machine: Machine,
    way: Way,
    addresses: Array,
    threads: Threads,
    compute: Callable[[Array, NDArray[np.intp]], Array],
    scan: Callable[[Array, NDArray[np.intp]], Array | None] | None = None,
) -> Array:
    """Read, compute and write as one, thread after thread. compute: from what is found in distinct places, [n] or
    [n, count], and which of the accesses these are, to what is left there. scan: from what is found in one place, [1],
    and which accesses go there, in their order, to what each finds, and what is left, [n + 1]; or None, if these must
    be computed one by one. Returns what each thread found: [N] or [N, count]."""
    before: Array | None = None
    for target in targets(machine, way, addresses, threads, "update"):
        which = np.arange(len(addresses)) if target.which is None else target.which
        view = target.buffer.view(way.width, way.count)
        rows = target.offsets // way.size
        if before is None:
            before = np.empty((len(addresses), *view.shape[1:]), view.dtype)
        if scan is not None:
            rows, which = _scan_crowds(machine, view, rows, which, scan, before)
        for turn in turns(rows):
            place, who = rows[turn], which[turn]
            found = view[place]
            before[who] = found
            left = compute(found, who)
            if not np.array_equal(left, found):
                machine.changes += 1
            view[place] = left
    assert before is not None
    return before


def _scan_crowds(
    machine: Machine,
    view: Array,
    rows: NDArray[np.intp],
    which: NDArray[np.intp],
    scan: Callable[[Array, NDArray[np.intp]], Array | None],
    before: Array,
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Do the accesses to places at which many meet, if such places are few. Returns the others: rows, and which."""
    places, counts = np.unique(rows, return_counts=True)
    crowded = places[counts > 1]
    if len(crowded) >= counts.max(initial=1):
        return rows, which
    is_left = np.ones(len(rows), np.bool_)
    for place in crowded:
        mine = rows == place
        seen = scan(view[place : place + 1], which[mine])
        if seen is not None:
            before[which[mine]] = seen[:-1]
            machine.changes += bool((seen != seen[0]).any())
            view[place] = seen[-1]
            is_left &= ~mine
    return rows[is_left], which[is_left]


def reduce(machine: Machine, way: Way, addresses: Array, threads: Threads, function: np.ufunc, values: Array) -> None:
    """As `update`, where no order shows. values: [N], of the dtype that the function works on."""
    for target in targets(machine, way, addresses, threads, "update"):
        view = target.buffer.view(way.width).view(values.dtype)
        rows = target.offsets // way.width
        before = view[rows]
        function.at(view, rows, _part(values, target.which))
        if not np.array_equal(view[rows], before):
            machine.changes += 1


def turns(rows: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Parts of the accesses, such that no place is twice in one, and those to one place keep their order."""
    _, first, counts = np.unique(rows, return_index=True, return_counts=True)
    if len(first) == len(rows):
        return [np.arange(len(rows))]
    order = np.argsort(rows, kind="stable")
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    number = np.arange(len(rows)) - starts  # among the accesses to the same place
    by_turn = order[np.lexsort((order, number))]
    return np.split(by_turn, np.cumsum(np.bincount(number))[:-1])


def targets(
    machine: Machine,
    way: Way,
    addresses: Array,
    threads: Threads,
    kind: Kind,
    values: Sequence[Array] = (),
    *,
    is_aligned: bool = True,
) -> list[Target]:
    """Where the accesses go. Errors: SimulatorError, naming the first thread whose access is wrong."""
    addresses = addresses if addresses.dtype == np.uint64 else addresses.astype(np.uint64)
    try:
        find = machine.spaces.targets if is_aligned else machine.spaces.unaligned_targets
        if way.is_multicast:
            find = machine.spaces.multicast_targets
        found = list(find(way.space, addresses, way.size, threads))
    except MemoryFault as fault:
        thread = int(machine.batch.numbers(threads)[fault.which])
        raise machine.fault(way.instruction, thread, str(fault)) from None
    if machine.launch.cluster_blocks > 1 and machine.batch.ended.any():
        _check_lives(machine, way, threads, found)
    if machine.watchers or way.order != "weak":
        _tell(machine, way, threads, kind, values, found)
    if machine.late_stores is not None:
        _let_out(machine, way, threads, kind, found)
    if kind != "read":
        for target in found:
            if target.space == "param":
                raise SimulatorError("parameters are read-only", way.instruction.place)
            if target.written is not None:
                mark(target.written, target.offsets, way.size)
    return found


def _check_lives(machine: Machine, way: Way, threads: Threads, found: Sequence[Target]) -> None:
    for target in found:
        if target.space == "shared":
            has_ended = machine.batch.ended[target.offsets // machine.shared.stride]
            if has_ended.any():
                thread = _part(machine.batch.numbers(threads), target.which)[np.flatnonzero(has_ended)[0]]
                raise machine.fault(way.instruction, int(thread), "it is shared memory of a block that has ended")


def _let_out(machine: Machine, way: Way, threads: Threads, kind: Kind, found: Sequence[Target]) -> None:
    """A block sees its own stores, and a release lets them out. A plain store is held back with the others, behind
    those to the same bytes; a copy is not."""
    late, slots = machine.late_stores, machine.batch.slot[threads]
    assert late is not None
    if kind != "read" and way.order in ("release", "acq_rel") and way.scope != "cta":
        late.let_out(slots)
    elif kind != "write" or way.completion is not None:
        for target in found:
            if target.space == "global":
                late.let_out_overlapping(_part(slots, target.which), target.buffer, target.offsets, way.size)


def _tell(
    machine: Machine, way: Way, threads: Threads, kind: Kind, values: Sequence[Array], found: Sequence[Target]
) -> None:
    numbers = machine.batch.numbers(threads)
    for target in found:
        access = Access(
            way.instruction,
            kind,
            numbers if target.which is None else numbers[target.which],
            target.space,
            target.name,
            target.start,
            target.buffer,
            target.offsets,
            way.size,
            way.order,
            way.scope,
            tuple(_part(value, target.which) for value in values),
            way.completion,
            target.written,
        )
        if way.order != "weak" and kind != "write":
            machine.polled[id(way.instruction)] = access
        for watcher in machine.watchers:
            watcher.access(machine, access)


def _part(value: Array, which: NDArray[np.intp] | None) -> Array:
    return value if which is None or np.ndim(value) == 0 else value[which]
