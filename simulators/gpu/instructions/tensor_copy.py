"""`cp.async.bulk.tensor`: one thread has a box of a tensor copied, as a tensor map describes both, in tile mode.

Elements outside of the tensor are filled in shared memory, and not touched in global memory. Source: PTX ISA, "Data
Movement and Conversion Instructions: Tensor copy", "Tensors: Tiled mode, Swizzling modes".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.batch import Threads
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.instructions.atomic import Combine
from simulators.gpu.instructions.bulk_copy import BY_BARRIER, BY_GROUP, REDUCTIONS, Finish, reduction
from simulators.gpu.instructions.copy_engine import PIECE, Copy, check_multiple
from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.operation import Operation, Straight
from simulators.gpu.machine.scope import Scope, Source
from simulators.gpu.memory.spaces import MemoryFault
from simulators.gpu.memory.tensor_map import ALIGNMENT, READ, TensorMap, TensorMapError, decode
from simulators.gpu.ptx.module import Instruction, Operand, Vector

Array = NDArray[Any]
SHARED_ALIGNMENT = 128  # bytes, of a box in shared memory
_PASSED_BY = ("tile", "L2::cache_hint", "multicast::cluster", "cta_group::1", "cta_group::2")
_NAN = 0x7FF7  # 16 bits, over and over, that fill up a box where what is out of bounds is to be NaN


def _decode(instruction: Instruction, scope: Scope, pc: int) -> Operation | None:
    match instruction.modifiers:
        case ("async", "bulk", "tensor", dim, "shared::cluster" | "shared::cta" as space, "global", *rest):
            _check(instruction, dim, rest, BY_BARRIER)
            to, tensor, *others = instruction.operands
            finish = Finish.decoded(instruction, scope, others)
            return _decode_copy(instruction, scope, tensor, scope.address(instruction, to), finish, space)
        case ("async", "bulk", "tensor", dim, "global", "shared::cta", *rest):
            _check(instruction, dim, rest, BY_GROUP)
            name = "write"
        case ("reduce", "async", "bulk", "tensor", dim, "global", "shared::cta", name, *rest) if name in REDUCTIONS:
            _check(instruction, dim, rest, BY_GROUP)
        case ("async" | "reduce", *rest) if "tensor" in rest:
            raise UnsupportedInstruction(instruction)
        case _:
            return None
    tensor, of, *others = instruction.operands
    finish = Finish.decoded(instruction, scope, others)
    return _decode_copy(instruction, scope, tensor, scope.address(instruction, of), finish, "shared::cta", name)


def _check(instruction: Instruction, dim: str, rest: list[str], completion: str) -> None:
    if dim not in ("1d", "2d", "3d", "4d", "5d") or completion not in rest:
        raise UnsupportedInstruction(instruction)
    for one in rest:
        if one not in (*_PASSED_BY, completion):
            raise UnsupportedInstruction(instruction, f"modifier .{one} is not known with tensors")


def _decode_copy(
    instruction: Instruction, scope: Scope, tensor: Operand, shared: Source, finish: Finish, space: str, name: str = ""
) -> Operation:
    """name: what is done in global memory: "write", or a reduction; none: it is read."""
    map_address, coordinates = _parts(instruction, scope, tensor)

    def run(machine: Machine, threads: Threads) -> None:
        numbers = machine.batch.numbers(threads)
        addresses = np.broadcast_to(map_address(machine, threads), len(numbers))
        columns = [np.broadcast_to(one(machine, threads), len(numbers)) for one in coordinates]
        corners = np.stack(columns, axis=1).view(np.int32).astype(np.int64)
        places = shared(machine, threads)
        check_multiple(machine, instruction, numbers, places, SHARED_ALIGNMENT)
        for address in np.unique(addresses):
            mine = np.flatnonzero(addresses == address)
            tensor_map = _read_map(machine, instruction, int(address), numbers[mine[:1]], len(coordinates))
            _check_corners(machine, instruction, numbers[mine], corners[mine], tensor_map, writes=bool(name))
            combine = _combining(instruction, name, tensor_map.element) if name in REDUCTIONS else None
            convert = _to_tf32 if tensor_map.rounds_to_tf32 and not name else None
            box = _Box.of(tensor_map, reads=not name, by_element=combine is not None or convert is not None)
            owners, sources, is_copied = box.pieces(corners[mine])
            whose = numbers[mine][owners]
            near = swizzled(tensor_map, places[mine][owners] + np.tile(box.offsets, len(mine)))
            sizes = np.full(len(mine), tensor_map.box_bytes, np.int64)
            if not name:
                copy = Copy(
                    instruction, box.unit, whose, "global", sources, space, near, is_copied, box.fill, convert=convert
                )
            else:
                copy = Copy(instruction, box.unit, whose, space, near, "global", sources, combine=combine)
                copy = copy.of(is_copied)
            finish.issue(machine, numbers[mine], copy, owners, sizes)

    return Straight(instruction, run)


def _parts(instruction: Instruction, scope: Scope, tensor: Operand) -> tuple[Source, list[Source]]:
    """Of `[map, {coordinates}]`."""
    if not isinstance(tensor, Vector) or len(tensor.elements) != 2 or not isinstance(tensor.elements[1], Vector):
        raise UnsupportedInstruction(instruction, "it has no tensor with coordinates")
    coordinates = tensor.elements[1].elements
    return (
        scope.address(instruction, tensor.elements[0]),
        [scope.source(instruction, one, 32) for one in coordinates],
    )


def _read_map(machine: Machine, instruction: Instruction, address: int, thread: Array, rank: int) -> TensorMap:
    try:
        (target,) = machine.spaces.targets("generic", np.array([address], np.uint64), READ, thread)
        start = int(target.offsets[0])
        if machine.late_stores is not None:
            machine.late_stores.let_out_overlapping(machine.batch.slot[thread], target.buffer, target.offsets, READ)
        tensor_map = decode(target.buffer.bytes[start : start + READ].tobytes())
        if tensor_map.rank != rank:
            raise TensorMapError(f"it has {tensor_map.rank} dimensions; {rank} coordinates are given")
        if tensor_map.interleave:
            raise TensorMapError("it is interleaved, which is not simulated")
    except MemoryFault as fault:
        raise machine.fault(instruction, int(thread[0]), f"tensor map, aligned to {ALIGNMENT}: {fault}") from None
    except TensorMapError as error:
        raise machine.fault(instruction, int(thread[0]), f"tensor map: {error}") from None
    return tensor_map


def _check_corners(
    machine: Machine, instruction: Instruction, numbers: Array, corners: Array, tensor_map: TensorMap, *, writes: bool
) -> None:
    """What an H200 takes for an illegal instruction."""
    offsets = corners[:, 0] * tensor_map.item_bytes
    if (wrong := offsets % PIECE != 0).any():
        which = int(np.flatnonzero(wrong)[0])
        message = f"coordinate 0 is {corners[which, 0]}, which is {offsets[which]} bytes, no multiple of {PIECE}"
        raise machine.fault(instruction, int(numbers[which]), message)
    if writes and (wrong := (corners < 0).any(axis=1)).any():
        which = int(np.flatnonzero(wrong)[0])
        message = f"coordinates {tuple(corners[which].tolist())} to write to; none may be negative"
        raise machine.fault(instruction, int(numbers[which]), message)


def swizzled(tensor_map: TensorMap, addresses: Array) -> Array:
    """u64 shared addresses, with pieces exchanged as the chip does it: by the address alone, whatever the box begins
    with."""
    bits = (tensor_map.swizzle // tensor_map.swizzle_atom - 1) if tensor_map.swizzle else 0
    if not bits:
        return addresses
    row = addresses >> np.uint64(7) & np.uint64(bits)
    return addresses ^ row * np.uint64(tensor_map.swizzle_atom)


class _Box:
    """A tensor map's box, cut into pieces of `unit` bytes, in the order that they have in shared memory."""

    def __init__(self, tensor_map: TensorMap, unit: int, *, reads: bool) -> None:
        self.unit = unit
        self._granule = 1 if reads else PIECE // tensor_map.item_bytes
        self._map = tensor_map
        extents = tensor_map.extents
        per_piece = unit // tensor_map.item_bytes
        counts = (extents[0] // per_piece, *extents[1:])
        index = np.indices(counts[::-1]).reshape(len(counts), -1)[::-1]  # dimension 0 is the quickest
        steps = np.array((per_piece, *tensor_map.element_strides[1:]), np.int64)
        self._elements = index * steps[:, None]  # from the corner, [rank, pieces]
        rows = np.arange(index.shape[1]) // counts[0]
        self.offsets = (rows * tensor_map.row_bytes + index[0] * unit).astype(np.uint64)
        self.fill = int.from_bytes(_NAN.to_bytes(2, "little") * 4, "little") if tensor_map.fills_nan else 0

    @staticmethod
    def of(tensor_map: TensorMap, *, reads: bool, by_element: bool) -> _Box:
        """In the largest pieces that lie wholly in or out of the tensor, or by element."""
        is_even = not reads or tensor_map.shape[0] * tensor_map.item_bytes % PIECE == 0
        return _cut(tensor_map, PIECE if is_even and not by_element else tensor_map.item_bytes, reads)

    def pieces(self, corners: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
        """corners: int64 [N, rank]. For each piece of each box: which of the N, its address (u64), and if it is in the
        tensor: for writes, with rows that are rounded up to multiples of 16 bytes, as an H200 does it."""
        places = corners[:, :, None] + self._elements
        shape = np.array(self._map.shape)[:, None]
        shape[0] += -shape[0] % self._granule
        is_inside = ((places >= 0) & (places < shape)).all(axis=1).ravel()
        addresses = (places * np.array(self._map.all_strides)[:, None]).sum(axis=1).ravel() + self._map.address
        owners = np.repeat(np.arange(len(corners)), self._elements.shape[1])
        return owners, addresses.astype(np.uint64), is_inside


@lru_cache(maxsize=64)
def _cut(tensor_map: TensorMap, unit: int, reads: bool) -> _Box:
    return _Box(tensor_map, unit, reads=reads)


def _to_tf32(values: Array) -> Array:
    """u32 bits of f32 to the nearest with 10 bits of mantissa, ties to even; a NaN becomes one and the same."""
    rounded = values + np.uint32(0xFFF) + (values >> np.uint32(13) & np.uint32(1)) & np.uint32(0xFFFFE000)
    is_nan = values & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FFFE000), rounded)


@lru_cache(maxsize=64)
def _combining(instruction: Instruction, name: str, element: str) -> Combine:
    return reduction(instruction, (name, element.removesuffix(".ftz")))[1]


DECODERS = {"cp": _decode}
