"""Registers of 128 bits: moved, loaded, stored and swapped whole, and taken for nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.errors import UnsupportedInstruction
from tests.simulators.gpu.launching import kernel, run

WIDE = ".reg .b128 %w<4>;"
THREADS = np.arange(64, dtype=np.uint64)


def pairs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.stack([low, high], axis=1)


def test_halves_are_packed_copied_and_taken_apart() -> None:
    """Of every other thread, so that the rest keep what they have."""
    body = """
    mad.wide.u32 %rd2, %r1, 16, %rd1; cvt.u64.u32 %rd3, %r1; add.u64 %rd4, %rd3, 1000;
    mov.b128 %w0, {%rd3, %rd4};
    mov.b128 %w1, %w0;
    and.b32 %r3, %r1, 1; setp.eq.u32 %p1, %r3, 0;
    @%p1 mov.b128 %w1, {%rd4, %rd3};
    mov.b128 {%rd5, %rd6}, %w1;
    st.global.v2.b64 [%rd2], {%rd5, %rd6};
    """
    out = np.zeros((64, 2), np.uint64)
    run(kernel(WIDE + body, 1), [out], block=64)
    straight, crossed = pairs(THREADS, THREADS + 1000), pairs(THREADS + 1000, THREADS)
    np.testing.assert_array_equal(out, np.where((THREADS % 2 == 0)[:, None], crossed, straight))


def test_they_are_loaded_and_stored_whole() -> None:
    body = """
    mad.wide.u32 %rd3, %r1, 16, %rd1; mad.wide.u32 %rd4, %r1, 16, %rd2;
    ld.global.b128 %w0, [%rd3]; st.global.b128 [%rd4], %w0;
    """
    given = pairs(THREADS * np.uint64(0x9E3779B97F4A7C15), ~THREADS)
    out = np.zeros_like(given)
    run(kernel(WIDE + body, 2), [given, out], block=64)
    np.testing.assert_array_equal(out, given)


def test_threads_swap_one_place_one_after_the_other() -> None:
    """Both halves must be as they were expected; each thread finds what the one before it left."""
    body = """
    mad.wide.u32 %rd3, %r1, 16, %rd2; cvt.u64.u32 %rd4, %r1; add.u64 %rd5, %rd4, 1;
    not.b64 %rd6, %rd4; not.b64 %rd7, %rd5;
    mov.b128 %w0, {%rd4, %rd6}; mov.b128 %w1, {%rd5, %rd7};
    atom.global.cas.b128 %w2, [%rd1], %w0, %w1;
    st.global.b128 [%rd3], %w2;
    """
    place, found = pairs(THREADS[:1], ~THREADS[:1]), np.zeros((64, 2), np.uint64)
    run(kernel(WIDE + body, 2), [place, found], block=64)
    np.testing.assert_array_equal(found, pairs(THREADS, ~THREADS))
    assert place.tolist() == [[64, 2**64 - 1 - 64]]


@pytest.mark.parametrize(
    "body",
    [
        "cvt.u64.u32 %rd2, %r1; st.global.b128 [%rd1], %rd2;",
        "st.global.b64 [%rd1], %w0;",
        "ld.global.b64 %w0, [%rd1];",
        "atom.global.add.b128 %w0, [%rd1], %w1;",
        "mov.b128 %w0, {%r1, %r1, %r1, %r1};",
        "mov.b128 %w0, 1;",
    ],
)
def test_they_are_taken_for_nothing_else(body: str) -> None:
    with pytest.raises(UnsupportedInstruction):
        run(kernel(WIDE + body, 1), [np.zeros((32, 2), np.uint64)])
