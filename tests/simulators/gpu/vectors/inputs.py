"""Operands of the probes, made anew from nothing but a kind's name: edge values in every combination, then random ones.

Random bits are a hash (splitmix64) of the element's number, so they are the same with every version of NumPy.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tests.simulators.gpu.vectors.edges import EDGES
from tests.simulators.gpu.vectors.formats import FORMATS, Bits, encode, random_float
from tests.simulators.gpu.vectors.tiles import TILE_KINDS, tile_inputs

SPECIAL_BITS = {"pred": 1, "all16": 16, "sample16": 16, "amount": 32, "lane": 32, "rows": 32}
SPECIAL_BITS |= {"full_mask": 32, "mask": 32, "segment": 32, "one_of_two": 32}


@dataclass(frozen=True)
class Memory:
    """A thread's own piece of global memory: so many values of a kind."""

    kind: str
    items: int = 1

    @property
    def stride(self) -> int:
        """Bytes from one thread's piece to the next's."""
        return bits_of(self.kind) // 8 * self.items


def bits_of(kind: str) -> int:
    """The width of a kind's values in a register."""
    if kind in SPECIAL_BITS:
        return SPECIAL_BITS[kind]
    if kind in TILE_KINDS:
        return TILE_KINDS[kind].bits
    if kind.endswith("x2"):
        return 2 * bits_of(kind[:-2])
    return FORMATS[kind].bits if kind in FORMATS else int(kind[1:])


def dtype_of(bits: int) -> np.dtype:
    return np.dtype({1: np.uint8, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[bits])


def hashed(label: str, count: int) -> Bits:
    """Random uint64 [count] that depend on the label alone. Source: splitmix64 (Steele, Lea, Flood 2014)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(zlib.crc32(label.encode()) << 20)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@lru_cache(maxsize=64)
def inputs_of(kinds: tuple[str, ...], count: int) -> tuple[NDArray, ...]:
    """One array [count] a kind. The first half: every tuple of edge values (of as many as there is room for)."""
    half = count // 2
    side = max(int((half + 0.5) ** (1 / max(len(kinds), 1))), 1)
    columns: list[NDArray] = []
    repeat = 1
    for position, kind in enumerate(kinds):
        column = random_values(kind, f"{kind}/{position}", count)
        edges = _edges(kind)[:side]
        if len(edges):
            index = np.arange(half) // repeat
            repeat *= len(edges)
            column[:half] = edges[index % len(edges)]
        columns.append(column.astype(dtype_of(bits_of(kind))))
    _relate(kinds, columns, half)
    for column in columns:
        column.setflags(write=False)
    return tuple(columns)


def memory_of(memory: Memory, position: int, count: int) -> NDArray:
    """What a memory holds at first: [count, items], edge values mixed with random ones."""
    label = f"memory/{memory.kind}/{position}"
    values = random_values(memory.kind, label, count * memory.items)
    edges = _edges(memory.kind)
    if len(edges):
        choice = hashed(label + "/edge", count * memory.items)
        values = np.where(choice % 2 == 0, edges[(choice >> np.uint64(8)) % np.uint64(len(edges))], values)
    return values.astype(dtype_of(bits_of(memory.kind))).reshape(count, memory.items)


def random_values(kind: str, label: str, count: int) -> Bits:
    """uint64 [count]."""
    h, g = hashed(label, count), hashed(label + "/more", count)
    element = np.arange(count, dtype=np.uint64)
    warp = element // np.uint64(32)
    if kind in TILE_KINDS:
        return tile_inputs(TILE_KINDS[kind], label, count, hashed)
    if kind in SPECIAL_BITS:
        of_warp = h[: count // 32].repeat(32)
        return {
            "pred": h >> np.uint64(63),
            "all16": element,
            "sample16": element * np.uint64(16) + h % np.uint64(16),
            "amount": np.where(g % 8 == 0, h & np.uint64(0xFFFFFFFF), h % np.uint64(70)),
            "lane": h % np.uint64(32),
            # a permutation of the 32 rows of a tile
            "rows": (element * (np.uint64(2) * warp + np.uint64(1)) + warp) % np.uint64(32),
            "full_mask": np.full(count, 0xFFFFFFFF, np.uint64),
            "mask": np.where(warp % 4 == 0, np.uint64(0xFFFFFFFF), of_warp & np.uint64(0xFFFFFFFF)) | np.uint64(1 << 7),
            "segment": np.uint64(32) >> (warp % np.uint64(6)),
            # equal for many lanes
            "one_of_two": np.where(warp % 4 == 0, of_warp & np.uint64(7), h & np.uint64(1)),
        }[kind]
    if kind.endswith("x2"):
        half = bits_of(kind[:-2])
        low, high = (random_values(kind[:-2], f"{label}/{i}", count) for i in range(2))
        return low | high << np.uint64(half)
    if kind in FORMATS:
        edges = _edges(kind)
        values = random_float(FORMATS[kind], h, g)
        return np.where(g % 16 == 0, edges[(h >> np.uint64(20)) % np.uint64(len(edges))], values)
    # Integers of every magnitude.
    bits = bits_of(kind)
    mask = np.uint64(2**bits - 1)
    small = (h & mask) >> (g % np.uint64(bits))
    return np.where(g >> np.uint64(62) == 0, ~small & mask, small)


def _edges(kind: str) -> Bits:
    if kind.endswith("x2"):
        one = EDGES[kind[:-2]]
        return one | np.roll(one, 3) << np.uint64(bits_of(kind[:-2]))
    return EDGES.get(kind, np.empty(0, np.uint64))


def _relate(kinds: tuple[str, ...], columns: list[NDArray], half: int) -> None:
    """Makes some of the later operands nearly cancel (or equal) the first, and some third ones a product."""
    count = len(columns[0]) if columns else 0
    choice = hashed("relate", count)
    choice[:half] = 7
    for position in range(1, len(kinds)):
        if kinds[position] != kinds[0] or bits_of(kinds[0]) not in (16, 32, 64):
            continue
        unsigned = columns[0].dtype.type
        sign = unsigned(1 << (bits_of(kinds[0]) - 1))
        near = columns[0] ^ (choice >> np.uint64(60)).astype(unsigned) ^ np.where(choice >> np.uint64(20) & 1, sign, 0)
        columns[position] = np.where(choice % 8 == position, near, columns[position]).astype(unsigned)
    if len(kinds) == 3 and kinds[0] == kinds[1] == kinds[2] and kinds[0] in FORMATS:
        form = FORMATS[kinds[0]]
        product, is_finite = form.product(columns[0], columns[1])
        near = encode(form, product) ^ (choice >> np.uint64(61)) ^ np.uint64(1 << (form.bits - 1))
        columns[2] = np.where((choice % 8 >= 4) & (choice % 8 < 7) & is_finite, near, columns[2]).astype(
            columns[2].dtype
        )
