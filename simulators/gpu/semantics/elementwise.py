"""What an instruction computes when each thread computes for itself: a function from operands to results.

It knows neither threads nor registers: operands and results are arrays of bits, one element a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Elementwise:
    """The meaning of one instruction.

    Arrays are uint16, uint32 or uint64 by width (8-bit values too are held in uint16), bool for predicates (width 1).
    The function takes one array (or NumPy scalar) an operand and returns one new array, or a tuple of them, none of
    which shares memory with an operand. The carry flag (`add.cc`, `addc`) is a last operand, a last result, of width 1.
    """

    results: tuple[int, ...]  # bits of each
    operands: tuple[int, ...]  # bits of each
    function: Callable[..., Any]
    is_exact: bool = True  # False: PTX lets the last bits differ (`ex2.approx`)
    reads_carry: bool = False  # the last operand is the thread's carry flag, which the instruction does not name
    writes_carry: bool = False  # the last result becomes the thread's carry flag
