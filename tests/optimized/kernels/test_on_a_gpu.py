"""The twins on the GPU at hand."""

from __future__ import annotations

from typing import Any

import pytest

from parity.cases import names, twin_named
from parity.executors.device import DeviceExecutor
from parity.harness import configurations, try_case

pytestmark = pytest.mark.gpu


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_case_of_a_twin_holds(name: str) -> None:
    twin, executor = twin_named(name), DeviceExecutor()
    records = [try_case(twin, config, executor) for config in configurations(twin, searched=20)]
    assert [record.reason for record in records if not record.ok] == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(32, 8, 128), (16, 2, 64), (3, 1, 256)])
@pytest.mark.parametrize("tokens", [1, 37, 3000])
def test_the_fused_operation_gives_the_bits_of_its_parts(
    dtype: str, heads: int, kv_heads: int, head_dim: int, tokens: int
) -> None:
    import torch

    from optimized.kernels.kv_write import kv_write
    from optimized.kernels.qk_norm import qk_norm
    from optimized.kernels.qk_norm_rope_kv_write import qk_norm_rope_kv_write
    from optimized.kernels.rope import rope

    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype), "device": "cuda"}
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim, **options)
    weights = [torch.randn(head_dim, **options) for _ in range(2)]
    positions = torch.randint(0, 5000, (tokens,), dtype=torch.int32, device="cuda")
    tables = [torch.randn(5000, head_dim // 2, device="cuda") for _ in range(2)]
    blocks = -(-tokens // 16) + 1
    caches = [torch.full((blocks, kv_heads, 16, head_dim), torch.nan, **options) for _ in range(2)]
    slots = torch.arange(tokens, dtype=torch.int64, device="cuda") + 5

    def parts() -> tuple[Any, ...]:
        """New copies of q, k, v and the caches."""
        fresh = qkv.clone()
        return (*fresh.split((heads, kv_heads, kv_heads), dim=1), *(cache.clone() for cache in caches))

    q, k, v, k_cache, v_cache = parts()
    qk_norm_rope_kv_write(q, k, v, *weights, positions, *tables, k_cache, v_cache, slots, 1e-6)
    expected_q, expected_k, v, *expected_caches = parts()
    qk_norm(expected_q, expected_k, *weights, 1e-6)
    rope(expected_q, positions, *tables)
    rope(expected_k, positions, *tables)
    kv_write(expected_k, v, *expected_caches, slots)
    for actual, expected in zip((q, k_cache, v_cache), (expected_q, *expected_caches), strict=True):
        bits = torch.int16 if actual.element_size() == 2 else torch.int32
        assert torch.equal(actual.contiguous().view(bits), expected.contiguous().view(bits))


def test_dispatches_that_meet_on_a_chip_do_not_disturb_each_other() -> None:
    """Two graphs and two streams at once: each of their grid barriers counts for itself."""
    import torch

    from optimized.kernels.moe_dispatch import moe_dispatch

    torch.manual_seed(0)
    tokens, experts = 200, 128  # enough that blocks route together, with a barrier

    def inputs() -> tuple[Any, Any]:
        x = torch.randn(tokens, 64, dtype=torch.bfloat16, device="cuda")
        return x, torch.rand(tokens, experts, device="cuda").topk(8).indices.int()

    work = [inputs() for _ in range(4)]
    expected = [[one.clone() for one in moe_dispatch(x, ids, experts, tile=16)] for x, ids in work]
    graphs, results = [], []
    for x, ids in work[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results.append(moe_dispatch(x, ids, experts, tile=16))
        graphs.append(graph)
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(300):
        for graph, stream in zip(graphs, streams[:2], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        eager = []
        for (x, ids), stream in zip(work[2:], streams[2:], strict=True):
            with torch.cuda.stream(stream):
                eager.append(moe_dispatch(x, ids, experts, tile=16))
        torch.cuda.synchronize()
        for found, right in zip([*results, *eager], expected, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, right, strict=True))
