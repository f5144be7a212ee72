"""Threads of a warp that execute one instruction together: who waits for whom.

Each waits until every living thread that its mask names has come to the instruction, or to another of the same name
(opcode and modifiers): each with its own operands. A thread that is not in its own mask is an error.

Source: PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync": the same qualifiers and the same membermask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import NONE, Threads, is_all, pack_lanes
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting
from simulators.gpu.machine.scope import Destination, Scope, Source
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
FULL = np.uint32(0xFFFFFFFF)
Results = tuple[Array, ...]  # each of one value a thread
# Of the machine, the threads that have all come, their masks, and what they hold: each one value a thread, or one for
# all.
Compute = Callable[..., Results]


@dataclass(frozen=True)
class _Place:
    """One instruction at which threads may meet others."""

    pc: int
    mask: Source
    sources: Sequence[Source]
    puts: Sequence[Destination | None]

    def put(self, machine: Machine, threads: Threads, results: Results) -> None:
        for put, result in zip(self.puts, results, strict=False):  # what nobody asked for is left
            if put is not None:
                put(machine, threads, result)


def meeting(
    instruction: Instruction,
    scope: Scope,
    pc: int,
    mask: Source,
    sources: Sequence[Source],
    compute: Compute,
    puts: Sequence[Destination | None],
) -> Meeting:
    """Those whose whole mask is here go on; the rest are parked, until those at places of the same name complete it."""
    place, alike = _Place(pc, mask, sources, puts), scope.alike.setdefault(instruction.name, [])
    alike.append(place)

    def meet(machine: Machine, threads: Threads) -> Threads:
        parked = machine.unpark(pc)
        here = machine.batch.union([threads, *parked]) if parked else threads
        masks = np.asarray(mask(machine, here))
        is_whole = is_all(here) and masks.ndim == 0 and masks == FULL
        if not is_whole:
            here, masks = _complete(machine, instruction, pc, here, masks)
        if machine.batch.count(here):
            place.put(machine, here, compute(machine, here, masks, *[one(machine, here) for one in sources]))
        if not is_whole and len(alike) > 1:
            here = machine.batch.union([here, _meet_elsewhere(machine, place, alike, compute)])
        return here

    return Meeting(instruction, meet)


def _meet_elsewhere(machine: Machine, place: _Place, alike: Sequence[_Place], compute: Compute) -> NDArray[np.intp]:
    """Of those that are parked at places of one name, some may complete the others' masks: they all go on. Returns
    those that stand at this place."""
    batch = machine.batch
    parked = [(one, batch.numbers(batch.union(parts))) for one in alike if (parts := machine.unpark(one.pc))]
    going = [(one, NONE) for one, _ in parked]
    if len(parked) > 1:
        numbers = np.concatenate([threads for _, threads in parked])
        masks = np.concatenate([np.broadcast_to(one.mask(machine, threads), threads.shape) for one, threads in parked])
        has_come = _have_come(machine, numbers, masks)
        ends = np.cumsum([len(threads) for _, threads in parked])[:-1]
        parts_come = np.split(has_come, ends)
        going = [(one, threads[come]) for (one, threads), come in zip(parked, parts_come, strict=True)]
        if has_come.any():
            _compute_together(machine, going, masks[has_come], compute)
    for (one, threads), (_, gone) in zip(parked, going, strict=True):
        if len(gone) < len(threads):
            machine.park(one.pc, np.setdiff1d(threads, gone, assume_unique=True))
        if one is not place:
            machine.add(one.pc + 1, gone)
    return next((gone for one, gone in going if one is place), NONE)


def _compute_together(
    machine: Machine, going: Sequence[tuple[_Place, NDArray[np.intp]]], masks: Array, compute: Compute
) -> None:
    """masks: of the threads, in their order in `going`."""
    machine.changes += 1
    numbers = np.concatenate([threads for _, threads in going])
    order = np.argsort(numbers)
    whose = np.repeat(np.arange(len(going)), [len(threads) for _, threads in going])[order]
    by_place = [[np.broadcast_to(one(machine, some), some.shape) for one in place.sources] for place, some in going]
    held = [np.concatenate(column)[order] for column in zip(*by_place, strict=True)]
    results = compute(machine, numbers[order], masks[order], *held)
    for i, (place, threads) in enumerate(going):
        place.put(machine, threads, tuple(result[whose == i] for result in results))


def complete_warps(machine: Machine, instruction: Instruction, pc: int, threads: Threads) -> Threads:
    """Those whose whole warp is here: what `.aligned` asks for. The rest are parked."""
    parked = machine.unpark(pc)
    here = machine.batch.union([threads, *parked]) if parked else threads
    return here if is_all(here) else _complete(machine, instruction, pc, here, np.asarray(FULL))[0]


def _complete(
    machine: Machine, instruction: Instruction, pc: int, here: Threads, masks: Array
) -> tuple[Threads, Array]:
    """Those that have all come, with their masks. The rest are parked."""
    batch = machine.batch
    numbers = batch.numbers(here)
    masks = np.broadcast_to(masks, numbers.shape)
    check_members(machine, instruction, numbers, masks)
    has_come = _have_come(machine, numbers, masks)
    if has_come.all():
        return batch.as_set(numbers), masks
    machine.park(pc, numbers[~has_come])
    return batch.as_set(numbers[has_come]), masks[has_come]


def _have_come(machine: Machine, threads: NDArray[np.intp], masks: Array) -> NDArray[np.bool_]:
    """Is every living thread that its mask names among these?"""
    batch = machine.batch
    warps = batch.warp[threads]
    return np.asarray(masks & pack_lanes(batch.alive)[warps] & ~batch.lane_bits(threads)[warps] == 0)


def check_members(machine: Machine, instruction: Instruction, threads: NDArray[np.intp], masks: Array) -> None:
    """Errors: SimulatorError for a thread that its mask does not name."""
    outside = (masks >> machine.batch.lane[threads]) & np.uint32(1) == 0
    if outside.any():
        message = f"it is not in its own membermask {int(masks[outside][0]):#010x}"
        raise machine.fault(instruction, int(threads[outside][0]), message)
