"""Paged decode attention: a row's bits do not depend on its company, how a launch is chosen, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optimized.kernels.paged_attention as module
from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.artifact import Artifact
from optimized.compile.build import build
from optimized.compile.library import Library
from optimized.device import CompileOnly, Outline
from optimized.kernels.paged_attention import paged_attention
from optimized.kernels.paged_attention_launch import MOST_REQUESTS, attention_launch, queries_capacity
from parity.cases.paged_attention import BASE, inputs
from parity.executors.poisoned import contiguous
from parity.executors.simulate.device import SimulatedDevice
from parity.executors.simulate.program import Runtime
from reference.formats import Array
from simulators.gpu.chip import CHIPS
from simulators.gpu.gpu import Gpu

LENGTHS = [300, 70, 1, 513]
QUERIES = 2


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> SimulatedDevice:
    """A chip of three multiprocessors, so that the runs of blocks end within requests and spans."""
    chip = CHIPS["sm_90a"]
    simulated = SimulatedDevice(Runtime(Gpu(chip), chip), SM_90A, Library((tmp_path_factory.mktemp("kernels"),)))
    simulated.num_sms = 3
    return simulated


@pytest.fixture
def arrays() -> dict[str, Array]:
    """A batch in which values nearly cancel each other: then the order in which they were added up shows in every
    element, and does not vanish in its rounding."""
    block_size = BASE["block_size"]
    config = BASE | {"requests": len(LENGTHS), "lengths": LENGTHS, "queries": [QUERIES], "dtype": "float16"}
    arrays = dict(inputs(config, np.random.default_rng(0)).arrays)
    k_cache, v_cache, table = (arrays[name] for name in ("k_cache", "v_cache", "block_table"))
    for blocks, length in zip(table, LENGTHS, strict=True):
        key = np.arange(length // 2)
        first, second = ((blocks[one // block_size], slice(None), one % block_size) for one in (key, key + length // 2))
        k_cache[second] = k_cache[first]
        v_cache[first] *= 256  # its sums are no subnormal numbers
        v_cache[second] = -v_cache[first] * np.float16(1 + 2**-9)
    return arrays


def attend(device: SimulatedDevice, arrays: dict[str, Array], requests: Sequence[int], **tuned: int) -> Array:
    """The rows [R, queries, Nq, D] of some of the requests, in this order, computed as one batch."""
    q, k_cache, v_cache, table, _, lengths = arrays.values()
    chosen = list(requests)
    rows = q.reshape(len(LENGTHS), QUERIES, *q.shape[1:])[chosen].reshape(-1, *q.shape[1:])
    query_start = np.arange(0, (len(chosen) + 1) * QUERIES, QUERIES, dtype=np.int32)
    with device.memory(0xFF), pytest.MonkeyPatch.context() as patch:
        options: dict[str, Any] = {"split": 64, "splits_per_span": 2, "warps": 4} | tuned
        patch.setattr(module, "attention_launch", partial(attention_launch, **options))
        placed = []
        for array in (rows, k_cache, v_cache, table[chosen], query_start, lengths[chosen]):
            placed.append(device.allocate(contiguous("input", array.shape, array.dtype), is_initialized=True))
            placed[-1].fill(array)
        out = paged_attention(*(one.view for one in placed), max_query_len=QUERIES)
        return out.array.copy().reshape(len(chosen), QUERIES, *q.shape[1:])


def same_bits(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one.view(np.uint16), other.view(np.uint16)))


def test_a_row_has_the_same_bits_alone_in_company_and_in_any_order(
    device: SimulatedDevice, arrays: dict[str, Array]
) -> None:
    together = attend(device, arrays, range(4))
    for order in ([3, 2, 1, 0], [3, 3, 0], [3]):
        assert same_bits(attend(device, arrays, order), together[order]), order


@pytest.mark.slow
def test_a_row_has_the_same_bits_wherever_the_blocks_of_threads_share_it(
    device: SimulatedDevice, arrays: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    three = attend(device, arrays, range(4))
    for num_sms in (1, 2, 8):
        monkeypatch.setattr(device, "num_sms", num_sms)
        assert same_bits(attend(device, arrays, range(4)), three), num_sms


@pytest.mark.slow
@pytest.mark.parametrize("tuned", [{"split": 128}, {"splits_per_span": 4}])
def test_another_order_of_sums_gives_other_bits(
    device: SimulatedDevice, arrays: dict[str, Array], tuned: dict[str, int]
) -> None:
    """The negative control: equal bits say something."""
    one, other = attend(device, arrays, [3]), attend(device, arrays, [3], **tuned)
    assert np.mean(one != other) > 0.01


def launch_of(**options: Any) -> Any:
    shape = {"num_requests": 8, "max_keys": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
    return attention_launch(SM_90A, 132, **(shape | {"max_query_len": 1} | options))


@given(
    arch=st.sampled_from([SM_90A, SM_100A]),
    num_sms=st.integers(1, 160),
    num_requests=st.integers(0, MOST_REQUESTS),
    max_keys=st.integers(16, 1 << 17),
    kv_heads=st.integers(1, 8),
    group=st.integers(1, 16),
    head_dim=st.sampled_from([64, 128, 256]),
    queries=st.integers(0, 8),
)
def test_a_launch_fits_the_chip_and_covers_its_rows(
    arch: Arch, num_sms: int, num_requests: int, max_keys: int, kv_heads: int, group: int, head_dim: int, queries: int
) -> None:
    launch = attention_launch(
        arch,
        num_sms,
        num_requests=num_requests,
        max_keys=max_keys,
        num_heads=group * kv_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_query_len=queries,
    )
    assert launch.passes * launch.rows >= max(queries, 1) * group
    assert launch.rows <= launch.tiles * 16
    assert launch.capacity >= num_requests
    assert 1 <= launch.blocks <= num_sms * (arch.shared_bytes_per_sm // (launch.shared_bytes + 1024))


def test_what_decides_bits_is_the_same_for_every_batch() -> None:
    def deciding(**options: Any) -> tuple[int, ...]:
        launch = launch_of(**options)
        return launch.split, launch.splits_per_span, launch.warps

    assert {deciding(num_requests=r, max_keys=k) for r in (1, 8, 300, 1024) for k in (128, 4096, 1 << 17)} == {
        deciding()
    }
    assert {deciding(max_query_len=queries) for queries in range(9)} == {deciding()}


def test_splits_that_warps_cannot_share_are_refused() -> None:
    """Keys would be left out: of 64, each of eight warps would take none."""
    for split in (0, 64, 200):
        with pytest.raises(ValueError, match=f"split is {split}; it must be a multiple of 8 warps' 16 keys"):
            launch_of(split=split)
    assert launch_of(split=128, head_dim=256).split == 128


def test_blocks_that_registers_may_keep_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shared memory has room for two blocks of 256 threads; the compiler may give each all registers of a chip's
    multiprocessor, and then one waits for ever for one that cannot start."""
    monkeypatch.setattr(module, "attention_launch", partial(attention_launch, blocks_per_sm=2))
    caches = {name: ((900, 2, 16, 64), "bfloat16") for name in ("k_cache", "v_cache")}
    with pytest.raises(ValueError, match=r"264 blocks wait for each other, and sm_90a with 132 .* holds 132 at once"):
        call(q=((3, 8, 64), "bfloat16"), block_table=((3, 1000), "int32"), **caches)


