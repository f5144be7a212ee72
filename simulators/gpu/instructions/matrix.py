"""8 x 8 matrices of 16 bits between shared memory and the threads of a warp: ldmatrix, stmatrix, movmatrix.

Lane 8 i + r has the address of row r of matrix i: 16 bytes. Lane l holds two neighbours of row l / 4, from column
2 (l mod 4) on; with .trans, of the transposed matrix. Source: PTX ISA, "ldmatrix", "stmatrix", "movmatrix".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.whole_warps import by_warp, register_sources, whole_warps
from simulators.gpu.machine.access import Way, load, store
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting, Operation
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
ROWS = 8
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}
_SPACES = {"shared": "shared", "shared::cta": "shared"}


def _form(instruction: Instruction) -> tuple[int, bool, Way]:
    """How many matrices, whether they are transposed, and how a row is accessed."""
    sync, aligned, shape, number, *rest = (*instruction.modifiers, "", "", "", "")[: max(len(instruction.modifiers), 4)]
    transposed = "trans" in rest
    spaces = [one for one in rest if one in _SPACES]
    known = {"trans", "b16", *_SPACES}
    if (sync, aligned, shape) != ("sync", "aligned", "m8n8") or number not in _COUNTS or "b16" not in rest:
        raise UnsupportedInstruction(instruction, "the form .sync.aligned.m8n8.b16 is known")
    if set(rest) - known:
        raise UnsupportedInstruction(instruction)
    space = _SPACES[spaces[0]] if spaces else "generic"
    return _COUNTS[number], transposed, Way(instruction, space, 4, 4)


def _transposed(words: Array) -> Array:
    """[..., 8, 4] words of two to those of the transposed matrices."""
    halves = np.ascontiguousarray(words).view(np.uint16)
    return np.ascontiguousarray(halves.swapaxes(-1, -2)).view(np.uint32)


def _row_addresses(machine: Machine, threads: Threads, address: Source, count: int) -> tuple[Array, Array]:
    """Addresses, and the threads that hold them, of all rows of all matrices of all warps: [W x count x 8]."""
    lanes = ROWS * count
    addresses = by_warp(machine, threads, address(machine, threads))[:, :lanes]
    return addresses.ravel(), machine.batch.numbers(threads).reshape(len(addresses), -1)[:, :lanes].ravel()


def _decode_load(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    count, transposed, way = _form(instruction)
    puts = scope.destinations(instruction, instruction.operands[0])
    if len(puts) != count:
        raise UnsupportedInstruction(instruction, f"it has {len(puts)} results where {count} are loaded")
    address = scope.address(instruction, instruction.operands[1])

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = whole_warps(machine, instruction, pc, threads)
        if machine.batch.count(here):
            words = np.stack(load(machine, way, *_row_addresses(machine, here, address, count)), axis=-1)
            words = words.reshape(-1, count, ROWS, 4)
            words = _transposed(words) if transposed else words
            for i, put in enumerate(puts):
                put(machine, here, words[:, i].ravel())
        return here

    return Meeting(instruction, meet)


def _decode_store(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    count, transposed, way = _form(instruction)
    address = scope.address(instruction, instruction.operands[0])
    sources = register_sources(instruction, scope, instruction.operands[1], count)

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = whole_warps(machine, instruction, pc, threads)
        if machine.batch.count(here):
            held = [by_warp(machine, here, one(machine, here)) for one in sources]
            words = np.stack(held, axis=1).reshape(-1, count, ROWS, 4)
            words = _transposed(words) if transposed else words
            addresses, numbers = _row_addresses(machine, here, address, count)
            store(machine, way, addresses, list(np.ascontiguousarray(words.reshape(-1, 4).T)), numbers)
        return here

    return Meeting(instruction, meet)


def _decode_move(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    if instruction.modifiers != ("sync", "aligned", "m8n8", "trans", "b16"):
        raise UnsupportedInstruction(instruction)
    put = scope.destination(instruction, instruction.operands[0])
    source = scope.source(instruction, instruction.operands[1], 32)

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = whole_warps(machine, instruction, pc, threads)
        if machine.batch.count(here):
            words = by_warp(machine, here, source(machine, here)).reshape(-1, ROWS, 4)
            put(machine, here, _transposed(words).ravel())
        return here

    return Meeting(instruction, meet)


DECODERS = {"ldmatrix": _decode_load, "stmatrix": _decode_store, "movmatrix": _decode_move}
