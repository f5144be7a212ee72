"""Instructions in which each thread computes for itself, and those that turn addresses of one space into another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Run, Straight
from simulators.gpu.machine.scope import Destination, Scope, Source
from simulators.gpu.machine.special import read_special
from simulators.gpu.memory.spaces import OFFSET_MASK, RANK_SHIFT, WINDOWS
from simulators.gpu.ptx.module import Instruction, Register, Symbol
from simulators.gpu.semantics.elementwise import Elementwise
from simulators.gpu.semantics.table import elementwise_of

_WINDOW_BITS = np.uint64(60)
_CARRY = Register("carry flag", "pred")  # which is no name in PTX


def decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    meaning = elementwise_of(instruction)
    if meaning is None:
        raise UnsupportedInstruction(instruction)
    # The carry flag is a register that instructions do not name.
    read = (_CARRY,) if meaning.reads_carry else ()
    written = [scope.destination(instruction, _CARRY)] if meaning.writes_carry else []
    sources = scope.sources(instruction, (*instruction.operands[1:], *read), meaning.operands)
    destinations = scope.destinations(instruction, instruction.operands[0]) + written
    if len(destinations) != len(meaning.results):
        raise UnsupportedInstruction(
            instruction, f"it has {len(destinations)} results; {len(meaning.results)} are known"
        )
    return Straight(instruction, _computing(meaning, sources, destinations))


def _computing(meaning: Elementwise, sources: Sequence[Source], destinations: Sequence[Destination]) -> Run:
    function = meaning.function
    if len(destinations) == 1:
        (put,) = destinations
        if len(sources) == 1:
            (only,) = sources
            return lambda machine, threads: put(machine, threads, function(only(machine, threads)))
        if len(sources) == 2:
            first, second = sources
            return lambda machine, threads: put(
                machine, threads, function(first(machine, threads), second(machine, threads))
            )
        return lambda machine, threads: put(machine, threads, function(*[one(machine, threads) for one in sources]))

    def run(machine: Machine, threads: Threads) -> None:
        values = function(*[one(machine, threads) for one in sources])
        for put, value in zip(destinations, values, strict=True):
            put(machine, threads, value)

    return run


def _decode_cvta(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    """`cvta.space.u64`: to a generic address; `cvta.to.space.u64`: back."""
    modifiers = instruction.modifiers
    back = modifiers[0] == "to"
    space = modifiers[1 if back else 0].split("::")[0]
    source = scope.address(instruction, operand) if isinstance(operand := instruction.operands[1], Symbol) else None
    source = source or scope.source(instruction, operand, 64)
    put = scope.destination(instruction, instruction.operands[0])
    window = np.uint64(WINDOWS.get(space, 0))
    if space not in (*WINDOWS, "global", "const"):
        raise UnsupportedInstruction(instruction, f"there is no state space {space}")

    def run(machine: Machine, threads: Threads) -> None:
        address = source(machine, threads)
        put(machine, threads, address - window if back else address + window)

    return Straight(instruction, run)


def _decode_isspacep(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    space, _, reach = instruction.modifiers[0].partition("::")
    if space not in (*WINDOWS, "global", "const"):
        raise UnsupportedInstruction(instruction, f"there is no state space {space}")
    source = scope.source(instruction, instruction.operands[1], 64)
    put = scope.destination(instruction, instruction.operands[0])
    window = np.uint64(WINDOWS.get(space, 0)) >> _WINDOW_BITS
    is_own = space == "shared" and reach != "cluster"  # of the thread's own block

    def run(machine: Machine, threads: Threads) -> None:
        addresses = np.broadcast_to(source(machine, threads), machine.batch.count(threads))
        inside = addresses >> _WINDOW_BITS == window
        if space in ("global", "const"):
            is_constant = np.zeros(len(addresses), np.bool_)
            for first, end in scope.constants:
                is_constant |= (addresses >= np.uint64(first)) & (addresses < np.uint64(end))
            inside &= is_constant if space == "const" else ~is_constant
        elif is_own:
            ranks = addresses >> np.uint64(RANK_SHIFT) & np.uint64(0xFF)
            inside &= ranks == read_special(machine, "%cluster_ctarank")[threads]
        put(machine, threads, inside)

    return Straight(instruction, run)


def _decode_mapa(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    """The address that another block of the cluster has for a place in its shared memory."""
    bits = 64 if instruction.modifiers[-1] == "u64" else 32
    operand, rank = instruction.operands[1:]
    by_name = scope.address(instruction, operand) if isinstance(operand, Symbol) else None
    address = by_name or scope.source(instruction, operand, bits)
    rank_source = scope.source(instruction, rank, 32)
    put = scope.destination(instruction, instruction.operands[0])
    dtype = np.uint64 if bits == 64 else np.uint32
    is_generic = not any(one.startswith("shared") for one in instruction.modifiers)

    def run(machine: Machine, threads: Threads) -> None:
        ranks = rank_source(machine, threads).astype(np.uint64) << np.uint64(RANK_SHIFT)
        kept = np.uint64(OFFSET_MASK | (WINDOWS["shared"] if is_generic else 0))
        put(machine, threads, ((address(machine, threads).astype(np.uint64) & kept) | ranks).astype(dtype))

    return Straight(instruction, run)


def _decode_getctarank(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    source = scope.source(instruction, instruction.operands[1], 64 if instruction.modifiers[-1] == "u64" else 32)
    put = scope.destination(instruction, instruction.operands[0])

    def run(machine: Machine, threads: Threads) -> None:
        put(
            machine,
            threads,
            (source(machine, threads).astype(np.uint64) >> np.uint64(RANK_SHIFT)).astype(np.uint32) & np.uint32(0xFF),
        )

    return Straight(instruction, run)


DECODERS = {
    "cvta": _decode_cvta,
    "isspacep": _decode_isspacep,
    "mapa": _decode_mapa,
    "getctarank": _decode_getctarank,
}