def built(arch: Arch, *, head_dim: int = 64, max_query_len: int = 1, **options: Any) -> Artifact:
    """Five heads that share a KV head, and keys in splits that blocks share."""
    kernels: list[Any] = []
    outline = partial(Outline, panel_device=CompileOnly(arch, lambda kernel, _: kernels.append(kernel)))
    q, cache = outline((3, 5, head_dim), "bfloat16"), outline((90, 1, 16, head_dim), "bfloat16")
    numbers = (outline(shape, "int32") for shape in ((3, 30), (4,), (3,)))
    paged_attention(q, cache, cache, *numbers, max_query_len=max_query_len, **options)
    return build(kernels[0], arch)


def places(ptx: str, pattern: str) -> list[int]:
    return [match.start() for match in re.finditer(pattern, ptx)]


def test_what_a_dependent_launch_does_before_it_waits() -> None:
    """It fetches keys, and reads lengths and tables; it reads no query, and writes nothing. It lets the next launch
    begin when all blocks have passed the barrier."""
    ptx = built(SM_90A, pdl=True).ptx
    waits, (begins,) = places(ptx, r"griddepcontrol\.wait"), places(ptx, r"griddepcontrol\.launch_dependents")
    fetches, (barrier,) = places(ptx, r"cp\.async\.cg"), places(ptx, r"ld\.acquire\.gpu")
    queries = places(ptx, r"ld\.global\.v4")
    assert waits[0] < fetches[0] < waits[1] < min(queries) and min(places(ptx, r"st\.global")) > waits[1]
    assert barrier < begins < max(queries), "what was kept is read after the barrier"
    assert len(waits) == 3 and "ld.global.nc" not in ptx


