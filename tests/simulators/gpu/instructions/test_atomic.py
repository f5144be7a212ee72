"""Atomics of many threads at few places: each finds what those before it have left, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.gpu import Gpu
from simulators.gpu.instructions.atomic_scan import scan_of
from tests.simulators.gpu.launching import kernel, run

# What an operation leaves of Python numbers: found, value, and what is compared.
LEFT: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda found, value, _: found + value,
    "min": lambda found, value, _: min(found, value),
    "max": lambda found, value, _: max(found, value),
    "and": lambda found, value, _: found & value,
    "or": lambda found, value, _: found | value,
    "xor": lambda found, value, _: found ^ value,
    "exch": lambda found, value, _: value,
    "cas": lambda found, value, compare: value if found == compare else found,
    "inc": lambda found, value, _: 0 if found >= value else found + 1,
    "dec": lambda found, value, _: value if found == 0 or found > value else found - 1,
}
FORMS = [
    *((name, kind) for name in ("add", "min", "max") for kind in ("u32", "s32", "u64")),
    *((name, "s64") for name in ("min", "max")),
    *((name, kind) for name in ("and", "or", "xor", "exch", "cas") for kind in ("b32", "b64")),
    ("inc", "u32"),
    ("dec", "u32"),
]


def one_after_another(
    name: str, memory: NDArray[np.integer], places: NDArray[np.uint32], values: NDArray[np.integer], compare: int
) -> tuple[list[int], list[int]]:
    """What each finds, and what is left."""
    left, found = memory.tolist(), []
    bits, signed = 8 * memory.itemsize, memory.dtype.kind == "i"
    for place, value in zip(places.tolist(), values.tolist(), strict=True):
        found.append(left[place])
        after = LEFT[name](left[place], value, compare) % (1 << bits)
        left[place] = after - (1 << bits) if signed and after >> (bits - 1) else after
    return found, left


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(("name", "kind"), FORMS)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_each_finds_what_those_before_it_left(space: str, name: str, kind: str, data: st.DataObject) -> None:
    bits, dtype = int(kind[1:]), np.dtype(f"{'i' if kind[0] == 's' else 'u'}{int(kind[1:]) // 8}")
    info, few = np.iinfo(dtype), name in ("inc", "dec", "cas")
    numbers = st.integers(0, 3) if few else st.integers(int(info.min), int(info.max))
    threads = 96
    uniform = data.draw(st.booleans())
    values = [data.draw(numbers)] * threads if uniform else data.draw(st.lists(numbers, min_size=96, max_size=96))
    memory = np.array(data.draw(st.lists(numbers, min_size=16, max_size=16)), dtype)
    crowded = data.draw(st.integers(1, 16))
    places = np.array(data.draw(st.lists(st.integers(0, crowded - 1), min_size=96, max_size=96)), np.uint32)
    held, compare = np.array(values, dtype), data.draw(st.integers(0, 3))
    found, left = one_after_another(name, memory, places, held, compare)
    register, size = ("%rd" if bits == 64 else "%r"), bits // 8
    compared = f"{compare}, " if name == "cas" else ""
    move = f"""
setp.lt.u32 %p1, %r1, 16;
mul.wide.u32 %rd4, %r1, {size};
mov.u64 %rd8, t;
add.s64 %rd9, %rd8, %rd4;
add.s64 %rd4, %rd1, %rd4;
"""
    fill = f"@%p1 ld.global.b{bits} {register}20, [%rd4];\n@%p1 st.shared.b{bits} [%rd9], {register}20;\nbar.sync 0;\n"
    drain = f"bar.sync 0;\n@%p1 ld.shared.b{bits} {register}20, [%rd9];\n@%p1 st.global.b{bits} [%rd4], {register}20;\n"
    body = f"""
{move}
{fill if space == "shared" else ""}
mul.wide.u32 %rd5, %r1, 4;
add.s64 %rd6, %rd2, %rd5;
ld.global.u32 %r5, [%rd6];
mul.wide.u32 %rd7, %r5, {size};
add.s64 %rd7, {"%rd8" if space == "shared" else "%rd1"}, %rd7;
mul.wide.u32 %rd5, %r1, {size};
add.s64 %rd6, %rd3, %rd5;
ld.global.b{bits} {register}20, [%rd6];
atom.{space}.{name}.{kind} {register}21, [%rd7], {compared}{register}20;
st.global.b{bits} [%rd6], {register}21;
{drain if space == "shared" else ""}
"""
    run(kernel(body, 3, ".shared .align 8 .b8 t[128];"), [memory, places, held], block=threads)
    assert held.tolist() == found and memory.tolist() == left


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_tickets_are_all_different(seed: int | None) -> None:
    count, tickets = np.zeros(1, np.uint32), np.zeros(3 * 96, np.uint32)
    body = """
mad.lo.u32 %r5, %r2, 96, %r1;
mul.wide.u32 %rd5, %r5, 4;
add.s64 %rd6, %rd2, %rd5;
atom.global.add.u32 %r6, [%rd1], 1;
st.global.u32 [%rd6], %r6;
"""
    run(kernel(body, 2), [count, tickets], grid=3, block=96, gpu=Gpu(H200, seed=seed))
    assert count.tolist() == [288] and sorted(tickets.tolist()) == list(range(288))


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_a_lock_lets_one_in_after_another(seed: int | None) -> None:
    lock = np.zeros(2, np.uint32)
    body = """
LOOP:
atom.global.acquire.gpu.cas.b32 %r3, [%rd1], 0, 1;
setp.ne.u32 %p1, %r3, 0;
@%p1 bra LOOP;
ld.global.u32 %r4, [%rd1+4];
add.u32 %r4, %r4, 1;
st.global.u32 [%rd1+4], %r4;
atom.global.release.gpu.exch.b32 %r5, [%rd1], 0;
"""
    run(kernel(body, 1), [lock], grid=3, block=48, gpu=Gpu(H200, seed=seed))
    assert lock.tolist() == [0, 144]


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("last", [3.0, np.inf, np.nan, 1e-310, 1e-40])
def test_sums_of_floats_are_rounded_one_by_one(kind: str, last: float) -> None:
    dtype = np.dtype("f4" if kind == "f32" else "f8")
    values = np.array([1e30, 1.0, -1e30, 0.1] * 8, dtype)
    values[-1] = last
    size, register = dtype.itemsize, "%rd2" if kind == "f64" else "%f"
    found, total = [], dtype.type(0.5)
    for value in values:
        found.append(total)
        flushed = value * dtype.type(0) if kind == "f32" and 0 < abs(value) < np.finfo(dtype).tiny else value
        total = dtype.type(total + flushed)
    memory = np.array([0.5], dtype)
    body = f"""
mul.wide.u32 %rd5, %r1, {size};
add.s64 %rd6, %rd2, %rd5;
ld.global.{kind} {register}1, [%rd6];
atom.global.add.{kind} {register}2, [%rd1], {register}1;
st.global.{kind} [%rd6], {register}2;
"""
    run(kernel(body, 2), [memory, values])
    np.testing.assert_array_equal(values, np.array(found, dtype))
    np.testing.assert_array_equal(memory[0], total)


def test_what_cannot_be_done_at_once_is_left() -> None:
    scan, found = scan_of("inc", "u32"), np.array([0], np.uint32)
    assert scan is not None and scan(found, np.array([1, 2], np.uint32)) is None
    sums = scan_of("add", "f32")
    tiny = np.array([1, 1], np.uint32)  # denormals
    assert sums is not None and sums(found, tiny) is None
    assert scan_of("add", "f16x2") is None and scan_of("exch", "b128") is None
