"""Many atomics at one place, done at once: what each finds there, in their order, and what the last one leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# From what is at the place, [1], and each operand of the instruction, [n] by thread, to what each finds, and what is
# left, [n + 1]. None: these must go one by one.
Scan = Callable[..., Array | None]

_UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "min": np.minimum,
    "max": np.maximum,
}


def scan_of(name: str, kind: str) -> Scan | None:
    """For the operation and its type; None if there is no quicker way. All values are unsigned, of the type's bits."""
    is_integer = kind in ("u32", "s32", "b32", "u64", "s64", "b64")
    if kind in ("f32", "f64") and name == "add":
        return _add_floats
    if name in _UFUNCS and is_integer:
        return _accumulating(_UFUNCS[name], "i" if kind[0] == "s" else "u")
    if name in ("exch", "cas") and is_integer:
        return _exchange if name == "exch" else _compare_and_swap
    return {"inc": _increment, "dec": _decrement}.get(name)


def _accumulating(function: np.ufunc, sign: str) -> Scan:
    def scan(found: Array, values: Array) -> Array:
        terms = np.concatenate([found, values])
        seen = terms.view(f"{sign}{terms.itemsize}")
        return np.asarray(function.accumulate(seen, dtype=seen.dtype)).view(terms.dtype)

    return scan


def _add_floats(found: Array, values: Array) -> Array | None:
    """Plain sums: neither NaN nor a denormal among them, of which the chip has its own view."""
    bits = np.concatenate([found, values])
    terms = bits.view(f"f{bits.itemsize}")
    sums = np.add.accumulate(terms)
    for one in (terms, sums):
        if not np.isfinite(one).all() or ((one != 0) & (np.abs(one) < np.finfo(one.dtype).tiny)).any():
            return None
    return sums.view(bits.dtype)


def _exchange(found: Array, values: Array) -> Array:
    return np.concatenate([found, values])


def _compare_and_swap(found: Array, compares: Array, values: Array) -> Array:
    """In one step from each that swaps to the next."""
    seen, current, first = np.empty(len(values) + 1, found.dtype), found[0], 0
    while True:
        hits = np.flatnonzero(compares[first:] == current)
        if not len(hits):
            seen[first:] = current
            return seen
        end = first + int(hits[0]) + 1
        seen[first:end] = current
        current, first = values[end - 1], end


def _increment(found: Array, limits: Array) -> Array | None:
    return _round_a_ring(found, limits, 1)


def _decrement(found: Array, limits: Array) -> Array | None:
    return _round_a_ring(found, limits, -1)


def _round_a_ring(found: Array, limits: Array, step: int) -> Array | None:
    """Up or down among the numbers up to one limit; from beyond it, they enter at its end."""
    limit = int(limits[0])
    if (limits != limits[0]).any():
        return None
    steps = step * np.arange(len(limits) + 1, dtype=np.int64)
    if found[0] <= limit:
        return np.asarray((int(found[0]) + steps) % (limit + 1)).astype(found.dtype)
    entry = 0 if step > 0 else limit
    return np.concatenate([found, ((entry + steps[:-1]) % (limit + 1)).astype(found.dtype)])
