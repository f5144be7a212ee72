"""Where the matrices of wgmma lie in shared memory, by 64-bit descriptors.

Memory is cut into chunks of 16 bytes: neighbours along k (K-major), or along m or n (MN-major). A descriptor holds the
address of the first one, and two strides, all in units of 16 bytes:
- K-major, no swizzle: 8 rows are one after another; `leading` from one chunk of a row to the next; `stride` to the next
  8 rows. Swizzled: a row's chunks are one after another, rows 32, 64 or 128 bytes apart; `stride` to the next 8 rows.
- MN-major, no swizzle: 8 k are one after another; `leading` to the next 8; `stride` from a chunk to the next along m or
  n. Swizzled: 2, 4 or 8 chunks along m or n are one after another, then come the next k; `leading` to the next 2, 4 or
  8 chunks; `stride` to the next 8 k.
A swizzle exchanges chunks: bits 4 to 6 of an address in shared memory (as many as the mode has) are xored with the bits
three above. Source: PTX ISA, "Matrix Descriptor Format", "Canonical Layouts", "Strides". Recorded answers of an H200
cover K-major without a swizzle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.machine.machine import Machine
from simulators.gpu.machine.special import read_special
from simulators.gpu.memory.spaces import RANK_SHIFT
from simulators.gpu.ptx.module import Instruction

Array = NDArray[Any]
CHUNK_BYTES = 16
_K_BYTES = 32
_FIELD = 0x3FFF
_SWIZZLE_BITS = np.array([0, 3, 2, 1], np.int64)  # by mode: none, 128, 64 and 32 bytes


@dataclass(frozen=True)
class Layout:
    """What an instruction knows of a matrix."""

    rows: int  # m or n
    width: int  # bytes of an element
    k_major: bool


def addresses_of(
    machine: Machine, instruction: Instruction, threads: NDArray[np.intp], descriptors: Array, layout: Layout
) -> Array:
    """u64 of chunks: [D, rows, 2] if K-major, else [D, K, rows of chunks]. descriptors: u64 [D], of these threads.
    Errors: SimulatorError for a base offset, which is not simulated."""
    words = descriptors.astype(np.int64)
    start, leading, stride = ((words >> shift & _FIELD) * CHUNK_BYTES for shift in (0, 16, 32))
    offset_base = words >> 49 & 7
    if offset_base.any():
        which = int(np.flatnonzero(offset_base)[0])
        raise machine.fault(instruction, int(threads[which]), "the base offset of a matrix descriptor is not simulated")
    bits = _SWIZZLE_BITS[words >> 62 & 3]
    start, leading, stride, bits = (field[:, None, None] for field in (start, leading, stride, bits))
    of_line = 1 << bits  # chunks of a swizzled line
    is_plain = bits == 0
    if layout.k_major:
        row, chunk = np.arange(layout.rows)[:, None], np.arange(_K_BYTES // CHUNK_BYTES)
        offset = row % 8 * of_line * CHUNK_BYTES + row // 8 * stride
        offset = offset + chunk * np.where(is_plain, leading, CHUNK_BYTES)
    else:
        k, chunk = np.arange(_K_BYTES // layout.width)[:, None], np.arange(layout.rows * layout.width // CHUNK_BYTES)
        along_k = np.where(is_plain, leading, stride)
        offset = k % 8 * of_line * CHUNK_BYTES + k // 8 * along_k
        offset = offset + chunk % of_line * CHUNK_BYTES + chunk // of_line * np.where(is_plain, stride, leading)
    address = start + offset
    return (address ^ ((address >> 7 & (of_line - 1)) << 4)).astype(np.uint64)


def rank_bits(machine: Machine, threads: NDArray[np.intp]) -> Array:
    """u64 [D, 1, 1]: what marks addresses of their own block's shared memory."""
    if machine.batch.launch.cluster_blocks == 1:
        return np.zeros((len(threads), 1, 1), np.uint64)
    ranks = read_special(machine, "%cluster_ctarank")[threads].astype(np.uint64)
    return (ranks << np.uint64(RANK_SHIFT))[:, None, None]
