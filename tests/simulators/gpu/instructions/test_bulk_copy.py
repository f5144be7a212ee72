"""`cp.async.bulk` between global and shared memory, by mbarrier and by group."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.instructions.boxes import BEGIN, BOX_BYTES, VARIABLES, WAIT, aligned, from_array, to_array
from tests.simulators.gpu.launching import kernel, run

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
SEEDS = (None, 0, 1)


def execute(body: str, *arrays: NDArray[Any], seed: int | None = None, **launch: Any) -> list[NDArray[Any]]:
    """%p1 is false for thread 0 alone; %r9 is the box, %r8 its mbarrier."""
    copies = [aligned(array) for array in arrays]
    run(kernel(BEGIN + body, len(arrays), VARIABLES), copies, gpu=Gpu(H200, seed=seed), **launch)
    return copies


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [0, 16, 2048, 4096])
@pytest.mark.parametrize("space", ["shared::cluster", "shared::cta"])
def test_a_load(size: int, space: str, seed: int | None) -> None:
    source = np.random.default_rng(0).integers(1, 256, BOX_BYTES, np.uint8)
    body = f"""
    @!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], {size};
    @!%p1 {LOAD.replace("shared::cluster", space)} [%r9], [%rd1], {size}, [%r8];
    {WAIT} {to_array()}
    """
    _, out = execute(body, source, np.zeros_like(source), seed=seed)
    assert np.array_equal(out[:size], source[:size])
    assert seed is not None or not out[size:].any()  # by a hostile schedule it holds anything


def test_nothing_is_there_before_the_wait() -> None:
    body = f"@!%p1 {LOAD} [%r9], [%rd1], 4096, [%r8]; bar.sync 0; {to_array()}"
    assert not execute(body, np.ones(BOX_BYTES, np.uint8), np.zeros(BOX_BYTES, np.uint8))[1].any()


def test_every_thread_may_load() -> None:
    source = np.random.default_rng(0).integers(1, 256, BOX_BYTES, np.uint8)
    body = f"""
    mul.wide.u32 %rd9, %r1, 128; add.s64 %rd8, %rd1, %rd9; cvt.u32.u64 %r10, %rd9; add.s32 %r11, %r9, %r10;
    and.b32 %r12, %r1, 7; shl.b32 %r12, %r12, 4;
    mbarrier.expect_tx.relaxed.cta.shared.b64 [%r8], %r12;
    {LOAD} [%r11], [%rd8], %r12, [%r8];
    bar.sync 0;
    @!%p1 mbarrier.arrive.shared.b64 _, [%r8];
    {WAIT} {to_array()}
    """
    _, out = execute(body, source, np.zeros_like(source))
    copied = np.arange(128) < 16 * (np.arange(32) % 8)[:, None]
    assert np.array_equal(out.reshape(32, 128), np.where(copied, source.reshape(32, 128), 0))


# Rank 0 sends its box to rank 1, whose mbarrier is told.
SEND = f"""
{from_array()}
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
mov.u32 %r14, %cluster_ctarank;
setp.ne.or.b32 %p4, %r14, 0, %p1;
setp.ne.s32 %p5, %r14, 1;
mov.b32 %r15, 1;
mapa.shared::cluster.u32 %r16, %r9, %r15;
mapa.shared::cluster.u32 %r17, %r8, %r15;
@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 1024;
@!%p4 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r16+512], [%r9], 1024, [%r17];
@%p5 bra DONE;
{WAIT}
add.s64 %rd2, %rd2, {BOX_BYTES};
{to_array()}
DONE:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_to_another_block_of_the_cluster(seed: int | None) -> None:
    source = np.random.default_rng(0).integers(0, 256, 2 * BOX_BYTES, np.uint8)
    _, out = execute(SEND, source[:1], source, seed=seed, grid=2, cluster=(2, 1, 1))
    expected = source.copy()
    expected[BOX_BYTES:][:BOX_BYTES] = source[:BOX_BYTES]
    expected[BOX_BYTES + 512 : BOX_BYTES + 1536] = source[:1024]
    assert np.array_equal(out, expected)


def storing(opcode: str, between: str, size: int = 2048) -> str:
    return f"""
    {from_array()}
    bar.sync 0;
    @%p1 bra DONE;
    {opcode} [%rd1], [%r9], {size};
    cp.async.bulk.commit_group;
    {between}
    DONE:
    """


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store(seed: int | None) -> None:
    box = np.random.default_rng(0).integers(1, 256, BOX_BYTES, np.uint8)
    out, _ = execute(storing(STORE, "cp.async.bulk.wait_group 0;"), np.zeros_like(box), box, seed=seed)
    assert np.array_equal(out[:2048], box[:2048]) and not out[2048:].any()
    out, _ = execute(storing(STORE, ""), np.zeros_like(box), box, seed=seed)
    assert np.array_equal(out[:2048], box[:2048]), "it is done when the thread ends"


@pytest.mark.parametrize(
    ("wait", "seen"),
    [("wait_group 0", 1), ("wait_group 1", 0), ("wait_group.read 0", 0)],
)
def test_what_a_wait_makes_visible(wait: str, seen: int) -> None:
    """The thread itself reads what it has stored; %rd3 gets it."""
    between = f"cp.async.bulk.{wait}; ld.global.u8 %r10, [%rd1]; st.global.u8 [%rd3], %r10;"
    zeros, ones = np.zeros(BOX_BYTES, np.uint8), np.ones(BOX_BYTES, np.uint8)
    assert execute(storing(STORE, between), zeros, ones, zeros)[2][0] == seen


