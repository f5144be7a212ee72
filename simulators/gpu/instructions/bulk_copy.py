"""`cp.async.bulk`: one thread has many bytes copied, between global memory and shared memory of its block or of others
of its cluster, or reduced into what is there.

Completion is by groups, as for `cp.async`, or by an mbarrier that is told how many bytes have come.
Source: PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy: bulk copies".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.asynchronous_copy import group_count
from simulators.gpu.instructions.atomic import Combine, combine_of
from simulators.gpu.instructions.copy_engine import PIECE, Copy, Groups, check_multiple
from simulators.gpu.instructions.mbarrier import barriers_of, signals_of
from simulators.gpu.instructions.modifiers import TYPES, MemoryModifiers
from simulators.gpu.instructions.signals import Signal
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.memory.spaces import OFFSET_MASK, RANK_SHIFT
from simulators.gpu.ptx.module import Instruction, Operand
from simulators.gpu.watch import Engine

Array = NDArray[Any]
BY_BARRIER, BY_GROUP = "mbarrier::complete_tx::bytes", "bulk_group"
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_HINT, _MULTICAST = "L2::cache_hint", "multicast::cluster"
_ROUTES = (
    ("shared::cluster", "global", BY_BARRIER),
    ("shared::cta", "global", BY_BARRIER),
    ("shared::cluster", "shared::cta", BY_BARRIER),
    ("global", "shared::cta", BY_GROUP),
)


def bulk_groups(machine: Machine) -> Groups:
    return machine.rendezvous("bulk groups", partial(Groups, "bulk"))


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    match instruction.modifiers:
        case ("async", "bulk", "commit_group"):
            return Straight(
                instruction,
                lambda machine, threads: bulk_groups(machine).commit(machine, machine.batch.numbers(threads)),
            )
        case ("async", "bulk", "wait_group", *rest) if rest in ([], ["read"]):
            return _decode_wait(instruction, for_reads_only=bool(rest))
        case ("async", "bulk", "prefetch", *_):
            # What is fetched early is the same.
            return Straight(instruction, lambda machine, threads: None)
        case ("async" | "reduce", *rest) if "bulk" in rest and "tensor" not in rest:
            return _decode_copy(instruction, scope)
    return None


def _decode_wait(instruction: Instruction, *, for_reads_only: bool) -> Operation:
    newest = group_count(instruction)

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        bulk_groups(machine).wait(machine, numbers, newest, for_reads_only=for_reads_only)

    return Straight(instruction, run)


def _decode_copy(instruction: Instruction, scope: Scope) -> Operation:
    """`[to], [of], bytes {, [mbarrier]} {, mask of blocks} {, cache policy}`."""
    reduces = instruction.modifiers[0] == "reduce"
    start = 3 if reduces else 2
    to_space, of_space, completion, *rest = instruction.modifiers[start:]
    if (to_space, of_space, completion) not in _ROUTES or (reduces and of_space == "global"):
        raise UnsupportedInstruction(instruction)
    modifiers = [one for one in rest if one not in (_HINT, _MULTICAST)]
    unit, combine = PIECE, None
    if reduces:
        unit, combine = reduction(instruction, modifiers)
    elif modifiers:
        raise UnsupportedInstruction(instruction, f"modifier .{modifiers[0]} is unknown")
    to, of = (scope.address(instruction, one) for one in instruction.operands[:2])
    size = scope.source(instruction, instruction.operands[2], 32)
    finish = Finish.decoded(instruction, scope, instruction.operands[3:])

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        sizes = np.broadcast_to(size(machine, threads), len(numbers)).astype(np.int64)
        check_multiple(machine, instruction, numbers, sizes, PIECE)
        starts = to(machine, threads), of(machine, threads)
        for addresses in starts:
            check_multiple(machine, instruction, numbers, addresses, PIECE)
        counts = sizes // unit
        owners = np.repeat(np.arange(len(numbers)), counts)
        steps = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = (steps * unit).astype(np.uint64)
        copy = Copy(
            instruction,
            unit,
            numbers[owners],
            of_space,
            starts[1][owners] + offsets,
            to_space,
            starts[0][owners] + offsets,
            combine=combine,
        )
        finish.issue(machine, threads, copy, owners, sizes)

    return Straight(instruction, run)


def reduction(instruction: Instruction, modifiers: Sequence[str]) -> tuple[int, Combine]:
    """modifiers: `op{.noftz}.type`. Returns the bytes of an element, and what is left of two. An addition of f32 keeps
    denormals, as was seen on an H200: as an atomic in shared memory does, and one in global memory does not."""
    kind = modifiers[-1]
    if kind not in TYPES or modifiers[0] not in REDUCTIONS or set(modifiers[1:-1]) - {"noftz"}:
        raise UnsupportedInstruction(instruction)
    bits = TYPES[kind]
    return bits // 8, combine_of(
        instruction, modifiers[0], MemoryModifiers("shared", kind, bits, 1, "relaxed", "gpu", tuple(modifiers[1:-1]))
    )


@dataclass(frozen=True)
class Finish:
    """How those that wait for a bulk copy are told of its end."""

    instruction: Instruction
    barrier: Source | None  # None: by group
    blocks: Source | None = None  # a mask of the cluster's blocks that all get a copy

    @staticmethod
    def decoded(instruction: Instruction, scope: Scope, operands: Sequence[Operand]) -> Finish:
        """operands: `{[mbarrier]} {, mask} {, cache policy}`."""
        left = list(operands)
        by_barrier = BY_BARRIER in instruction.modifiers
        barrier = scope.address(instruction, left.pop(0)) if by_barrier and left else None
        multicasts = _MULTICAST in instruction.modifiers
        blocks = scope.source(instruction, left.pop(0), 16) if multicasts and left else None
        has_policy = _HINT in instruction.modifiers
        if len(left) != has_policy or (barrier is None) == by_barrier or (blocks is None) == multicasts:
            raise UnsupportedInstruction(instruction, "its operands are not those that its modifiers ask for")
        return Finish(instruction, barrier, blocks)

    def issue(self, machine: Machine, threads: Threads, copy: Copy, owners: Array, sizes: Array) -> None:
        """owners: of each piece, which of the threads it belongs to; sizes: int64, the bytes of each thread's copy."""
        if self.barrier is None:
            bulk_groups(machine).issue(machine, copy)
            return
        numbers = machine.batch.numbers(threads)
        barriers = self.barrier(machine, threads)
        if self.blocks is not None:
            copy, owners, numbers, sizes, barriers = self._for_all_blocks(
                machine, copy, owners, numbers, sizes, barriers, self.blocks(machine, threads)
            )
        rows = barriers_of(machine).rows(machine, self.instruction, "shared", barriers, numbers, "update")
        copy = replace(copy, keys=rows[owners])
        none = np.zeros(len(numbers), np.int64)
        engine: Engine = "bulk" if self.instruction.opcode == "cp" else "st.async"
        signals_of(machine).issue(machine, engine, Signal(self.instruction, numbers, rows, sizes, none, copy))

    def _for_all_blocks(
        self, machine: Machine, copy: Copy, owners: Array, numbers: Array, sizes: Array, barriers: Array, masks: Array
    ) -> tuple[Copy, Array, Array, Array, Array]:
        """The same once for each block of the masks: at the same place in its shared memory, and telling the object at
        the same place. With .cta_group::2 that of the pair's block which has the parity that the address names."""
        masks = np.broadcast_to(masks, len(numbers)).astype(np.int64)
        too_many = masks >> machine.launch.cluster_blocks != 0
        if (too_many | (masks == 0)).any():
            which = int(np.flatnonzero(too_many | (masks == 0))[0])
            message = f"mask {int(masks[which]):#x} of a cluster of {machine.launch.cluster_blocks} blocks"
            raise machine.fault(self.instruction, int(numbers[which]), message)
        within = np.uint64(OFFSET_MASK)
        pieces: list[Copy] = []
        whose, signals, places = (list[Array]() for _ in range(3))
        for rank in range(machine.launch.cluster_blocks):
            chosen = masks >> rank & 1 != 0
            new_number = np.cumsum(chosen) - 1 + sum(len(one) for one in signals)
            mine = chosen[owners]
            part = copy.of(mine)
            base = np.uint64(rank << RANK_SHIFT)
            pieces.append(replace(part, destinations=part.destinations & within | base))
            whose.append(new_number[owners[mine]])
            signals.append(np.flatnonzero(chosen))
            told = np.full(int(chosen.sum()), rank)
            if "cta_group::2" in self.instruction.modifiers:
                told = told & ~1 | (barriers[chosen] >> np.uint64(RANK_SHIFT)).astype(np.int64) & 1
            places.append(barriers[chosen] & within | (told << RANK_SHIFT).astype(np.uint64))
        who = np.concatenate(signals)
        return joined(pieces), np.concatenate(whose), numbers[who], sizes[who], np.concatenate(places)


def joined(copies: Sequence[Copy]) -> Copy:
    """Copies that differ in their pieces alone."""
    first = copies[0]
    if len(copies) == 1:
        return first
    return replace(
        first,
        threads=np.concatenate([one.threads for one in copies]),
        sources=np.concatenate([one.sources for one in copies]),
        destinations=np.concatenate([one.destinations for one in copies]),
        is_copied=None
        if first.is_copied is None
        else np.concatenate([one.is_copied for one in copies if one.is_copied is not None]),
    )


DECODERS = {"cp": _decode}
