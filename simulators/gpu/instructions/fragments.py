"""How a warp's threads hold the tiles of a matrix product, from registers to matrices and back.

A thread's lane is 4 g + t. Its registers of A hold chunks of neighbours along k, those of rows g and g + 8 in turn, of
chunk t and then of chunk t + 4, and so on; those of B the same of column g; those of the accumulator two neighbours of
columns 2 t + 8 j of rows g and g + 8. A warpgroup's tile is that of its four warps, 16 rows each.
Source: PTX ISA, "Matrix Fragments for mma.m16n8k16" and the like, "Register Fragments and Shared Memory Layouts".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
GROUPS, CHUNKS = 8, 4  # g and t of a thread


def elements(words: Array, bits: int) -> Array:
    """[..., R] words to [..., R x elements] codes, the lowest bits first. Of 4 bits: bytes."""
    if bits == 4:
        both = words.view(np.uint8)
        return np.stack([both & np.uint8(15), both >> np.uint8(4)], axis=-1).reshape(*both.shape[:-1], -1)
    return words.view(f"u{bits // 8}")


def _by_thread(registers: Sequence[Array], bits: int) -> Array:
    """Registers [W, 32] to codes [W, g, t, register, element]."""
    words = np.stack(registers, axis=-1)
    codes = elements(words, bits)
    return codes.reshape(len(words), GROUPS, CHUNKS, len(registers), -1)


def rows_of_registers(registers: Sequence[Array], bits: int, rows: int) -> Array:
    """A: registers [W, 32], of 32 or 64 bits, to codes [W, rows, K]."""
    codes = _by_thread(registers, bits)
    halves = rows // GROUPS
    codes = codes.reshape(len(codes), GROUPS, CHUNKS, -1, halves, codes.shape[-1])
    return codes.transpose(0, 4, 1, 3, 2, 5).reshape(len(codes), rows, -1)


def columns_of_registers(registers: Sequence[Array], bits: int) -> Array:
    """B: registers [W, 32] to codes [W, K, 8]."""
    codes = _by_thread(registers, bits)
    return codes.transpose(0, 3, 2, 4, 1).reshape(len(codes), -1, GROUPS)


def sums_of_registers(registers: Sequence[Array], bits: int, rows: int) -> Array:
    """C: registers [W, 32] to bits [W, rows, N]."""
    codes = _by_thread(registers, bits)
    codes = codes.reshape(len(codes), GROUPS, CHUNKS, -1, rows // GROUPS, 2)
    return codes.transpose(0, 4, 1, 3, 2, 5).reshape(len(codes), rows, -1)


def registers_of_sums(sums: Array, register_bits: int) -> list[Array]:
    """D: bits [W, rows, N] to registers [W x 32]."""
    warps, rows, _ = sums.shape
    codes = sums.reshape(warps, rows // GROUPS, GROUPS, -1, CHUNKS, 2).transpose(0, 2, 4, 3, 1, 5)
    words = np.ascontiguousarray(codes).reshape(warps * GROUPS * CHUNKS, -1).view(f"u{register_bits // 8}")
    return list(np.ascontiguousarray(words.T))
