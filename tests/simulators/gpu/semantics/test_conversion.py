"""cvt and cvt.pack against Python's integers, fractions and ml_dtypes."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from simulators.gpu.errors import UnsupportedInstruction
from tests.simulators.gpu.numbers.truth import EDGES32, EDGES64, float_of, value
from tests.simulators.gpu.semantics.instructions import meaning, one, register, run

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def number(bits: int, kind: str) -> int:
    width = int(kind[1:])
    bits &= (1 << width) - 1
    return bits - (1 << width) if kind[0] == "s" and bits >> (width - 1) else bits


def limits(kind: str) -> tuple[int, int]:
    width = int(kind[1:])
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


@pytest.mark.parametrize(("source", "destination"), list(product(INTEGERS, INTEGERS)))
def test_integers(source: str, destination: str) -> None:
    width = max(int(source[1:]), 16)
    values = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x80000000, 0xFFFFFFFF, 1 << 63, (1 << 64) - 1]
    values = sorted({bits & ((1 << width) - 1) for bits in values})
    wide = 64  # a register of 64 bits takes the sign, or zeros
    operands = (register("b64"), register(f"b{width}"))
    for saturates in ("", ".sat"):
        got = run(f"cvt{saturates}.{destination}.{source}", values, operands=operands)
        for bits, answer in zip(values, got.tolist(), strict=True):
            least, greatest = limits(destination)
            exact = number(bits, source)
            want = max(least, min(exact, greatest)) if saturates else number(exact, destination)
            assert answer == want & ((1 << wide) - 1), (saturates, hex(bits))


@pytest.mark.parametrize("kind", ["u8", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_to_integers(source: str, kind: str) -> None:
    width, int_width = int(source[1:]), max(int(kind[1:]), 16)
    number_type, bits_type = (np.float32, np.uint32) if width == 32 else (np.float64, np.uint64)
    numbers = [0.5, 1.5, 2.5, -0.5, -1.5, 0.99, 127.5, 255.5, 2.0**31, 2.0**32, 2.0**63, 2.0**64, -(2.0**63), 1e30]
    numbers += [2.0**63 * 1.5, 2.0**53, 4294967167.0, -1e30, float("inf"), float("-inf")]
    bits = np.array(numbers, number_type).view(bits_type).tolist()
    rounds = {"rni": round, "rzi": int, "rmi": lambda x: x.__floor__(), "rpi": lambda x: x.__ceil__()}
    least, greatest = limits(kind)
    operands = (register(f"b{int_width}"), register(f"b{width}"))
    for mode, whole in rounds.items():
        got = run(f"cvt.{mode}.{kind}.{source}", bits, operands=operands)
        for pattern, answer in zip(bits, got.tolist(), strict=True):
            exact = value(pattern, width)
            limit = greatest if exact > 0 else least
            want = limit if np.isinf(exact) else max(least, min(whole(Fraction(exact)), greatest))
            assert answer == want & ((1 << int_width) - 1), (mode, exact)


def test_nan_to_integers() -> None:
    assert one("cvt.rzi.s32.f32", 0x7FC00000) == 0
    assert one("cvt.rzi.s32.f64", 0x7FF8 << 48) == 0x80000000
    assert one("cvt.rzi.u64.f32", 0x7FC00000, operands=(register("b64"), register())) == 1 << 63
    assert one("cvt.rzi.s32.bf16", 0x7FC0) == 0


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_integers_to_floats(mode: str) -> None:
    values = [
        0,
        1,
        (1 << 24) + 1,
        (1 << 25) - 1,
        (1 << 53) + 1,
        (1 << 63) + 1,
        (1 << 64) - 1,
        (1 << 40) + (1 << 15) + 1,
    ]
    values += [(1 << 62) + (1 << 38) + 1, (1 << 62) + (1 << 38), (1 << 54) + 3]
    for kind, width in product(("u64", "s64", "u32", "s32"), (32, 64)):
        bits = [x & ((1 << int(kind[1:])) - 1) for x in values]
        got = run(f"cvt.{mode}.f{width}.{kind}", bits)
        for pattern, answer in zip(bits, got.tolist(), strict=True):
            exact = number(pattern, kind)
            assert value(answer, width) == float_of(Fraction(exact), width, mode), (kind, exact)
    assert one("cvt.rn.f16.u32", 65520) == 0x7C00
    assert one("cvt.rz.f16.u32", 65520) == 0x7BFF
    assert one("cvt.rn.bf16.u64", (1 << 63) + (1 << 55) + 1) == 0x5F01  # a tie but for the last bit


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f64_to_f32(mode: str) -> None:
    bits = [b for b in EDGES64 if b >> 52 & 0x7FF != 0x7FF]
    bits += [
        np.float64(x).view(np.uint64).item() for x in (1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-52, 2.0**-149 * 1.5, 1e39)
    ]
    for pattern, answer in zip(bits, run(f"cvt.{mode}.f32.f64", bits).tolist(), strict=True):
        exact = value(pattern, 64)
        zero = -0.0 if np.signbit(exact) else 0.0
        got, want = value(answer, 32), float_of(Fraction(exact), 32, mode, zero)
        assert got == want and np.signbit(got) == np.signbit(want), exact.hex()


def test_halves() -> None:
    bits = np.array(EDGES32, np.uint32)
    floats = bits.view(np.float32)
    with np.errstate(over="ignore"):
        f16, bf16 = floats.astype(np.float16).view(np.uint16), floats.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert run("cvt.rn.f16.f32", EDGES32).tolist() == f16.tolist()
    assert run("cvt.rn.bf16.f32", EDGES32).tolist() == bf16.tolist()
    for name, want in (("f16", f16), ("bf16", bf16)):
        got = run(f"cvt.rn.{name}x2.f32", EDGES32, EDGES32[::-1])
        assert (got >> 16).tolist() == want.tolist()  # the first source is the upper half
        assert (got & 0xFFFF).tolist() == want[::-1].tolist()
        relu = run(f"cvt.rn.relu.{name}x2.f32", EDGES32, EDGES32)
        assert (relu & 0xFFFF).tolist() == np.where(want >> 15, 0, want).tolist()
    nan, infinity = 0x7FC00001, 0xFF800000
    assert one("cvt.rn.bf16x2.f32", nan, infinity) == 0x7FFF_FF80
    assert one("cvt.rn.satfinite.f16x2.f32", nan, infinity) == 0x7FFF_FBFF
    assert one("cvt.rz.bf16x2.f32", 0x3F80FFFF, 0xBF80FFFF) == 0x3F80_BF80
    assert one("cvt.f32.bf16", 0x7F81) == 0x7F810000
    assert one("cvt.f32.f16", 0x7C01) == 0x7FFFFFFF
    assert one("cvt.f32.f16", 0x0001) == 0x33800000


def test_whole_numbers_saturation_and_flushing() -> None:
    assert one("cvt.rni.f32.f32", 0x40200000) == 0x40000000  # 2.5
    assert one("cvt.rpi.f32.f32", 0xBF000000) == 0x80000000  # -0.5
    assert one("cvt.rzi.f64.f64", 0xBFF8 << 48) == 0xBFF0 << 48  # -1.5
    assert [one("cvt.sat.f32.f32", x) for x in (0xBF800000, 0x40000000, 0x7FC00000, 0x3F000000)] == [
        0,
        0x3F800000,
        0,
        0x3F000000,
    ]
    assert [one(f"cvt{ftz}.sat.f32.f32", 1) for ftz in ("", ".ftz")] == [1, 0]
    assert one("cvt.rn.ftz.f32.f64", np.float64(2.0**-130).view(np.uint64).item()) == 0


def test_tf32() -> None:
    assert one("cvt.rna.tf32.f32", 0x3F801000) == 0x3F802000
    assert one("cvt.rna.tf32.f32", 0x3F800FFF) == 0x3F800000
    assert one("cvt.rn.tf32.f32", 0x3F801000) == 0x3F800000
    assert one("cvt.rz.relu.tf32.f32", 0xBF801000) == 0
    assert one("cvt.rna.satfinite.tf32.f32", 0x7F7FFFFF) == 0x7F7FE000


SMALL = {
    "e4m3": (ml_dtypes.float8_e4m3fn, 448),
    "e5m2": (ml_dtypes.float8_e5m2, 57344),
    "e2m3": (ml_dtypes.float6_e2m3fn, 7.5),
    "e3m2": (ml_dtypes.float6_e3m2fn, 28),
    "e2m1": (ml_dtypes.float4_e2m1fn, 6),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_floats(name: str) -> None:
    kind, greatest = SMALL[name]
    rng = np.random.default_rng(4)
    floats = (rng.standard_normal(2000) * greatest).astype(np.float32)
    bits = floats.view(np.uint32).tolist()
    want = np.clip(floats, -greatest, greatest).astype(kind).view(np.uint8).astype(int)
    width = 4 if name == "e2m1" else 8
    got = run(f"cvt.rn.satfinite.{name}x2.f32", bits, bits[::-1]).astype(int)
    assert (got >> width).tolist() == want.tolist()
    assert (got & ((1 << width) - 1)).tolist() == want[::-1].tolist()
    codes = np.arange(1 << (2 * width))
    mask = {"e2m1": 15, "e2m3": 63, "e3m2": 63}.get(name, 255)
    halves = run(f"cvt.rn.f16x2.{name}x2", codes.tolist())
    low = (codes & mask).astype(np.uint8).view(kind).astype(np.float32).astype(np.float16)
    is_number = ~np.isnan(low)
    assert (halves & 0xFFFF)[is_number].tolist() == low.view(np.uint16)[is_number].tolist()
    assert set((halves & 0xFFFF)[~is_number].tolist()) <= {0x7FFF}
    back = run(f"cvt.rn.satfinite.{name}x2.f16x2", halves.tolist()).astype(int)
    high = codes >> width & mask
    is_number &= ~np.isnan(high.astype(np.uint8).view(kind).astype(np.float32))
    if name == "e5m2":
        is_number &= (codes & 0x7F != 0x7C) & (high & 0x7F != 0x7C)
    assert (back >> width)[is_number].tolist() == high[is_number].tolist()
    with pytest.raises(UnsupportedInstruction, match="satfinite"):
        meaning(f"cvt.rn.{name}x2.f32")


def test_powers_of_two() -> None:
    halves = run("cvt.rn.bf16x2.ue8m0x2", [0, 1, 127, 254, 255])
    assert (halves & 0xFFFF).tolist() == [0x0040, 0x0080, 0x3F80, 0x7F00, 0x7FFF]
    assert one("cvt.rz.ue8m0x2.f32", 0x3FFFFFFF, 0xC0800000) == 0x7F81
    assert one("cvt.rp.ue8m0x2.f32", 0x3F800001, 0x3F800000) == 0x807F
    assert one("cvt.rp.satfinite.ue8m0x2.f32", 0x7F7FFFFF, 0x7FC00000) == 0xFEFF
    assert one("cvt.rp.ue8m0x2.f32", 0x00400000, 0x00400001) == 0x0001
    assert one("cvt.rz.satfinite.ue8m0x2.bf16x2", 0x3F80_4000) == 0x7F80


def test_pack() -> None:
    assert one("cvt.pack.sat.s16.s32", 40000, -40000) == 0x7FFF8000
    assert one("cvt.pack.sat.u8.s32.b32", 300, -5, 0xAABBCCDD) == 0xCCDDFF00
    assert one("cvt.pack.sat.s4.s32.b32", 9, -9, 0x123) == 0x12378


@pytest.mark.parametrize(
    "name", ["cvt.f32.f64", "cvt.rn.f64.f32", "cvt.s32.f32", "cvt.f32.s32", "cvt.rn.e4m3x2.s32", "cvt.rn.odd.f16.f32"]
)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        meaning(name)
