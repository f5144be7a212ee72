"""wgmma: D = A B + D of a warpgroup, whose B and often A lie in shared memory, done while its threads go on.

A product is computed when its warpgroup issues it, from what shared memory holds then. Its sums come to the registers
only when `wgmma.wait_group` says that they are there; until then the registers hold a NaN, so that who reads them too
early is wrong under every schedule. What was read of shared memory is read again at that time, and must be the same,
unless somebody who watches tells who lets go of a buffer too early. Descriptors and scale-d must be the same for all of
a warpgroup.
Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.fragments import elements, rows_of_registers, sums_of_registers
from simulators.gpu.instructions.matrix_descriptor import CHUNK_BYTES, Layout, addresses_of, rank_bits
from simulators.gpu.instructions.multiply_accumulate import ELEMENT_BITS, integers
from simulators.gpu.instructions.pending_sums import Accumulator, PendingSums
from simulators.gpu.instructions.warp_meeting import complete_warps
from simulators.gpu.instructions.whole_warps import WARPGROUP, by_warp, register_sources, whole_warpgroups
from simulators.gpu.machine.access import Way, load
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Meeting, Operation
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.numbers.tensor_core import FP8_WGMMA, WHOLE, multiply_add, multiply_add_integers
from simulators.gpu.ptx.module import Immediate, Instruction, Operand, Register, Vector
from simulators.gpu.watch import Completion

Array = NDArray[Any]
_ROWS, _WARPS = 64, 4
_K_BITS = 256  # of every instruction
_HALF, _FP8, _BYTES = ("f16", "bf16"), ("e4m3", "e5m2"), ("s8", "u8")
_ACCUMULATORS = {"f16": ("f32", "f16"), "bf16": ("f32",), "tf32": ("f32",)}
_ACCUMULATORS |= dict.fromkeys(_FP8, ("f32", "f16")) | dict.fromkeys(_BYTES, ("s32",))


@dataclass(frozen=True)
class _Form:
    """One wgmma.mma_async."""

    columns: int
    types: tuple[str, str, str]  # of D, A, B
    saturates: bool
    negated: tuple[bool, bool] = (False, False)
    k_major: tuple[bool, bool] = (True, True)

    @property
    def sum_bits(self) -> int:
        return 16 if self.types[0] == "f16" else 32


def _form(instruction: Instruction, immediates: Sequence[Operand], a_in_registers: bool) -> _Form:
    modifiers = tuple(one for one in instruction.modifiers if one != "satfinite")
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", modifiers[3]) if len(modifiers) == 7 else None
    if shape is None or modifiers[:3] != ("mma_async", "sync", "aligned"):
        raise UnsupportedInstruction(instruction, "the form .mma_async.sync.aligned.m64nNkK.d.a.b is known")
    columns, depth = (int(extent) for extent in shape.groups())
    d, a, b = modifiers[4:]
    saturates = len(modifiers) < len(instruction.modifiers)
    alike = a == b or (a in _FP8 and b in _FP8) or (a in _BYTES and b in _BYTES)
    if d not in _ACCUMULATORS.get(a, ()) or not alike or depth * ELEMENT_BITS[a] != _K_BITS:
        raise UnsupportedInstruction(instruction, "these types or this shape are not known")
    is_whole = a in _BYTES
    if columns % 8 or not 8 <= columns <= 256 or (is_whole and columns % 16 and columns not in (8, 24)):
        raise UnsupportedInstruction(instruction, f"n is {columns}")
    values = [one.value for one in immediates if isinstance(one, Immediate)]
    # imm-trans-a is there only if A is in shared memory.
    wanted = 0 if is_whole else (3 if a_in_registers else 4) if a in _HALF else 2
    if len(values) != len(immediates) or len(values) != wanted or (saturates and not is_whole):
        raise UnsupportedInstruction(instruction, "its immediate operands are not known")
    scales, major = values[:2], values[2:]
    if any(one not in (1, -1) for one in scales) or any(one not in (0, 1) for one in major):
        raise UnsupportedInstruction(instruction, "scales are 1 or -1, and majors 0 or 1")
    major = [0, *major] if len(major) == 1 else major or [0, 0]
    negated = (scales[0] == -1, scales[1] == -1) if scales else (False, False)
    return _Form(columns, (d, a, b), saturates, negated, (major[0] == 0, major[1] == 0))


def _decode_mma(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    result, a_operand, b_operand, scale, *immediates = instruction.operands
    form = _form(instruction, immediates, isinstance(a_operand, Vector))
    count = _ROWS * form.columns * form.sum_bits // (32 * WARPGROUP)
    of_d = register_sources(instruction, scope, result, count)
    names = [one for one in result.elements if isinstance(one, Register)] if isinstance(result, Vector) else []
    puts = scope.destinations(instruction, result)
    accumulator = Accumulator(tuple(one.name for one in names), tuple(puts), form.columns, form.sum_bits)
    of_a = register_sources(instruction, scope, a_operand, 4) if isinstance(a_operand, Vector) else None
    a_descriptor = None if of_a else scope.source(instruction, a_operand, 64)
    b_descriptor = scope.source(instruction, b_operand, 64)
    keeps = scope.source(instruction, scale, 1)
    way = Way(instruction, "shared", 8, 2, completion=Completion("wgmma"))

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = whole_warpgroups(machine, instruction, pc, threads)
        numbers = machine.batch.numbers(here)
        if not len(numbers):
            return here
        groups = numbers.reshape(-1, WARPGROUP)
        warps = machine.batch.warp[groups[:, ::32]].ravel()
        pending = machine.rendezvous("wgmma", PendingSums)

        def shared(descriptor: Source, rows: int, k_major: bool, kind: str) -> Array:
            """[groups, rows, K] codes."""
            one = _common(machine, instruction, here, descriptor)
            layout = Layout(rows, ELEMENT_BITS[kind] // 8, k_major)
            addresses = addresses_of(machine, instruction, groups[:, 0], one, layout) | rank_bits(machine, groups[:, 0])
            flat = addresses.reshape(-1)
            owners = groups[:, np.arange(addresses[0].size) % WARPGROUP].ravel()
            words = np.stack(load(machine, way, flat, owners), axis=-1)
            pending.remember(machine, instruction, flat, owners, words, warps[::_WARPS])
            codes = elements(words.reshape(*addresses.shape, CHUNK_BYTES // 8), ELEMENT_BITS[kind])
            codes = codes.reshape(len(groups), addresses.shape[1], -1)
            return codes if k_major else codes.swapaxes(1, 2)

        if of_a:
            held = [by_warp(machine, here, one(machine, here)) for one in of_a]
            left = rows_of_registers(held, ELEMENT_BITS[form.types[1]], 16).reshape(len(groups), _ROWS, -1)
        else:
            assert a_descriptor is not None
            left = shared(a_descriptor, _ROWS, form.k_major[0], form.types[1])
        right = shared(b_descriptor, form.columns, form.k_major[1], form.types[2]).swapaxes(1, 2)
        kept = _common(machine, instruction, here, keeps)

        def registers() -> Array:
            held = [by_warp(machine, here, one(machine, here)) for one in of_d]
            return sums_of_registers(held, form.sum_bits, 16)

        before = pending.before(machine, instruction, accumulator, warps, registers)
        before = before.reshape(len(groups), _ROWS, -1)
        before = np.where(kept[:, None, None], before, before.dtype.type(0))
        sums = _product(left, right, before, form)
        pending.issue(machine, instruction, accumulator, warps, sums.reshape(len(warps), 16, -1))
        return here

    return Meeting(instruction, meet)


def _common(machine: Machine, instruction: Instruction, threads: Threads, source: Source) -> Array:
    """One value a warpgroup."""
    values = np.broadcast_to(source(machine, threads), machine.batch.count(threads)).reshape(-1, WARPGROUP)
    differs = values != values[:, :1]
    if differs.any():
        thread = int(machine.batch.numbers(threads)[np.flatnonzero(differs)[0]])
        raise machine.fault(instruction, thread, "an operand is not that of the other threads of its warpgroup")
    return values[:, 0]


def _product(a: Array, b: Array, c: Array, form: _Form) -> Array:
    _, left, right = form.types
    if left in _BYTES:
        return multiply_add_integers(integers(a, left), integers(b, right), c, form.saturates)
    sign = a.dtype.type(1 << (ELEMENT_BITS[left] - 1))
    a, b = (codes ^ sign if is_negated else codes for codes, is_negated in zip((a, b), form.negated, strict=True))
    return multiply_add(a, b, c, form.types, FP8_WGMMA if left in _FP8 else WHOLE)


def _decode_wgmma(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    kind, *rest = instruction.modifiers
    if kind == "mma_async":
        return _decode_mma(instruction, scope, pc)
    if kind not in ("fence", "commit_group", "wait_group") or rest != ["sync", "aligned"]:
        raise UnsupportedInstruction(instruction)
    most = 0
    if kind == "wait_group":
        (operand,) = instruction.operands
        if not isinstance(operand, Immediate):
            raise UnsupportedInstruction(instruction, "it waits for a number that is written out")
        most = operand.value

    def meet(machine: Machine, threads: Threads) -> Threads:
        here = complete_warps(machine, instruction, pc, threads)
        if machine.batch.count(here) and kind != "fence":
            warps = np.unique(machine.batch.warp[here])
            pending = machine.rendezvous("wgmma", PendingSums)
            if kind == "commit_group":
                pending.commit(machine, warps)
            else:
                pending.wait(machine, instruction, warps, most)
        return here

    return Meeting(instruction, meet)


DECODERS = {"wgmma": _decode_wgmma}
