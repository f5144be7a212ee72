"""Logic, shifts, fields and permutations, bit by bit in Python."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.simulators.gpu.semantics.instructions import immediate, one, pair, register, run

WORDS = [0, 1, 0x80000000, 0xFFFFFFFF, 0x12345678, 0x89ABCDEF, 0x00010000]
AMOUNTS = [0, 1, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256, 257, 0x80000001]


def test_logic() -> None:
    assert one("and.b64", (1 << 63) | 5, (1 << 63) | 6) == (1 << 63) | 4
    assert one("xor.b16", 0xF0F0, 0xFFFF) == 0x0F0F
    assert one("not.b32", 0x0F) == 0xFFFFFFF0
    assert [one("cnot.b32", word) for word in (0, 1, 0x80000000)] == [1, 0, 0]
    for a, b in product((0, 1), repeat=2):
        got = [one(f"{name}.pred", a, b) for name in ("and", "or", "xor")]
        assert got == [a & b, a | b, a ^ b]
    assert one("not.pred", 1) == 0


@pytest.mark.parametrize("table", range(256))
def test_lop3(table: int) -> None:
    a, b, c = 0xF0, 0xCC, 0xAA
    operands = (register(),) * 4 + (immediate(table),)
    assert one("lop3.b32", a, b, c, table, operands=operands) & 0xFF == table


def test_lop3_with_a_predicate() -> None:
    operands = (pair(), *(register(),) * 3, immediate(0xC0), register("pred"))
    for combine, q, want in (("or", 0, 0), ("or", 1, 1), ("and", 1, 0)):
        result, predicate = run(f"lop3.{combine}.b32", 0xF0, 0x0F, 0, 0xC0, q, operands=operands)
        assert (int(result[0]), int(predicate[0])) == (0, want)


@pytest.mark.parametrize("width", [16, 32, 64])
def test_shifts(width: int) -> None:
    mask = (1 << width) - 1
    for word, by in product([1, 1 << (width - 1), mask, 0x1234], AMOUNTS):
        signed = word - (1 << width) if word >> (width - 1) else word
        assert one(f"shl.b{width}", word, by) == (word << min(by, width)) & mask
        assert one(f"shr.u{width}", word, by) == word >> min(by, width)
        assert one(f"shr.s{width}", word, by) == (signed >> min(by, width)) & mask


def test_funnel_shifts() -> None:
    for a, b, by in product(WORDS, WORDS, AMOUNTS):
        both = b << 32 | a
        for mode, n in (("wrap", by & 31), ("clamp", min(by, 32))):
            assert one(f"shf.l.{mode}.b32", a, b, by) == (both << n >> 32) & 0xFFFFFFFF
            assert one(f"shf.r.{mode}.b32", a, b, by) == (both >> n) & 0xFFFFFFFF


def extract(word: int, position: int, length: int, width: int, is_signed: bool) -> int:
    """The loop of the PTX manual."""
    top = width - 1
    sign = is_signed and length > 0 and word >> min(position + length - 1, top) & 1
    result = 0
    for i in range(width):
        inside = i < length and position + i <= top
        result |= (word >> (position + i) & 1 if inside else int(sign)) << i
    return result


@pytest.mark.parametrize("width", [32, 64])
def test_fields(width: int) -> None:
    mask = (1 << width) - 1
    seen = 0xFF if width == 32 else 0xFFFFFFFF
    for word, position, length in product([0x89ABCDEF12345678 & mask, mask, 1], AMOUNTS, AMOUNTS):
        at, size = position & seen, length & seen
        assert one(f"bfe.u{width}", word, position, length) == extract(word, at, size, width, False)
        assert one(f"bfe.s{width}", word, position, length) == extract(word, at, size, width, True)
        field = ((1 << min(size, width)) - 1) << min(at, width) & mask
        want = (0x5555555555555555 & mask & ~field) | (word << min(at, width)) & field
        assert one(f"bfi.b{width}", word, 0x5555555555555555, position, length) == want


def test_masks_and_extensions() -> None:
    for a, b in product([0, 1, 5, 31, 32, 40], repeat=2):
        assert one("bmsk.wrap.b32", a, b) == (((1 << (b & 31)) - 1) << (a & 31)) & 0xFFFFFFFF
        assert one("bmsk.clamp.b32", a, b) == (((1 << min(b, 32)) - 1) << min(a, 32)) & 0xFFFFFFFF
    assert one("szext.wrap.s32", 0x0000_0080, 8) == 0xFFFFFF80
    assert one("szext.wrap.u32", 0xFFFF_FF80, 8) == 0x80
    assert one("szext.clamp.s32", 0x8000_0000, 40) == 0x8000_0000
    assert one("szext.wrap.s32", 0x8000_0000, 32) == 0


@pytest.mark.parametrize("width", [32, 64])
def test_counts(width: int) -> None:
    for word in (0, 1, 1 << (width - 1), (1 << width) - 1, 0x00FF00, (1 << width) - 5):
        text = f"{word:0{width}b}"
        assert one(f"popc.b{width}", word) == text.count("1")
        assert one(f"clz.b{width}", word) == len(text) - len(text.lstrip("0"))
        assert one(f"brev.b{width}", word) == int(text[::-1], 2)
        position = word.bit_length() - 1
        assert one(f"bfind.u{width}", word) == position & 0xFFFFFFFF
        assert one(f"bfind.shiftamt.u{width}", word) == (width - 1 - position if word else 0xFFFFFFFF)
        signed = ~word & ((1 << width) - 1) if word >> (width - 1) else word
        assert one(f"bfind.s{width}", word) == (signed.bit_length() - 1) & 0xFFFFFFFF


def test_fns() -> None:
    assert one("fns.b32", 0b10110, 1, 1) == 1
    assert one("fns.b32", 0b10110, 1, 3) == 4
    assert one("fns.b32", 0b10110, 3, -1) == 2
    assert one("fns.b32", 0b10110, 2, 0) == 2
    assert one("fns.b32", 0b10110, 3, 0) == 0xFFFFFFFF
    assert one("fns.b32", 0b10110, 3, 2) == 0xFFFFFFFF


def test_prmt() -> None:
    a, b = 0x83828180, 0x07060504
    source = (a | b << 32).to_bytes(8, "little")
    selectors = [0x3210, 0x5410, 0x7632, 0x0123, 0x7777, 0xFEDC, 0x8899, 0x4321]

    def chosen(nibbles: list[int]) -> int:
        picked = [source[n & 7] if n < 8 else 0xFF * (source[n & 7] >> 7) for n in nibbles]
        return int.from_bytes(bytes(picked), "little")

    for selector in selectors:
        want = chosen([selector >> (4 * i) & 15 for i in range(4)])
        assert one("prmt.b32", a, b, selector) == want
        assert one("prmt.b32", a, b, selector, operands=(register(),) * 3 + (immediate(selector),)) == want
    for i in range(4):
        assert one("prmt.b32.f4e", a, b, i) == chosen([i, i + 1, i + 2, i + 3])
        assert one("prmt.b32.b4e", a, b, i) == chosen([(i - j) % 8 for j in range(4)])
        assert one("prmt.b32.rc8", a, b, i) == chosen([i] * 4)
        assert one("prmt.b32.ecl", a, b, i) == chosen([max(i, j) for j in range(4)])
        assert one("prmt.b32.ecr", a, b, i) == chosen([min(i, j) for j in range(4)])
        assert one("prmt.b32.rc16", a, b, i) == chosen([2 * (i & 1), 2 * (i & 1) + 1] * 2)


def test_scalars_go_with_arrays() -> None:
    from tests.simulators.gpu.semantics.instructions import meaning

    words = np.arange(5, dtype=np.uint32)
    assert meaning("shl.b32").function(words, np.uint32(3)).tolist() == [0, 8, 16, 24, 32]
    assert meaning("shl.b32").function(np.uint32(1), words).tolist() == [1, 2, 4, 8, 16]
