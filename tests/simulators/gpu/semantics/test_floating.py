"""Floating-point instructions: rounding is tested with the numbers, here what instructions add to it."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import ml_dtypes
import numpy as np
import pytest

from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.numbers.formats import FORMATS
from tests.simulators.gpu.numbers.truth import rounded
from tests.simulators.gpu.semantics.instructions import meaning, one, run

INF, NAN, ONE, TWO, LEAST = 0x7F800000, 0x7FC00123, 0x3F800000, 0x40000000, 0x00800000
ONLY_NAN = 0x7FFFFFFF


def f32(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def f64(x: float) -> int:
    return int(np.float64(x).view(np.uint64))


def test_f32_has_one_nan() -> None:
    assert one("add.f32", NAN, ONE) == one("sub.f32", INF, INF) == one("mul.f32", 0, INF) == ONLY_NAN
    assert one("fma.rn.f32", ONE, 0xFF800001, ONE) == one("sqrt.rn.f32", f32(-1)) == one("div.rn.f32", 0, 0) == ONLY_NAN
    assert one("neg.f32", NAN) == one("abs.f32", 0xFF800001) == ONLY_NAN


def test_f64_passes_nan_on() -> None:
    a, b, c = (0x7FF0 << 48) | 1, (0xFFF8 << 48) | 2, (0x7FF8 << 48) | 3
    quiet = 1 << 51
    assert one("add.f64", a, f64(1)) == a | quiet
    assert one("add.f64", a, b) == one("mul.f64", a, b) == b
    assert one("div.rn.f64", a, b) == a | quiet
    assert one("fma.rn.f64", a, f64(1), c) == c and one("fma.rn.f64", a, b, c) == b
    assert one("sub.f64", f64(np.inf), f64(np.inf)) == 0xFFF8 << 48
    assert one("neg.f64", a) == a | quiet


def test_flushing_and_saturation() -> None:
    assert one("add.ftz.f32", 0x80000001, 0x80000000) == 0x80000000
    assert one("add.ftz.f32", LEAST, 0) == LEAST
    assert one("mul.ftz.f32", f32(2.0**-100), f32(2.0**-27)) == 0
    assert [one("add.sat.f32", x, 0) for x in (f32(-1), TWO, NAN, f32(0.25))] == [0, ONE, 0, f32(0.25)]
    assert one("sub.ftz.sat.f32", LEAST + 5, LEAST) == 0
    # 2^-126 (1 - 2^-24) rounds up to the least normal number, but is flushed; 2^-126 (1 - 2^-46) is not
    assert one("mul.f32", 0x3F7FFFFF, LEAST) == LEAST and one("mul.ftz.f32", 0x3F7FFFFF, LEAST) == 0
    above, below = f32((1 + 2.0**-23) * 2.0**-10), f32((1 - 2.0**-23) * 2.0**-116)
    assert one("mul.ftz.f32", above, below) == LEAST and one("mul.rz.ftz.f32", above, below) == 0
    assert one("fma.rn.ftz.f32", 0x3F7FFFFF, LEAST, 0) == 0
    assert one("div.rp.ftz.f32", LEAST, ONE + 1) == 0
    assert one("mul.ftz.f16", 0x3BFF, 0x0400) == 0 and one("mul.f16", 0x3BFF, 0x0400) == 0x0400


def test_directed_zero() -> None:
    assert one("add.rm.f32", ONE, f32(-1)) == 0x80000000 and one("add.rn.f32", ONE, f32(-1)) == 0
    assert one("sub.rm.f64", f64(1), f64(1)) == 1 << 63


@pytest.mark.parametrize("name", ["min", "max"])
def test_extremes(name: str) -> None:
    pick = min if name == "min" else max
    values = [f32(x) for x in (-np.inf, -1, -1e-40, 0, 1e-40, 1, np.inf)]
    for a, b in product(values, values):
        floats = np.array([a, b], np.uint32).view(np.float32)
        assert one(f"{name}.f32", a, b) == f32(pick(floats.tolist()))
    zeros = (0x80000000, 0)
    assert one(f"{name}.f32", *zeros) == one(f"{name}.f32", *zeros[::-1]) == (zeros[0] if name == "min" else zeros[1])
    assert one(f"{name}.f32", NAN, ONE) == one(f"{name}.f32", ONE, NAN) == ONE
    assert one(f"{name}.f32", NAN, NAN) == one(f"{name}.NaN.f32", ONE, NAN) == ONLY_NAN
    assert one(f"{name}.xorsign.abs.f32", f32(-3), f32(4)) == f32(-pick(3, 4))
    assert one(f"{name}.f32", ONE, TWO, f32(-5)) == f32(pick(1, 2, -5))
    assert one(f"{name}.f64", f64(-0.0), 0) == f64(-0.0 if name == "min" else 0.0)
    assert one(f"{name}.bf16x2", 0x3F80_7FFF, 0x4000_BF80) == (0x3F80_BF80 if name == "min" else 0x4000_BF80)
    assert one(f"{name}.NaN.f16", 0x7C01, 0) == 0x7FFF


def test_signs() -> None:
    assert one("copysign.f32", 0x80000000, ONE) == f32(-1)
    assert one("neg.bf16x2", 0x3F80_BF80) == 0xBF80_3F80 and one("abs.f16x2", 0xBC00_8000) == 0x3C00_0000
    assert one("abs.ftz.f32", 0x80000001) == 0 and one("neg.f32", 0) == 0x80000000


HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


@pytest.mark.parametrize("name", HALVES)
def test_arithmetic_of_halves(name: str) -> None:
    """Every result against a fraction: one rounding."""
    rng = np.random.default_rng(5)
    a, b, c = rng.integers(0, 1 << 16, (3, 3000))
    a, b, c = (x & 0x9FFF | 0x2000 if name == "f16" else x & 0x80FF | 0x3F00 for x in (a, b, c))
    c[::2] = a[::2] ^ 0x8000
    form = FORMATS[name]
    x, y, z = ([float(v) for v in bits.astype(np.uint16).view(HALVES[name])] for bits in (a, b, c))

    def check(got: np.ndarray, exact: list[Fraction]) -> None:
        for bits, want in zip(got.view(HALVES[name]).tolist(), exact, strict=True):
            nearest = rounded(want, form.mantissa_bits, form.least_exponent, "rn")
            assert np.isinf(float(bits)) or Fraction(float(bits)) == nearest

    u, v, w = ([Fraction(n) for n in numbers] for numbers in (x, y, z))
    check(run(f"add.rn.{name}", a, b), [p + q for p, q in zip(u, v, strict=True)])
    check(run(f"sub.{name}", a, c), [p - q for p, q in zip(u, w, strict=True)])
    check(run(f"mul.{name}", a, b), [p * q for p, q in zip(u, v, strict=True)])
    sums = run(f"fma.rn.{name}", a, b, c)
    check(sums, [p * q + r for p, q, r in zip(u, v, w, strict=True)])
    packed = run(f"fma.rn.{name}x2", *(bits << 16 | bits for bits in (a, b, c)))
    assert (packed >> 16).tolist() == (packed & 0xFFFF).tolist() == sums.tolist()
    relu = run(f"fma.rn.relu.{name}", a, b, c)
    assert relu.tolist() == np.where(sums >> 15, 0, sums).tolist()
    oob = one(f"fma.rn.oob.{name}", 0xFFF7, 0x3C00, 0x3C00), one(f"fma.rn.oob.{name}", 0x3C00, 0x3C00, 0x7FF7)
    assert oob == (0, 0x7FFF)


def test_a_bf16_fma_is_not_rounded_by_way_of_f32() -> None:
    """1 + 2^-8 is a tie of bf16; 2^-60 breaks it, and f32 would lose that."""
    tie = 0x3F81, 0x3F81  # (1 + 2^-7)^2 = 1 + 2^-6 + 2^-14
    assert one("fma.rn.bf16", *tie, 0x3B80) == 0x3F83  # + 2^-8: a tie but for 2^-14
    assert one("fma.rn.bf16", 0x3F80, 0x3B80, 0x3F80) == 0x3F80  # 2^-8 + 1
    assert one("fma.rn.bf16", 0x3B80, 0x3F81, 0x3F80) == 0x3F81  # a bit more


def test_mixed_precision() -> None:
    assert meaning("fma.rn.f32.bf16").operands == (16, 16, 32)
    assert meaning("sub.rn.f32.f16", count=3).operands == (16, 32)
    assert one("fma.rn.f32.bf16", 0x4040, 0x4000, ONE) == f32(7)
    assert one("sub.rn.f32.f16", 0x4200, ONE) == f32(2)
    assert one("add.rn.sat.f32.bf16", 0x4040, ONE) == ONE
    assert one("fma.rp.f32.f16", 0x0001, 0x0001, ONE) == ONE + 1


def test_f32x2() -> None:
    both = ONE << 32 | TWO
    assert one("add.f32x2", both, both) == TWO << 32 | f32(4)
    assert one("fma.rn.f32x2", both, both, both) == TWO << 32 | f32(6)
    assert one("mul.rn.ftz.f32x2", 1 << 32 | TWO, ONE << 32 | ONE) == TWO
    scalar = meaning("mul.f32x2").function(np.array([both, 0], np.uint64), np.uint64(both))
    assert scalar.tolist() == [ONE << 32 | f32(4), 0]


def test_division_and_roots() -> None:
    assert one("div.rn.f32", ONE, f32(3)) == f32(1 / 3)
    assert one("div.rz.f32", f32(2), f32(3)) + 1 == one("div.rp.f32", f32(2), f32(3))
    assert one("rcp.rn.f32", 0x80000000) == 0xFF800000
    assert one("sqrt.rm.f32", TWO) + 1 == one("sqrt.rp.f32", TWO)
    assert one("sqrt.rn.ftz.f32", 0x80000001) == 0x80000000
    assert one("rcp.rn.f64", f64(3)) == f64(1 / 3)


APPROXIMATE = {"rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "lg2": np.log2}
APPROXIMATE |= {"ex2": np.exp2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh}


@pytest.mark.parametrize("name", APPROXIMATE)
def test_approximate_functions(name: str) -> None:
    values = np.linspace(0.1, 6, 2000).astype(np.float32)
    got = run(f"{name}.approx.f32", values.view(np.uint32)).view(np.float32)
    true = APPROXIMATE[name](values.astype(np.float64))
    assert np.all(
        np.abs(got - true) <= np.maximum(np.abs(true) * 2.0**-22, 2.0**-20.5 if name in ("sin", "cos") else 0)
    )
    assert not meaning(f"{name}.approx.f32", count=2).is_exact


def test_special_values_of_approximate_functions() -> None:
    assert one("ex2.approx.ftz.f32", f32(-np.inf)) == 0 and one("ex2.approx.ftz.f32", f32(-127)) == 0
    assert one("ex2.approx.f32", f32(-127)) == 0x00400000
    assert one("lg2.approx.f32", 0) == f32(-np.inf) and one("lg2.approx.f32", f32(-1)) == ONLY_NAN
    assert one("rsqrt.approx.f32", 0x80000000) == f32(-np.inf) and one("rcp.approx.ftz.f32", 1) == INF
    assert one("sin.approx.f32", 0x80000000) == 0x80000000 and one("cos.approx.f32", INF) == ONLY_NAN
    assert one("tanh.approx.f32", f32(-np.inf)) == f32(-1)
    assert one("div.approx.f32", ONE, 0x7F000000) == 0 and one("div.full.f32", ONE, 0x7F000000) == 0x00400000
    assert one("div.approx.f32", INF, 0x7F000001) == ONLY_NAN
    assert one("rcp.approx.ftz.f64", f64(3)) == f64(1 / 3) >> 32 << 32
    assert one("rcp.approx.ftz.f64", 1) == f64(np.inf) and one("rsqrt.approx.ftz.f64", f64(-1)) == 0x7FFFFFFF << 32
    assert one("ex2.approx.ftz.bf16", 0xC300) == 0 and one("ex2.approx.f16x2", 0x3C00_0000) == 0x4000_3C00
    assert one("tanh.approx.bf16x2", 0x7F80_FF80) == 0x3F80_BF80


@pytest.mark.parametrize(
    "name",
    "add.rna.f32 add.sat.f64 mul.bf16.f32 fma.rz.f16 div.f32 sqrt.f32 sin.f32 rcp.approx.f64 min.sat.f32 "
    "ex2.approx.f64 max.xorsign.f32 sin.approx.f16 add.relu.f16".split(),
)
def test_what_is_not_known_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        meaning(name, count=3 if name[:3] in ("add", "mul", "min", "max", "div") else 2)
