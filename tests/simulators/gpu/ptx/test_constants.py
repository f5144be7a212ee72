import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.constants import constant
from simulators.gpu.ptx.lexer import Words
from simulators.gpu.ptx.module import Immediate


def value_of(text: str) -> Immediate:
    words = Words(text)
    value = constant(words)
    assert words.next == ""
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-1", -1),
        ("- -3", 3),
        ("~0", -1),
        ("0x1F", 31),
        ("0xffffffffffffffffU", 2**64 - 1),
        ("017", 15),
        ("0b101U", 5),
        ("42U", 42),
        ("1<<3", 8),
        ("1+2*3", 7),
        ("10 - 2 - 3", 5),
        ("1 + 1 << 4", 32),
        ("WARP_SZ", 32),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_integers(text: str, value: int) -> None:
    assert value_of(text) == Immediate(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0f3F800000", Immediate(0x3F800000, 32)),
        ("0Fff800000", Immediate(0xFF800000, 32)),
        ("-0f3F800000", Immediate(0xBF800000, 32)),
        ("0d3FF0000000000000", Immediate(0x3FF0000000000000, 64)),
        ("1.0", Immediate(0x3FF0000000000000, 64)),
        ("-1.", Immediate(0xBFF0000000000000, 64)),
        (".5", Immediate(0x3FE0000000000000, 64)),
        ("5e-1", Immediate(0x3FE0000000000000, 64)),
    ],
)
def test_floating_point_constants_are_their_bits(text: str, value: Immediate) -> None:
    assert value_of(text) == value


@pytest.mark.parametrize(
    "text",
    """08 0x 0xg 0b2 12abc 0f3F8 0d3F800000 1e999 1.2.3 18446744073709551616 1<<64 1<<-1 -9223372036854775809
    9223372036854775807*4 1.5+1 ~1.5 - 1+ e5 . ²""".split(),
)
def test_what_is_no_constant_is_refused(text: str) -> None:
    with pytest.raises(PtxSyntaxError, match="line 1"):
        value_of(text)


@pytest.mark.parametrize("text", ["9" * 5000, "0x" + "f" * 5000, "1" * 5000 + ".5", "1e" + "9" * 5000])
def test_a_number_of_very_many_digits_is_refused(text: str) -> None:
    with pytest.raises(PtxSyntaxError, match="line 1"):
        value_of(text)


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_integer_of_64_bits(value: int) -> None:
    assert value_of(str(value)) == value_of(f"{'-' * (value < 0)}{abs(value):#x}") == Immediate(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimals_are_the_nearest_double(value: float) -> None:
    assert value_of(repr(value)) == Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], 64)
