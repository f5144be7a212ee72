"""Narrow formats against ml_dtypes, and every direction against fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from simulators.gpu.numbers.formats import FORMATS, decoded, encode
from simulators.gpu.numbers.half import bf16_of_float32, bf16_to_float32, f16_of_float32, f16_to_float32, of_odd
from simulators.gpu.numbers.rounding import odd_sum
from tests.simulators.gpu.numbers.truth import EDGES32, rounded

LIKE = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}


def samples() -> np.ndarray:
    """float32 of every exponent, with ties of short mantissas and their neighbours."""
    rng = np.random.default_rng(1)
    tops = rng.integers(0, 1 << 16, 20000, dtype=np.uint64) << np.uint64(16)
    near = rng.choice(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint64), 20000)
    bits = np.concatenate([(tops | near).astype(np.uint32), np.array(EDGES32, np.uint32)])
    values = bits.view(np.float32)
    return values[np.isfinite(values)]


@pytest.mark.parametrize("name", LIKE)
def test_values_of_codes(name: str) -> None:
    form = FORMATS[name]
    codes = np.arange(1 << form.bits)
    want = codes.astype(np.uint16 if form.bits == 16 else np.uint8).view(LIKE[name]).astype(np.float32)
    np.testing.assert_array_equal(decoded(form), want)


@pytest.mark.parametrize("name", LIKE)
def test_nearest_codes(name: str) -> None:
    form, values = FORMATS[name], samples()
    inside = np.abs(values) <= decoded(form)[form.greatest]
    got = encode(values[inside].astype(np.float64), form, "rn")
    with np.errstate(over="ignore"):
        want = values[inside].astype(LIKE[name]).view(np.uint16 if form.bits == 16 else np.uint8)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("mode", ["rn", "rna", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["e4m3", "e2m1", "f16", "tf32"])
def test_every_direction(name: str, mode: str) -> None:
    form, values = FORMATS[name], samples()[::7]
    values = values[np.abs(values) < 2.0 ** (8 if name == "e4m3" else 2 if name == "e2m1" else 15)][:2000]
    codes = encode(values.astype(np.float64), form, mode)
    for code, number in zip(codes.tolist(), values.tolist(), strict=True):
        want = rounded(Fraction(number), form.mantissa_bits, form.least_exponent, mode)
        magnitude = code & ((1 << (form.bits - 1)) - 1)
        exponent, fraction = magnitude >> form.mantissa_bits, magnitude & ((1 << form.mantissa_bits) - 1)
        whole = fraction + ((exponent > 0) << form.mantissa_bits)
        got = Fraction(whole) * Fraction(2) ** (max(exponent, 1) - 1 + form.least_exponent - form.mantissa_bits)
        assert (-got if code >> (form.bits - 1) else got) == want, (name, mode, number.hex(), hex(code))


def test_what_is_too_large() -> None:
    values = np.array([65519.0, 65520.0, 1e30, -65520.0, np.inf, -np.inf, np.nan])
    form = FORMATS["f16"]
    assert encode(values, form, "rn").tolist() == [0x7BFF, 0x7C00, 0x7C00, 0xFC00, 0x7C00, 0xFC00, 0x7FFF]
    assert encode(values, form, "rz").tolist() == [0x7BFF, 0x7BFF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7FFF]
    assert encode(values, form, "rp").tolist() == [0x7C00, 0x7C00, 0x7C00, 0xFBFF, 0x7C00, 0xFC00, 0x7FFF]
    assert encode(values, form, "rm").tolist() == [0x7BFF, 0x7BFF, 0x7BFF, 0xFC00, 0x7C00, 0xFC00, 0x7FFF]
    assert encode(values, form, "rn", is_finite=True).tolist() == [0x7BFF] * 3 + [0xFBFF, 0x7BFF, 0xFBFF, 0x7FFF]
    assert encode(values, FORMATS["e4m3"], "rn").tolist() == [0x7F, 0x7F, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F]
    assert encode(values, FORMATS["e4m3"], "rn", is_finite=True).tolist() == [0x7E] * 3 + [0xFE, 0x7E, 0xFE, 0x7F]
    assert encode(values[-1:], FORMATS["e2m1"], "rn", is_finite=True).tolist() == [0x7]


def test_f16_and_bf16_in_few_passes_are_what_the_slow_way_gives() -> None:
    values = np.concatenate([samples(), np.array([np.inf, -np.inf, np.nan, 65519.996, 65520, 6e-8, 3e-8], np.float32)])
    for name, function in (("f16", f16_of_float32), ("bf16", bf16_of_float32)):
        np.testing.assert_array_equal(function(values), encode(values.astype(np.float64), FORMATS[name], "rn"), name)
    codes = np.arange(1 << 16).astype(np.uint16)
    np.testing.assert_array_equal(f16_to_float32(codes), codes.view(np.float16).astype(np.float32))
    np.testing.assert_array_equal(bf16_to_float32(codes), codes.view(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_sums_rounded_to_odd_become_the_right_half(name: str) -> None:
    rng = np.random.default_rng(2)
    a = samples().astype(np.float64)
    tie = a.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    rest = a * rng.choice([2.0**-70, -(2.0**-70), 0.0, 1.0], len(a))
    with np.errstate(all="ignore"):
        odd = odd_sum(tie.view(np.float32).astype(np.float64), rest)
        odd = odd[np.isfinite(odd)]
        np.testing.assert_array_equal(of_odd(odd, name), encode(odd, FORMATS[name], "rn"))