@pytest.mark.parametrize(("wait", "left"), [(".read 0", 1), (" 0", 1), ("", 9)])
def test_the_source_may_change_after_a_wait_for_reads(wait: str, left: int) -> None:
    between = (f"cp.async.bulk.wait_group{wait};" if wait else "") + "st.shared.u8 [%r9], 9;"
    out, _ = execute(storing(STORE, between), np.zeros(BOX_BYTES, np.uint8), np.ones(BOX_BYTES, np.uint8))
    assert out[0] == left and (out[1:2048] == 1).all()


REDUCTIONS: list[tuple[str, Any, Any]] = [
    ("add.u32", np.uint32, np.add),
    ("min.s32", np.int32, np.minimum),
    ("max.u64", np.uint64, np.maximum),
    ("xor.b32", np.uint32, np.bitwise_xor),
    ("and.b64", np.uint64, np.bitwise_and),
    ("inc.u32", np.uint32, lambda old, limit: np.where(old >= limit, 0, old + 1)),
    ("dec.u32", np.uint32, lambda old, limit: np.where((old == 0) | (old > limit), limit, old - 1)),
    ("add.f32", np.float32, np.add),
    ("add.f64", np.float64, np.add),
    ("add.noftz.f16", np.float16, np.add),
    ("add.noftz.bf16", ml_dtypes.bfloat16, np.add),
    ("max.bf16", ml_dtypes.bfloat16, np.maximum),
]


@pytest.mark.parametrize(("operation", "dtype", "function"), REDUCTIONS)
def test_reductions(operation: str, dtype: Any, function: Any) -> None:
    values = np.random.default_rng(0).integers(-100, 100, (2, BOX_BYTES // np.dtype(dtype).itemsize))
    tensor, box = values.astype(dtype)
    opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.{operation}"
    body = storing(opcode, "cp.async.bulk.wait_group 0;", BOX_BYTES)
    body = body.replace(f"[%r9], {BOX_BYTES};", f"[%r9], {BOX_BYTES}, %rd1;")
    assert np.array_equal(execute(body, tensor, box)[0], function(tensor, box).astype(dtype))


def test_an_addition_keeps_denormals() -> None:
    """As on an H200."""
    ones = np.ones(BOX_BYTES // 4, np.uint32)
    body = storing("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32", "", BOX_BYTES)
    assert (execute(body, ones, ones)[0] == 2).all()


def test_prefetching_does_nothing() -> None:
    body = """
    cp.async.bulk.prefetch.L2.global [%rd1], 64;
    cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd1, {0, 0}];
    """
    execute(body, np.zeros(64, np.uint8))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{LOAD} [%r9], [%rd1], 24, [%r8];", "0x18 is not a multiple of 16"),
        (f"{LOAD} [%r9+8], [%rd1], 16, [%r8];", "not a multiple of 16"),
        (f"{LOAD} [%r9], [%rd1+4080], 32, [%r8];", "past the end of 'array 0'"),
        (f"{LOAD} [%r9+4096], [%rd1], 32, [%r8];", "not within the block's"),
        (f"{STORE} [%rd1+4096], [%r9], 16;", "past the end of 'array 0'"),
        (f"{LOAD} [%r9], [%rd1], 16;", "its operands are not those"),
        (f"{STORE}.cp_mask [%rd1], [%r9], 16, %rs1;", "modifier .cp_mask is unknown"),
        ("cp.async.bulk.global.global.bulk_group [%rd1], [%rd1], 16;", "not supported"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.mul.f32 [%rd1], [%r9], 16;", "not supported"),
    ],
)
def test_misuse(body: str, message: str) -> None:
    with pytest.raises(SimulatorError, match=message):
        execute(body, np.zeros(BOX_BYTES, np.uint8), block=1)


# Each thread of rank 0 stores 16 bytes to rank 1 and adds its number to one word there.
ASYNC = f"""
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
mov.u32 %r14, %cluster_ctarank;
setp.ne.s32 %p4, %r14, 0;
setp.ne.s32 %p5, %r14, 1;
mov.b32 %r15, 1;
mapa.shared::cluster.u32 %r16, %r9, %r15;
mapa.shared::cluster.u32 %r17, %r8, %r15;
shl.b32 %r18, %r1, 4;
add.s32 %r18, %r18, %r16;
st.shared.u32 [%r9+1024], 100;
bar.sync 0;
@!%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r8], 640;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
@!%p4 st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.s32 [%r18], {{%r1, %r1, -1, 7}}, [%r17];
@!%p4 red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r16+1024], %r1, [%r17];
@%p5 bra DONE;
{WAIT}
{to_array()}
DONE:
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_asynchronous_stores(seed: int | None) -> None:
    _, out = execute(ASYNC, np.zeros(1), np.zeros(BOX_BYTES // 4, np.uint32), seed=seed, grid=2, cluster=(2, 1, 1))
    assert out[:128].reshape(32, 4).tolist() == [[i, i, 0xFFFFFFFF, 7] for i in range(32)]
    assert out[256] == 100 + 31 * 16
