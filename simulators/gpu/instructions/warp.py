"""Instructions that a warp's threads execute together: shuffles, votes, matches, reductions.

Each waits until every living thread that its mask names has come (`warp_meeting`). A shuffle from a lane that does not
take part, which PTX leaves open, gives a number that nobody wants.

Source: PTX ISA, "Data Movement: shfl.sync", "Parallel Synchronization: vote, match, redux, activemask, elect".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads, is_all, pack_lanes
from simulators.gpu.chip import WARP
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.warp_meeting import FULL, Results, meeting
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope
from simulators.gpu.ptx.module import Instruction, Pair

Array = NDArray[Any]
_POISON = np.uint32(0xDEADBEEF)  # and the lane: what is shuffled from where nobody takes part


def _by_warp(machine: Machine, threads: Threads, values: Array) -> Array:
    """[N] to [warps, 32]: what the threads hold, and anything in other lanes."""
    batch = machine.batch
    if is_all(threads) and np.ndim(values) == 1:
        return values.reshape(-1, WARP)
    spread = np.zeros(batch.num_threads, np.asarray(values).dtype)
    spread[threads] = values
    return spread.reshape(-1, WARP)


def _sources(mode: str, lane: Array, amounts: Array, clamps: Array) -> tuple[Array, Array]:
    """The lane from which each of these lanes (i64) takes, and whether it is one of its segment: if not, its own."""
    b, c = amounts.astype(np.int64) & 31, clamps.astype(np.int64)
    limit, segment = c & 31, (c >> 8) & 31
    low = lane & segment
    high = low | (limit & ~segment)
    match mode:
        case "up":
            other, valid = lane - b, lane - b >= high
        case "down":
            other, valid = lane + b, lane + b <= high
        case "bfly":
            other, valid = lane ^ b, (lane ^ b) <= high
        case _:
            other = low | (b & ~segment)
            valid = other <= high
    return np.where(valid, other, lane), valid


@lru_cache(maxsize=256)
def _sources_of_warp(mode: str, amount: int, clamp: int) -> tuple[Array, Array]:
    """As `_sources`, of all lanes of a warp."""
    return _sources(mode, np.arange(WARP), np.asarray(amount), np.asarray(clamp))


def _decode_shfl(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    modifiers = instruction.modifiers
    if modifiers[0] != "sync" or modifiers[1] not in ("up", "down", "bfly", "idx") or modifiers[2:] != ("b32",):
        raise UnsupportedInstruction(instruction)
    mode = modifiers[1]
    results, *operands = instruction.operands
    first, second = (results.first, results.second) if isinstance(results, Pair) else (results, None)
    put = scope.destination(instruction, first)
    put_valid = scope.destination(instruction, second) if second is not None else None
    value, amount, clamp, mask = (scope.source(instruction, one, 32) for one in operands)

    def compute(
        machine: Machine, threads: Threads, masks: Array, held: Array, amounts: Array, clamps: Array
    ) -> Results:
        batch = machine.batch
        count, is_whole = batch.count(threads), is_all(threads) and np.ndim(masks) == 0 and masks == FULL
        if is_whole and np.ndim(held) and np.ndim(amounts) == np.ndim(clamps) == 0:
            others, are_valid = _sources_of_warp(mode, int(amounts), int(clamps))
            found = held.reshape(-1, WARP).take(others, axis=1).ravel()
            return (found,) if put_valid is None else (found, np.tile(are_valid, count // WARP))
        lane = batch.lane[threads].astype(np.int64)
        other, valid = _sources(mode, lane, np.asarray(amounts), np.asarray(clamps))
        spread = _by_warp(machine, threads, np.broadcast_to(held, count)).ravel()
        found = spread[batch.numbers(threads) - lane + other]
        if not is_whole:
            takes_part = masks & batch.lane_bits(threads)[batch.warp[threads]]
            is_there = takes_part >> other.astype(np.uint32) & np.uint32(1) == 1
            found = np.where(is_there, found, _POISON ^ other.astype(np.uint32))
        return found, np.array(np.broadcast_to(valid, count))

    return meeting(instruction, scope, pc, mask, (value, amount, clamp), compute, (put, put_valid))


def _decode_vote(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    if instruction.modifiers[0] != "sync" or instruction.modifiers[1] not in ("all", "any", "uni", "ballot"):
        raise UnsupportedInstruction(instruction)
    mode = instruction.modifiers[1]
    result, flag, members = instruction.operands
    put = scope.destination(instruction, result)
    predicate, mask = scope.source(instruction, flag, 1), scope.source(instruction, members, 32)

    def compute(machine: Machine, threads: Threads, masks: Array, held: Array) -> Results:
        batch = machine.batch
        flags = np.zeros(batch.num_threads, np.bool_)
        flags[threads] = held
        warps = batch.warp[threads]
        members = masks & pack_lanes(batch.alive)[warps]
        ballot = pack_lanes(flags)[warps] & members
        match mode:
            case "ballot":
                return (ballot,)
            case "any":
                return (ballot != 0,)
            case "all":
                return (ballot == members,)
            case _:
                return ((ballot == members) | (ballot == 0),)

    return meeting(instruction, scope, pc, mask, (predicate,), compute, (put,))


def _decode_match(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    mode, _, kind = instruction.modifiers
    bits = {"b32": 32, "b64": 64}.get(kind)
    if bits is None or mode not in ("any", "all"):
        raise UnsupportedInstruction(instruction)
    results, operand, members = instruction.operands
    first, second = (results.first, results.second) if isinstance(results, Pair) else (results, None)
    put = scope.destination(instruction, first)
    put_all = scope.destination(instruction, second) if second is not None else None
    value, mask = scope.source(instruction, operand, bits), scope.source(instruction, members, 32)

    def compute(machine: Machine, threads: Threads, masks: Array, held: Array) -> Results:
        batch = machine.batch
        held = np.broadcast_to(held, batch.count(threads))
        rows = _by_warp(machine, threads, held)
        warps = batch.warp[threads]
        present = batch.lane_bits(threads)[warps] & masks
        same = pack_lanes((rows[warps] == held[:, None]).ravel()) & present
        if mode == "any":
            return (same,)
        equal = same == present
        return np.where(equal, present, np.uint32(0)), equal

    return meeting(instruction, scope, pc, mask, (value,), compute, (put, put_all))


_REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "add": lambda rows: np.add.reduce(rows, axis=1, dtype=rows.dtype),
    "min": lambda rows: np.minimum.reduce(rows, axis=1),
    "max": lambda rows: np.maximum.reduce(rows, axis=1),
    "and": lambda rows: np.bitwise_and.reduce(rows, axis=1),
    "or": lambda rows: np.bitwise_or.reduce(rows, axis=1),
    "xor": lambda rows: np.bitwise_xor.reduce(rows, axis=1),
}


def _decode_redux(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    _, name, *flags, kind = instruction.modifiers
    dtype = {"u32": np.uint32, "s32": np.int32, "b32": np.uint32, "f32": np.float32}.get(kind)
    unknown = set(flags) - {"abs", "NaN"}
    if dtype is None or name not in _REDUCTIONS or unknown or (flags and kind != "f32"):
        raise UnsupportedInstruction(instruction)
    result, operand, members = instruction.operands
    put = scope.destination(instruction, result)
    value, mask = scope.source(instruction, operand, 32), scope.source(instruction, members, 32)

    def compute(machine: Machine, threads: Threads, masks: Array, held: Array) -> Results:
        batch = machine.batch
        held = np.broadcast_to(held, batch.count(threads))
        warps = batch.warp[threads]
        rows = _by_warp(machine, threads, np.ascontiguousarray(held))[warps]  # [N, 32]
        lanes = np.arange(WARP, dtype=np.uint32)
        counts = ((masks & batch.lane_bits(threads)[warps])[:, None] >> lanes) & np.uint32(1) == 1
        if kind == "f32":
            return (_reduce_floats(name, flags, rows.view(np.float32), counts),)
        # Lanes that do not count hold the first value that does: for add and xor, nothing.
        first = rows[np.arange(len(rows)), counts.argmax(axis=1)][:, None]
        filler = np.zeros_like(first) if name in ("add", "xor") else first
        chosen = np.where(counts, rows, filler).view(dtype)
        return (_REDUCTIONS[name](chosen).view(np.uint32),)

    return meeting(instruction, scope, pc, mask, (value,), compute, (put,))


def _reduce_floats(name: str, flags: list[str], rows: Array, counts: Array) -> Array:
    """min and max of f32 (sm_100a only; semantics unverified on a chip): NaN is passed over, unless .NaN."""
    values = np.abs(rows) if "abs" in flags else rows
    identity = np.float32(np.inf if name == "min" else -np.inf)
    is_nan = np.isnan(values) & counts
    # -0 is below +0, which the order of their bits says and that of their values does not.
    order = values.view(np.int32)
    order = np.where(order < 0, order ^ np.int32(0x7FFFFFFF), order)
    blank = np.array(identity).view(np.int32)
    blank = blank if blank >= 0 else blank ^ np.int32(0x7FFFFFFF)
    order = np.where(counts & ~is_nan, order, blank)
    best = order.min(axis=1) if name == "min" else order.max(axis=1)
    found = np.where(best < 0, best ^ np.int32(0x7FFFFFFF), best).view(np.uint32)
    nothing = ~(counts & ~is_nan).any(axis=1)
    gives_nan = nothing | (is_nan.any(axis=1) if "NaN" in flags else False)
    return np.where(gives_nan, np.uint32(0x7FFFFFFF), found)


def _decode_activemask(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    put = scope.destination(instruction, instruction.operands[0])

    def run(machine: Machine, threads: Threads) -> None:
        put(machine, threads, machine.batch.lane_bits(threads)[machine.batch.warp[threads]])

    return Straight(instruction, run)


def _decode_elect(instruction: Instruction, scope: Scope, pc: int) -> Operation:
    """The lowest lane of the mask is elected."""
    results, members = instruction.operands
    if not isinstance(results, Pair):
        raise UnsupportedInstruction(instruction)
    put_lane, put_elected = (scope.destination(instruction, one) for one in (results.first, results.second))
    mask = scope.source(instruction, members, 32)

    def compute(machine: Machine, threads: Threads, masks: Array) -> Results:
        batch = machine.batch
        present = masks & batch.lane_bits(threads)[batch.warp[threads]]
        lowest = present & (~present + np.uint32(1))
        leader = np.log2(lowest.astype(np.float64)).astype(np.uint32)
        return leader, batch.lane[threads] == leader

    return meeting(instruction, scope, pc, mask, (), compute, (put_lane, put_elected))


DECODERS = {
    "shfl": _decode_shfl,
    "vote": _decode_vote,
    "match": _decode_match,
    "redux": _decode_redux,
    "activemask": _decode_activemask,
    "elect": _decode_elect,
}
