"""Tensor maps: 128 bytes that tell the copy engine how a tensor lies in global memory, and which box of it is copied.

NVIDIA does not document their bits. The layout here is what `cuTensorMapEncodeTiled` of a driver (580, CUDA 13.0) wrote
for 2,086 choices of its arguments on an H200, all of which it explains. The host code of CuTeDSL writes the same but for bits
1 and 21, which mean nothing here; bits 19 and 20 are known from it alone. The chip reads the first 64 bytes:

| bits of 64-bit word 1 | | |
|---|---|---|
| 0 | im2col mode | |
| 4-6 | rank - 1 | |
| 7-10 | element type | as `tensormap.replace.elemtype` numbers them |
| 11-12 | interleaving | 0 none, 1 16 bytes, 2 32 bytes |
| 13-14 | swizzle | 0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes |
| 15 | out-of-bound elements are NaN | else 0 |
| 16 | f32 is rounded to tf32 | |
| 17-18 | L2 promotion | |
| 19-20 | what a swizzle of 128 bytes moves | 0 16 bytes, 1 32 bytes, 2 32 bytes and halves of 16, 3 64 bytes |

Word 0 is the address. 32-bit words 3 to 6 are the strides of dimensions 1 to 4 in units of 16 bytes, their bits 32-35
in word 7, 4 bits each; 8 to 12 are the sizes - 1; word 13 holds the element strides - 1, 3 bits each, and in its last
byte the box's size - 1 along dimension 0; word 14 those of dimensions 1 to 4, a byte each.
Source: CUDA Driver API, "Tensor Map Object Management", for what the fields mean.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

SIZE = 128  # bytes of a map
READ = 64  # bytes of it that say anything
ALIGNMENT = 64
MAX_RANK = 5
STRIDE_UNIT = 16  # bytes
# By number: name and bytes. "f32.ftz" flushes denormals.
ELEMENTS = (
    ("u8", 1),
    ("u16", 2),
    ("u32", 4),
    ("s32", 4),
    ("u64", 8),
    ("s64", 8),
    ("f16", 2),
    ("f32", 4),
    ("f32.ftz", 4),
    ("f64", 8),
    ("bf16", 2),
)
_NUMBERS = {name: number for number, (name, _) in enumerate(ELEMENTS)}
_WORDS = struct.Struct("<Q14I")
_MASK32 = 0xFFFFFFFF


class TensorMapError(ValueError):
    """Bytes that are no tensor map, or one of a kind that is not simulated."""


@dataclass(frozen=True)
class TensorMap:
    """A tiled tensor. Dimension 0 is the one whose elements are neighbours."""

    address: int  # bytes; a multiple of 16
    element: str
    shape: tuple[int, ...]  # elements
    strides: tuple[int, ...]  # bytes, of dimensions 1 and up; multiples of 16
    box: tuple[int, ...]  # elements, 1 to 256 along each
    element_strides: tuple[int, ...]  # 1 to 8: every how many elements one of the box is copied
    swizzle: int = 0  # the span in bytes within which 16-byte pieces change places: 0, 32, 64 or 128
    fills_nan: bool = False
    rounds_to_tf32: bool = False
    interleave: int = 0  # bytes: 0, 16 or 32
    swizzle_atom: int = 16  # bytes that a swizzle of 128 bytes moves together: 16, or, since sm_100, 32
    l2_promotion: int = 0  # how much is fetched at once; it changes nothing here

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def item_bytes(self) -> int:
        return ELEMENTS[_NUMBERS[self.element]][1]

    @property
    def all_strides(self) -> tuple[int, ...]:
        return (self.item_bytes, *self.strides)

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements that a copy moves along each dimension. Source: CUDA Driver API, `elementStrides`: along dimension 0
        they are ignored where nothing is interleaved."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-size // step) for size, step in zip(self.box, steps, strict=True))

    @property
    def box_bytes(self) -> int:
        """Of shared memory, those that are out of bounds included."""
        size = self.item_bytes
        for extent in self.extents:
            size *= extent
        return size


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes. Errors: TensorMapError for what no map can say."""
    one = tensor_map
    _check(one)
    flags = (
        (one.rank - 1) << 4
        | _NUMBERS[one.element] << 7
        | (one.interleave // 16) << 11
        | (0, 32, 64, 128).index(one.swizzle) << 13
        | one.fills_nan << 15
        | one.rounds_to_tf32 << 16
        | one.l2_promotion << 17
        | (one.swizzle_atom == 32) << 19
    )
    units = [stride // STRIDE_UNIT for stride in one.strides] + [0] * (5 - one.rank)
    high = sum((unit >> 32) << 4 * i for i, unit in enumerate(units))
    sizes = [size - 1 for size in one.shape] + [0] * (5 - one.rank)
    steps = sum((step - 1) << 3 * i for i, step in enumerate(one.element_strides)) | (one.box[0] - 1) << 24
    boxes = sum((size - 1) << 8 * i for i, size in enumerate(one.box[1:]))
    words = _WORDS.pack(one.address, flags, *[unit & _MASK32 for unit in units], high, *sizes, steps, boxes, 0)
    return words.ljust(SIZE, b"\0")


@lru_cache(maxsize=256)
def decode(data: bytes) -> TensorMap:
    """data: at least the first 64 bytes. Errors: TensorMapError."""
    address, flags, *words = _WORDS.unpack_from(data)
    units, high, sizes, steps, boxes = words[:4], words[4], words[5:10], words[10], words[11]
    if flags & 1:
        raise TensorMapError("it is in im2col mode, which is not simulated")
    rank = (flags >> 4 & 7) + 1
    number = flags >> 7 & 15
    if rank > MAX_RANK:
        raise TensorMapError(f"it has {rank} dimensions")
    if number >= len(ELEMENTS):
        raise TensorMapError(f"its elements are of type {number}, which is not simulated")
    tensor_map = TensorMap(
        address,
        ELEMENTS[number][0],
        tuple(size + 1 for size in sizes[:rank]),
        tuple((unit | (high >> 4 * i & 15) << 32) * STRIDE_UNIT for i, unit in enumerate(units[: rank - 1])),
        ((steps >> 24) + 1, *((boxes >> 8 * i & 255) + 1 for i in range(rank - 1))),
        tuple((steps >> 3 * i & 7) + 1 for i in range(rank)),
        (0, 32, 64, 128)[flags >> 13 & 3],
        bool(flags >> 15 & 1),
        bool(flags >> 16 & 1),
        16 * (flags >> 11 & 3),
        16 << (flags >> 19 & 3),
        flags >> 17 & 3,
    )
    _check(tensor_map)
    return tensor_map


def _check(one: TensorMap) -> None:
    """Errors: TensorMapError, as the driver would refuse it."""
    ranks = {one.rank, len(one.strides) + 1, len(one.box), len(one.element_strides)}
    span = one.box[0] * one.item_bytes
    problems = (
        (len(ranks) > 1 or not 1 <= one.rank <= MAX_RANK, f"{one.rank} dimensions, or not the same everywhere"),
        (one.address % STRIDE_UNIT, f"its address {one.address:#x} is not a multiple of {STRIDE_UNIT}"),
        (any(not 1 <= size <= 1 << 32 for size in one.shape), f"shape {one.shape}"),
        (any(s % STRIDE_UNIT or not 0 <= s < 1 << 40 for s in one.strides), f"strides of {one.strides} bytes"),
        (any(not 1 <= size <= 256 for size in one.box), f"box {one.box}"),
        (any(not 1 <= step <= 8 for step in one.element_strides), f"element strides {one.element_strides}"),
        (one.swizzle not in (0, 32, 64, 128), f"a swizzle of {one.swizzle} bytes"),
        (
            one.swizzle_atom not in ((16, 32) if one.swizzle == 128 else (16,)),
            f"a swizzle of {one.swizzle} bytes of number {one.swizzle_atom // 32} among those, which is not simulated",
        ),
        (one.interleave not in (0, 16, 32), f"interleaving of {one.interleave} bytes"),
        (not one.interleave and span % 16, f"rows of its box have {span} bytes, no multiple of 16"),
        (
            not one.interleave and one.swizzle and span > one.swizzle,
            f"rows of its box have {span} bytes, more than the {one.swizzle} that are swizzled",
        ),
        (one.fills_nan and one.element[0] in "us", f"elements of type {one.element} cannot be NaN"),
    )
    for is_wrong, message in problems:
        if is_wrong:
            raise TensorMapError(message)
