"""mov, selp, slct, setp, set, testp."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from simulators.gpu.errors import UnsupportedInstruction
from tests.simulators.gpu.semantics.instructions import instruction, meaning, one, pair, register, run, vector

INF, NAN, ONE, LEAST = 0x7F800000, 0x7FC00000, 0x3F800000, 1


def test_mov_copies() -> None:
    words = np.array([1, 2], np.uint32)
    moved = meaning("mov.b32", count=2).function(words)
    words[0] = 9
    assert moved.tolist() == [1, 2]
    assert one("mov.pred", 1) == 1


def test_mov_packs_the_lowest_first() -> None:
    assert one("mov.b64", 1, 2, operands=(register("b64"), vector(2))) == 2 << 32 | 1
    assert one("mov.b32", 0x1234, 0xABCD, operands=(register(), vector(2))) == 0xABCD1234
    assert one("mov.b64", 1, 2, 3, 4, operands=(register("b64"), vector(4))) == 0x0004000300020001
    assert one("mov.b32", 1, 2, 3, 4, operands=(register(), vector(4))) == 0x04030201
    assert one("mov.b16", 0x12, 0x34, operands=(register("b16"), vector(2))) == 0x3412


def test_mov_takes_apart() -> None:
    assert [int(x[0]) for x in run("mov.b64", 2 << 32 | 1, operands=(vector(2), register("b64")))] == [1, 2]
    assert [int(x[0]) for x in run("mov.b32", 0x04030201, operands=(vector(4), register()))] == [1, 2, 3, 4]
    with pytest.raises(UnsupportedInstruction):
        meaning("mov.b64", vector(2), vector(2))


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "f32", "f64"])
def test_selp(kind: str) -> None:
    width = int(kind[1:])
    a, b = (1 << width) - 1, 0x1234
    assert run(f"selp.{kind}", [a, a], [b, b], [1, 0]).tolist() == [a, b]


def test_slct() -> None:
    assert [one("slct.u32.s32", 1, 2, c) for c in (0, 5, -1)] == [1, 1, 2]
    assert [one("slct.b64.f32", 1, 2, c) for c in (0x80000000, ONE, NAN, 0xBF800000)] == [1, 1, 2, 2]
    assert [one(f"slct{ftz}.f32.f32", 1, 2, 0x80000001) for ftz in ("", ".ftz")] == [2, 1]


COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def test_setp_of_integers() -> None:
    values = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    for (name, sign), a, b in product(COMPARE.items(), values, values):
        signed = [x - (1 << 32) if x >> 31 else x for x in (a, b)]
        assert one(f"setp.{name}.u32", a, b) == eval(f"{a} {sign} {b}")
        assert one(f"setp.{name}.s32", a, b) == eval(f"{signed[0]} {sign} {signed[1]}")
    assert one("setp.lo.u64", 1, 1 << 63) and one("setp.hs.u16", 0xFFFF, 1)


def test_setp_of_floats() -> None:
    order = {0xFF800000: -2, 0x80000000: 0, 0: 0, LEAST: 1, ONE: 2, INF: 3}
    for (name, sign), a, b in product(COMPARE.items(), (*order, NAN), (*order, NAN)):
        is_unordered = NAN in (a, b)
        holds = not is_unordered and eval(f"{order[a]} {sign} {order[b]}")
        assert one(f"setp.{name}.f32", a, b) == holds
        assert one(f"setp.{name}u.f32", a, b) == (holds or is_unordered)
        assert one("setp.num.f32", a, b) != is_unordered
        assert one("setp.nan.f32", a, b) == is_unordered
    assert [one(f"setp.gt{ftz}.f32", LEAST, 0) for ftz in ("", ".ftz")] == [1, 0]
    assert one("setp.lt.bf16", 0x3F80, 0x4000) and not one("setp.lt.f16", 0x7E00, 0x4000)
    assert one("setp.le.f64", 0x8000000000000000, 0)


def test_setp_with_two_results_and_a_third_operand() -> None:
    operands = (pair(), register(), register(), register("pred"))
    for combine, c in product(("and", "or", "xor"), (0, 1)):
        both = run(f"setp.lt.{combine}.s32", 1, 2, c, operands=operands)
        want = {"and": (1 & c, 0 & c), "or": (1 | c, 0 | c), "xor": (1 ^ c, 0 ^ c)}[combine]
        assert tuple(int(x[0]) for x in both) == want
    assert meaning("setp.lt.and.s32", register("pred"), *operands[1:]).results == (1,)
    lanes = run("setp.gt.f16x2", 0x3C00_0000, 0x0000_3C00, operands=(pair(), register(), register()))
    assert [int(x[0]) for x in lanes] == [0, 1]


def test_set() -> None:
    assert one("set.lt.u32.f32", 0, ONE) == 0xFFFFFFFF
    assert one("set.lt.f32.s32", 2, 1) == 0
    assert one("set.gt.f32.u32", 2, 1) == ONE
    assert one("set.eq.and.u32.s32", 2, 2, 0) == 0
    assert one("set.lt.f16x2.f16x2", 0x0000_3C00, 0x3C00_0000) == 0x3C00_0000
    assert one("set.neu.bf16.bf16", 0x7FC0, 0) == 0x3F80


def test_testp() -> None:
    values = (0, LEAST, ONE, INF, NAN)
    table = {"finite": 0b11100, "infinite": 0b00010, "number": 0b11110, "notanumber": 0b00001}
    table |= {"normal": 0b10100, "subnormal": 0b01000}
    for name, want in table.items():
        assert int("".join(str(one(f"testp.{name}.f32", x)) for x in values), 2) == want


@pytest.mark.parametrize(
    "name", ["setp.lo.s32", "setp.num.u32", "setp.lt.f16x2", "selp.pred", "set.lt.f64.f32", "setp.lt.near.f32"]
)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="PTX line 7: instruction " + name):
        meaning(name)
    assert instruction(name).name == name
