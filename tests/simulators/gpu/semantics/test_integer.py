"""Integer instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from tests.simulators.gpu.semantics.instructions import meaning, one, run

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def values(width: int) -> list[int]:
    """Two's complements of edge values and some others."""
    top = 1 << (width - 1)
    rng = np.random.default_rng(width)
    return [
        0,
        1,
        2,
        7,
        top - 1,
        top,
        top + 1,
        2 * top - 1,
        *(int(x) >> (64 - width) for x in rng.integers(0, 2**64, 4, dtype=np.uint64)),
    ]


def number(bits: int, kind: str) -> int:
    width = int(kind[1:])
    return bits - (1 << width) if kind[0] == "s" and bits >> (width - 1) else bits


def check(name: str, kind: str, want: Callable[..., int], count: int, result: int | None = None) -> None:
    """All tuples of values; `want` takes and gives Python integers, which are cut to the result's width."""
    width = int(kind[1:])
    rows = list(product(values(width), repeat=count))
    got = run(name, *zip(*rows, strict=True))
    mask = (1 << (result or width)) - 1
    for row, answer in zip(rows, got.tolist(), strict=True):
        assert answer == want(*(number(bits, kind) for bits in row)) & mask, (name, row)


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@pytest.mark.parametrize("kind", TYPES)
def test_arithmetic(kind: str) -> None:
    width = int(kind[1:])
    check(f"add.{kind}", kind, lambda a, b: a + b, 2)
    check(f"sub.{kind}", kind, lambda a, b: a - b, 2)
    check(f"mul.lo.{kind}", kind, lambda a, b: a * b, 2)
    check(f"mul.hi.{kind}", kind, lambda a, b: a * b >> width, 2)
    check(f"mad.lo.{kind}", kind, lambda a, b, c: a * b + c, 3)
    check(f"mad.hi.{kind}", kind, lambda a, b, c: (a * b >> width) + c, 3)
    check(f"sad.{kind}", kind, lambda a, b, c: c + abs(a - b), 3)
    check(f"min.{kind}", kind, min, 2)
    check(f"max.{kind}", kind, max, 2)
    check(f"div.{kind}", kind, lambda a, b: truncated(a, b) if b else -1, 2)
    check(f"rem.{kind}", kind, lambda a, b: a - truncated(a, b) * b if b else -1, 2)
    if width < 64:
        check(f"mul.wide.{kind}", kind, lambda a, b: a * b, 2, 2 * width)
    if kind[0] == "s":
        check(f"abs.{kind}", kind, abs, 1)
        check(f"neg.{kind}", kind, lambda a: -a, 1)


def clamped(value: int) -> int:
    return max(-(1 << 31), min(value, (1 << 31) - 1))


def low24(value: int, kind: str) -> int:
    return number(value & 0xFFFFFF, kind[0] + "24")


def test_saturation_and_24_bits() -> None:
    check("add.sat.s32", "s32", lambda a, b: clamped(a + b), 2)
    check("sub.sat.s32", "s32", lambda a, b: clamped(a - b), 2)
    check("mad.hi.sat.s32", "s32", lambda a, b, c: clamped((a * b >> 32) + c), 3)
    for kind in ("u32", "s32"):
        check(f"mul24.lo.{kind}", kind, lambda a, b, kind=kind: low24(a, kind) * low24(b, kind), 2)
        check(f"mul24.hi.{kind}", kind, lambda a, b, kind=kind: low24(a, kind) * low24(b, kind) >> 16, 2)
        check(f"mad24.lo.{kind}", kind, lambda a, b, c, kind=kind: low24(a, kind) * low24(b, kind) + c, 3)


def test_mad_wide_adds_twice_the_width() -> None:
    assert meaning("mad.wide.s32").operands == (32, 32, 64)
    assert one("mad.wide.s32", -3, 5, 1 << 40) == (1 << 40) - 15
    assert one("mad.wide.u16", 65535, 65535, 65535) == 65535 * 65536


@pytest.mark.parametrize("width", [32, 64])
def test_carries_make_long_sums(width: int) -> None:
    ones, kind = (1 << width) - 1, f"u{width}"
    add = meaning(f"add.cc.{kind}", count=3)
    assert add.writes_carry and not add.reads_carry and add.results == (width, 1)
    addc = meaning(f"addc.cc.{kind}", count=3)
    assert addc.reads_carry and addc.operands == (width, width, 1)
    assert meaning(f"addc.{kind}", count=3).results == (width,)
    for a, b in product([0, 1, ones, 1 << (width - 1)], repeat=2):
        low, carry = (int(x[0]) for x in run(f"add.cc.{kind}", a, b))
        assert low + (carry << width) == a + b
        low, borrow = (int(x[0]) for x in run(f"sub.cc.{kind}", a, b))
        assert low - (borrow << width) == a - b
        low, carry = (int(x[0]) for x in run(f"mad.lo.cc.{kind}", a, b, ones))
        assert low + (carry << width) == (a * b & ones) + ones
        for flag in (0, 1):
            total = meaning(f"addc.cc.{kind}", count=3).function
            word = np.uint32 if width == 32 else np.uint64
            result, carry_out = total(word([a]), word([b]), np.array([bool(flag)]))
            assert int(result[0]) + (int(carry_out[0]) << width) == a + b + flag
            less = meaning(f"subc.cc.{kind}", count=3).function
            result, borrow_out = less(word([a]), word([b]), np.array([bool(flag)]))
            assert int(result[0]) - (int(borrow_out[0]) << width) == a - b - flag


def test_two_lanes() -> None:
    assert one("add.u16x2", 0xFFFF0001, 0x0001FFFF) == 0x00000000
    assert one("min.s16x2", 0x8000_0005, 0x0001_FFFE) == 0x8000_FFFE
    assert one("max.u16x2", 0x8000_0005, 0x0001_FFFE) == 0x8000_FFFE
    assert one("max.relu.s16x2", 0x8000_0005, 0xFFFF_FFFE) == 0x0000_0005


def test_dot_products() -> None:
    assert (
        one("dp4a.s32.s32", 0xFF02FE80, 0x01FF0302, 10)
        == (10 + (-128 * 2) + (-2 * 3) + (2 * -1) + (-1 * 1)) & 0xFFFFFFFF
    )
    assert one("dp4a.u32.s32", 0xFF000000, 0x80000000, 0) == (255 * -128) & 0xFFFFFFFF
    assert one("dp2a.lo.s32.u32", 0x8000_0003, 0x0909_FF02, 1) == (1 + 3 * 2 - 32768 * 255) & 0xFFFFFFFF
    assert one("dp2a.hi.s32.u32", 0x8000_0003, 0x02FF_0909, 1) == (1 + 3 * 255 - 32768 * 2) & 0xFFFFFFFF
