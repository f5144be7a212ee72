"""Tensor maps: 128 bytes that tell the copy engine how a tensor lies in global memory, and which box of it is copied.

NVIDIA does not document their bits. `FIELDS` says where they are: it explains all that `cuTensorMapEncodeTiled` of a
driver (580, CUDA 13.0) wrote for 2,086 choices of its arguments on an H200, and what `tensormap.replace` changed there.
The host code of CuTeDSL writes the same, and sets bits 65 and 85, which mean nothing here; `swizzle_atomicity` is known
from that code alone. The chip reads the first 64 bytes.

Source: CUDA Driver API, "Tensor Map Object Management", for what the fields mean; PTX ISA, "tensormap.replace", for
their names and numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

SIZE = 128  # bytes of a map
READ = 64  # bytes of it that say anything
ALIGNMENT = 64
MAX_RANK = 5
STRIDE_UNIT = 16  # bytes
SWIZZLES = (0, 32, 64, 128)  # spans in bytes, by number
# By number: name and bytes.
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
_TF32 = {11: "f32", 12: "f32.ftz"}  # numbers of element types of which the map keeps the one named, and a flag

# By name: the first bit, the number of bits, what is subtracted from the value, and the distance in bits between those
# of one dimension and the next.
FIELDS = {
    "global_address": (0, 64, 0, 0),
    "im2col": (64, 1, 0, 0),
    "rank": (68, 3, 0, 0),  # less one, as tensormap.replace is given it
    "elemtype": (71, 4, 0, 0),
    "interleave_layout": (75, 2, 0, 0),
    "swizzle_mode": (77, 2, 0, 0),
    "fill_mode": (79, 1, 0, 0),
    "rounds_to_tf32": (80, 1, 0, 0),
    "l2_promotion": (81, 2, 0, 0),
    "swizzle_atomicity": (83, 2, 0, 0),
    "global_stride": (96, 32, 0, 32),  # of dimensions 1 and up, in units of 16 bytes: the low bits
    "global_stride_high": (224, 4, 0, 4),
    "global_dim": (256, 32, 1, 32),
    "element_stride": (416, 3, 1, 3),
    "box_dim_0": (440, 8, 1, 0),
    "box_dim": (448, 8, 1, 8),  # of dimensions 1 and up
}


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
        """That a copy moves, those that are out of bounds included."""
        return self.item_bytes * prod(self.extents)

    @property
    def row_bytes(self) -> int:
        """Of shared memory from one row of the box, along dimension 0, to the next: where there is a swizzle, a row
        takes all of its span."""
        return self.swizzle or self.item_bytes * self.box[0]


def encode(tensor_map: TensorMap) -> bytes:
    """The 128 bytes. Errors: TensorMapError for what no map can say."""
    one = tensor_map
    _check(one)
    data = bytes(SIZE)
    values = {
        "global_address": one.address,
        "rank": one.rank - 1,
        "elemtype": _NUMBERS[one.element],
        "interleave_layout": one.interleave // 16,
        "swizzle_mode": SWIZZLES.index(one.swizzle),
        "fill_mode": one.fills_nan,
        "rounds_to_tf32": one.rounds_to_tf32,
        "l2_promotion": one.l2_promotion,
        "swizzle_atomicity": one.swizzle_atom // 32,
    }
    for name, value in values.items():
        data = _with_field(data, name, 0, value)
    lists = {
        "global_stride": one.strides,
        "global_dim": one.shape,
        "element_stride": one.element_strides,
        "box_dim": one.box,
    }
    for name, numbers in lists.items():
        for dimension, number in enumerate(numbers):
            data = replaced(data, name, dimension, number)
    return data


def replaced(data: bytes, name: str, dimension: int, value: int) -> bytes:
    """With another value in a field, as `tensormap.replace` is given name, dimension (0 where there is none) and value.
    Errors: TensorMapError."""
    if name == "global_stride":
        if value % STRIDE_UNIT:
            raise TensorMapError(f"a stride of {value} bytes is not a multiple of {STRIDE_UNIT}")
        data = _with_field(data, "global_stride_high", dimension, value // STRIDE_UNIT >> 32)
        value = value // STRIDE_UNIT & 0xFFFFFFFF
    elif name == "box_dim":
        name, dimension = ("box_dim", dimension - 1) if dimension else ("box_dim_0", 0)
    elif name == "elemtype":
        data = _with_field(data, "rounds_to_tf32", 0, value in _TF32)
        value = _NUMBERS[_TF32[value]] if value in _TF32 else value
    return _with_field(data, name, dimension, value)


def _with_field(data: bytes, name: str, dimension: int, value: int) -> bytes:
    first, bits, bias, distance = FIELDS[name]
    first += distance * dimension
    if not 0 <= value - bias < 1 << bits:
        raise TensorMapError(f"{name} cannot be {value}")
    whole = int.from_bytes(data, "little") & ~(((1 << bits) - 1) << first) | (value - bias) << first
    return whole.to_bytes(len(data), "little")


@lru_cache(maxsize=256)
def decode(data: bytes) -> TensorMap:
    """data: at least the first 64 bytes. Errors: TensorMapError."""
    whole = int.from_bytes(data[:READ], "little")

    def field(name: str, dimension: int = 0) -> int:
        first, bits, bias, distance = FIELDS[name]
        return (whole >> first + distance * dimension & (1 << bits) - 1) + bias

    if field("im2col"):
        raise TensorMapError("it is in im2col mode, which is not simulated")
    rank, number = field("rank") + 1, field("elemtype")
    if rank > MAX_RANK:
        raise TensorMapError(f"it has {rank} dimensions")
    if number >= len(ELEMENTS):
        raise TensorMapError(f"its elements are of type {number}, which is not simulated")
    units = [field("global_stride", i) | field("global_stride_high", i) << 32 for i in range(rank - 1)]
    tensor_map = TensorMap(
        field("global_address"),
        ELEMENTS[number][0],
        tuple(field("global_dim", i) for i in range(rank)),
        tuple(unit * STRIDE_UNIT for unit in units),
        (field("box_dim_0"), *(field("box_dim", i) for i in range(rank - 1))),
        tuple(field("element_stride", i) for i in range(rank)),
        SWIZZLES[field("swizzle_mode")],
        bool(field("fill_mode")),
        bool(field("rounds_to_tf32")),
        16 * field("interleave_layout"),
        16 << field("swizzle_atomicity"),
        field("l2_promotion"),
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
        (one.swizzle not in SWIZZLES, f"a swizzle of {one.swizzle} bytes"),
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