@pytest.mark.parametrize(
    ("arch", "head_dim", "queries"),
    [(SM_90A, 256, 1), (SM_90A, 128, 8), (SM_100A, 256, 1)],
    ids=lambda value: value.name if isinstance(value, Arch) else str(value),
)
def test_no_registers_are_spilled_and_an_ordinary_launch_knows_nothing_of_others(
    arch: Arch, head_dim: int, queries: int
) -> None:
    """Where sums take 128 registers of a thread. Blackwell's spills of two tiles are in the case file."""
    artifact = built(arch, head_dim=head_dim, max_query_len=queries)
    assert [one.local_bytes for one in artifact.resources] == [0]
    assert "griddepcontrol" not in artifact.ptx
    shape = {"num_requests": 3, "max_keys": 480, "num_heads": 5, "num_kv_heads": 1, "head_dim": head_dim}
    planned = attention_launch(arch, arch.num_sms, **shape, max_query_len=queries)
    assert [one.shared_bytes for one in artifact.resources] <= [planned.shared_bytes]


def test_queries_are_rounded_up() -> None:
    assert [queries_capacity(count) for count in range(9)] == [1, 1, 2, 4, 4, 8, 8, 8, 8]
    with pytest.raises(ValueError, match="longer chunks are for prefill attention"):
        queries_capacity(9)
    with pytest.raises(ValueError, match="max_query_len is -1; it must be 0 to 8"):
        queries_capacity(-1)


def test_more_keys_than_a_block_can_add_up_are_refused() -> None:
    assert launch_of(max_keys=1 << 22).slots > 0
    with pytest.raises(ValueError, match="may have 4194304 keys here, and its blocks have room for 4194305"):
        launch_of(max_keys=(1 << 22) + 1)


def call(**changed: Any) -> None:
    """On outlines, with some arguments exchanged: (shape, dtype)."""
    shapes: dict[str, Any] = {
        "q": ((3, 8, 128), "bfloat16"),
        "k_cache": ((5, 2, 16, 128), "bfloat16"),
        "v_cache": ((5, 2, 16, 128), "bfloat16"),
        "block_table": ((3, 4), "int32"),
        "query_start": ((4,), "int32"),
        "seq_lens": ((3,), "int32"),
    } | {name: value for name, value in changed.items() if name != "max_query_len"}
    outline: Callable[..., Outline] = partial(Outline, panel_device=CompileOnly(SM_90A, lambda *_: None))
    paged_attention(*(outline(*one) for one in shapes.values()), max_query_len=changed.get("max_query_len", 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": ((3, 8, 128), "float32")}, "q is float32"),
        ({"k_cache": ((5, 2, 16, 128), "float16")}, "k_cache is float16"),
        ({"v_cache": ((5, 2, 32, 128), "bfloat16")}, "v_cache"),
        ({"k_cache": ((5, 2, 16, 64), "bfloat16")}, "k_cache"),
        (
            {"k_cache": ((5, 3, 16, 128), "bfloat16"), "v_cache": ((5, 3, 16, 128), "bfloat16")},
            "3 KV heads do not divide",
        ),
        ({"k_cache": ((5, 2, 8, 128), "bfloat16"), "v_cache": ((5, 2, 8, 128), "bfloat16")}, "multiple of 16"),
        ({"block_table": ((3, 4), "int64")}, "block_table is int64"),
        ({"query_start": ((3,), "int32")}, "query_start"),
        ({"seq_lens": ((4,), "int32")}, "seq_lens"),
        ({"max_query_len": 9}, "max_query_len is 9"),
        (
            {"block_table": ((1025, 4), "int32"), "query_start": ((1026,), "int32"), "seq_lens": ((1025,), "int32")},
            "at most 1024 requests",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call(**changed)


def test_what_fits_is_launched() -> None:
    call()
