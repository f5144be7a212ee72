"""What a twin is: one operation of both panels, declared once.

The name says where both are: `reference.kernels.NAME:NAME` and `optimized.kernels.NAME:NAME`, unless stated otherwise.
Everything else of a case file is what the operation may be called with, and what error it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.ulp import ROW_SHARE
from reference.formats import Array, DType

Config = Mapping[str, Any]  # what JSON holds: shapes, dtypes, constants, the kind of input


@dataclass(frozen=True)
class Output:
    """One result of an operation.

    Continuous: held in ULPs of its dtype to the float64 oracle. Exact: equal to the reference, bit for bit.
    """

    name: str
    exact: bool = False
    # ULPs that are allowed beyond the bound, for all dtypes or by name; the case file says why.
    floor: float | Mapping[str, float] = 0.0
    # Of a row's root mean square: what is smaller is measured by the ULP of this. 1 where elements carry the errors of
    # larger ones in their row, and cancel.
    row_share: float = ROW_SHARE
    in_place: str | None = None  # the input that it overwrites; None: memory of its own

    def floor_of(self, dtype: DType) -> float:
        return self.floor if isinstance(self.floor, (int, float)) else self.floor.get(str(dtype), 0.0)


@dataclass(frozen=True)
class Call:
    """One call of an operation, as NumPy arrays. Strides are part of it."""

    arrays: Mapping[str, Array]  # in the order of the operation's positional parameters
    constants: Mapping[str, Any] = field(default_factory=dict)  # its keyword parameters
    # Rows that stand for many: the executor repeats the first axis of every array named here to so many rows, where
    # there is memory, and a result is right if each of its rows is that of the row that it repeats.
    repeated: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Twin:
    """An operation of both panels."""

    name: str
    outputs: tuple[Output, ...]
    corners: Callable[[], Iterable[Config]]  # configurations that are always tried
    space: st.SearchStrategy[Config]  # and those among which more are searched
    inputs: Callable[[Config, np.random.Generator], Call]
    reference: str = ""  # "module:function"
    optimized: str = ""
    # Bytes that must be read and written, for the benchmark; None where speed is not a matter of bytes.
    bytes_moved: Callable[[Config], int] | None = None
    # Bytes of local memory a thread that are expected, by the kernel's class; elsewhere none may be used.
    local_bytes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for panel in ("reference", "optimized"):
            if not getattr(self, panel):
                object.__setattr__(self, panel, f"{panel}.kernels.{self.name}:{self.name}")


def as_tuple(result: Any) -> tuple[Any, ...]:
    """An operation's results: one, or several."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
