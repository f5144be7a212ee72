"""What a twin is: one operation of both panels, declared once.

The name says where both are: `reference.kernels.NAME:NAME` and `optimized.kernels.NAME:NAME`, unless stated otherwise.
Everything else of a case file is what the operation may be called with, and what error it is allowed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from parity.shape import Shape
from parity.ulp import ROW_SHARE
from reference.formats import Array, DType

Config = Mapping[str, Any]  # what JSON holds: shapes, dtypes, constants, the kind of input


@dataclass(frozen=True)
class Output:
    """One result of an operation.

    Continuous: held in ULPs of its dtype to the float64 oracle. Exact: equal to the reference, bit for bit; if any_nan,
    then for NaN that is computed, and whose bits are the chip's, any NaN will do.
    """

    name: str
    exact: bool = False
    any_nan: bool = False
    # ULPs that are allowed beyond the bound, for all dtypes or by name; the case file says why. Of an output that is
    # rounded once, from float32, they are those of float32, whatever its dtype.
    floor: float | Mapping[str, float] = 0.0
    # Of a row's root mean square: what is smaller is measured by the ULP of this. 1 where elements carry the errors of
    # larger ones in their row, and cancel.
    row_share: float = ROW_SHARE
    in_place: str | None = None  # the input that it overwrites; None: memory of its own
    # Beyond the bound too: so many times 2^-23 of the output's magnitude (`Twin.magnitudes`), for all dtypes or by
    # name; the case file says why. What adds in another order, or rounds terms before it adds them, errs by a share of
    # the terms, however small their sum is.
    of_magnitude: float | Mapping[str, float] = 0.0
    # Terms of its sums are rounded on the way: any element may then be another number than the reference's own, and how
    # many are says nothing.
    rounds_terms: bool = False

    def floor_of(self, dtype: DType) -> float:
        return _of_dtype(self.floor, dtype)

    def of_magnitude_of(self, dtype: DType) -> float:
        return _of_dtype(self.of_magnitude, dtype)


def _of_dtype(value: float | Mapping[str, float], dtype: DType) -> float:
    return value if isinstance(value, (int, float)) else value.get(str(dtype), 0.0)


@dataclass(frozen=True)
class Call:
    """One call of an operation, as NumPy arrays. Strides are part of it."""

    arrays: Mapping[str, Array]  # in the order of the operation's positional parameters
    constants: Mapping[str, Any] = field(default_factory=dict)  # its keyword parameters
    # Rows that stand for many: the executor repeats the first axis of every array named here to so many rows, and a
    # result is right if each of its rows is that of the row that it repeats. An odd number of rows, so that no power of
    # two is a multiple of it: an index that has wrapped around then leads to another row.
    repeated: Mapping[str, int] = field(default_factory=dict)
    # By the name of an array, or of an output that has memory of its own: elements that it begins behind an address to
    # which all is aligned; and, of such outputs, elements from one row to the next.
    offsets: Mapping[str, int] = field(default_factory=dict)
    out_strides: Mapping[str, int] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)  # keyword parameters of the optimized panel's alone


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
    # The configuration that a model calls it with at a number of tokens, which the benchmark measures; it gives None
    # where the model does not call it.
    of_model: Callable[[Shape, int], Config | None] | None = None
    # Where a model calls it with several weights, or in several ways: the configuration of each, by its name, instead
    # of `of_model`.
    weights_of_model: Callable[[Shape, int], Mapping[str, Config]] | None = None
    # Where calls of a model share what is too large for copies of it: how the inputs that they do not share are made.
    unshared: Mapping[str, Callable[[Config, np.random.Generator], Array]] = field(default_factory=dict)
    # Bytes of local memory a thread that are expected, by the kernel's class; elsewhere none may be used.
    local_bytes: Mapping[str, int] = field(default_factory=dict)
    # Of each output, f64, or None: what its `of_magnitude` is a multiple of, such as sum |a b| of a product.
    magnitudes: Callable[[Call], Sequence[Array | None]] | None = None
    # Of each output that is exact, [..., n], or None: values that are as right as the reference's own, where rounding
    # decides between them. The case file says how far that goes.
    also_right: Callable[[Call], Sequence[Array | None]] | None = None
    # The library whose kernels it stands on. An instruction of theirs that the simulator does not know is a case that
    # cannot be tried there; one of ours is a fault.
    library: str = ""
    # Why an executor, by its name, cannot try a configuration, in words; None: it can.
    untried: Callable[[Config, str], str | None] = lambda config, executor: None

    def __post_init__(self) -> None:
        for panel in ("reference", "optimized"):
            if not getattr(self, panel):
                object.__setattr__(self, panel, f"{panel}.kernels.{self.name}:{self.name}")

    def call(self, config: Config, random: np.random.Generator) -> Call:
        """The inputs, and where they lie. Of every twin a configuration may have "offset": elements, for all arrays and
        outputs, or by name; "out_stride": likewise, for all outputs; and "launch": see `Call`."""
        call = self.inputs(config, random)
        own = [output.name for output in self.outputs if output.in_place is None]
        offsets = _by_name(config.get("offset", {}), [*call.arrays, *own])
        out_strides = _by_name(config.get("out_stride", {}), own)
        return replace(call, offsets=offsets, out_strides=out_strides, launch=config.get("launch", {}))


def _by_name(given: int | Mapping[str, int], names: Sequence[str]) -> dict[str, int]:
    """Errors: ValueError for a name that is none of these."""
    if not isinstance(given, Mapping):
        return dict.fromkeys(names, operator.index(given))
    unknown = given.keys() - set(names)
    if unknown:
        raise ValueError(f"unknown {min(unknown)!r}; known are {', '.join(names)}")
    return {name: operator.index(value) for name, value in given.items()}


def elements(call: Call) -> int:
    """Of all arrays, rows that stand for many counted once."""
    return sum(array.size for array in call.arrays.values())


def repeated_shape(shape: tuple[int, ...], call: Call) -> tuple[int, ...]:
    """Of an output, where the call's reference gives one of this shape."""
    return (max(call.repeated.values()), *shape[1:]) if call.repeated else shape


def as_tuple(result: Any) -> tuple[Any, ...]:
    """An operation's results: one, or several."""
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
