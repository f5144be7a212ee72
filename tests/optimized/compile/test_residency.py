"""How many blocks fit at once, by the rules of the programming guide, and that a grid beyond it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimized.compile.arch import ARCHS, SM_90A
from optimized.compile.residency import blocks_by_limit, most_registers, require_resident, resident_blocks


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "per_sm"),
    [
        (1024, 32, 0, 2),
        (1024, 33, 0, 1),  # 40 registers after rounding: 48 warps
        (512, 128, 0, 1),
        (512, 64, 0, 2),
        (256, 255, 0, 1),
        (128, 168, 0, 3),
        (32, 16, 0, 32),  # blocks, not threads, are what runs out
        (33, 16, 0, 32),
        (128, 32, 232448, 1),
        (128, 32, 232449, 0),
        (128, 32, 115712, 2),  # 2 x (113 + 1) KiB
        (128, 32, 115713, 1),
        (1024, 65, 0, 0),
        (1025, 16, 0, 0),
        (32, 256, 0, 0),
    ],
)
def test_blocks_of_one_multiprocessor(threads: int, registers: int, shared_bytes: int, per_sm: int) -> None:
    found = resident_blocks(SM_90A, 1, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert found == per_sm
    many = resident_blocks(SM_90A, 132, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert many == 132 * per_sm


@given(
    arch=st.sampled_from(list(ARCHS.values())),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    shared_bytes=st.integers(0, 232448),
)
def test_what_fits_is_within_every_limit(arch, threads: int, registers: int, shared_bytes: int) -> None:
    blocks = resident_blocks(arch, 1, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert blocks <= arch.max_blocks_per_sm
    assert blocks * threads <= arch.max_threads_per_sm
    assert blocks * threads * registers <= arch.registers_per_sm
    assert blocks * (shared_bytes + 1024) <= arch.shared_bytes_per_sm
    wider = resident_blocks(arch, 1, threads=threads, registers=min(255, registers + 8), shared_bytes=shared_bytes)
    assert wider <= blocks


def test_each_limit_is_named() -> None:
    """Units of the programming guide: 256 registers a warp, warps by fours, 128 bytes and 1 KiB a block."""
    limits = blocks_by_limit(SM_90A, threads=96, registers=33, shared_bytes=1000)
    warps = 65536 // (40 * 32) // 4 * 4
    assert limits == {"registers": warps // 3, "shared memory": 233472 // 2048, "threads": 21, "blocks": 32}


@pytest.mark.parametrize("threads", [32, 64, 96, 256, 288, 512, 768, 1024])
def test_a_kernel_that_states_its_block_fits_once(threads: int) -> None:
    registers = most_registers(SM_90A, threads)
    assert resident_blocks(SM_90A, 1, threads=threads, registers=registers, shared_bytes=0) >= 1
    if registers < 255:
        assert resident_blocks(SM_90A, 1, threads=threads, registers=registers + 1, shared_bytes=0) == 0


def test_a_grid_that_would_wait_for_ever_is_refused() -> None:
    require_resident(SM_90A, 132, 264, threads=512, registers=64, shared_bytes=30000)
    with pytest.raises(
        ValueError, match="265 blocks wait for each other, and sm_90a with 132 multiprocessors holds 264"
    ):
        require_resident(SM_90A, 132, 265, threads=512, registers=64, shared_bytes=30000)
