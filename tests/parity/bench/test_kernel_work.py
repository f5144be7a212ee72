"""Both sides of the kernels' benchmark do the same work, here in host memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from parity.bench import kernel_work
from parity.bench.kernel_peers import PEERS, Operands, dispatch_and_combine_by_torch, installed
from parity.bench.kernel_work import make_calls, works
from parity.cases import names, twin_named
from parity.executors.placement import place, place_all
from parity.harness import seed_of
from parity.judge import expectations
from parity.shape import Shape
from parity.twin import Call, Config, Output, as_tuple
from reference.kernels.moe_combine import moe_combine
from tests.parity.host import CORNER, RMS_NORM
from tests.parity.planted import reference_rms_norm, to_numpy, to_torch

TINY = Shape("tiny", 64, 4, 2, 64, 96, 500, 4096, 8, 2)
HOST = torch.device("cpu")


def call_of(name: str, tokens: int) -> tuple[Config, Call]:
    of_model = twin_named(name).of_model
    assert of_model is not None
    config = of_model(TINY, tokens)
    assert config is not None
    return config, twin_named(name).inputs(config, np.random.default_rng(seed_of(config)))


def values(tensor: Any) -> np.ndarray:
    return wide(to_numpy(tensor))


def wide(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # NaN that signals
        return array.astype(np.float64)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("name", sorted(name for name in PEERS if "torch" in PEERS[name]))
def test_torch_does_what_the_reference_does(name: str, tokens: int) -> None:
    twin = twin_named(name)
    _, call = call_of(name, tokens)
    expected = expectations(twin, call)  # before peers overwrite anything
    out = tuple(
        to_torch(np.empty_like(one.like))
        for output, one in zip(twin.outputs, expected, strict=True)
        if output.in_place is None
    )
    actual = as_tuple(PEERS[name]["torch"](Operands(place_all(call.arrays, HOST), call.constants, out)))
    for one, result in zip(expected, actual, strict=True):
        assert tuple(result.shape) == one.like.shape
        np.testing.assert_allclose(values(result), wide(one.like), rtol=0.03, atol=0.03)


def test_dispatch_and_combine_together() -> None:
    _, call = call_of("moe_dispatch", 40)
    x = np.nan_to_num(wide(call.arrays["x"])).astype(call.arrays["x"].dtype)
    weights = np.random.default_rng(0).uniform(0.1, 1.0, (40, 2)).astype(np.float32)
    arrays = {"x": x, "expert_ids": call.arrays["expert_ids"], "weights": weights}
    actual = dispatch_and_combine_by_torch(Operands(place_all(arrays, HOST), call.constants))
    token_of_row = np.repeat(np.arange(40), 2)
    wanted = moe_combine(x[token_of_row], np.arange(80, dtype=np.int32).reshape(40, 2), weights)
    np.testing.assert_allclose(values(actual), wanted.astype(np.float64), rtol=0.02, atol=0.02)


def own_memory(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """As ours: without `out` in memory of its own."""
    return (torch.empty_like(x) if out is None else out).copy_(
        to_torch(reference_rms_norm(to_numpy(x), to_numpy(weight), eps))
    )


def test_every_set_has_buffers_of_its_own() -> None:
    twin = replace(RMS_NORM, optimized=f"{__name__}:own_memory")
    sets = make_calls(twin, CORNER, PEERS["rms_norm"], 3, HOST)
    assert [list(calls) for calls in sets] == [["ours", "torch"]] * 3
    results = [calls["ours"]() for calls in sets]
    assert len({result.data_ptr() for result in results}) == 3
    assert sets[0]["ours"]().data_ptr() == results[0].data_ptr(), "the same buffer at each call"
    for result, calls in zip(results, sets, strict=True):
        assert torch.equal(result, results[0])
        np.testing.assert_allclose(values(calls["torch"]()), values(result), rtol=0.02, atol=0.02)


def test_what_is_too_large_is_shared_and_the_rest_differs() -> None:
    config, _ = call_of("embedding", 40)
    sets = list(kernel_work._operands(twin_named("embedding"), config, 3, HOST))
    assert len({one["table"].data_ptr() for one in sets}) == 1
    assert not torch.equal(sets[0]["token_ids"], sets[1]["token_ids"])
    assert not torch.equal(sets[1]["token_ids"], sets[2]["token_ids"])
    assert [list(one.arrays) for one in sets] == [["token_ids", "table"]] * 3


@pytest.mark.parametrize("tokens", [1, 40])
def test_parts_of_one_projection_are_placed_as_parts(tokens: int) -> None:
    config, call = call_of("qk_norm_rope_kv_write", tokens)
    sets = list(kernel_work._operands(twin_named("qk_norm_rope_kv_write"), config, 2, HOST))
    for one in sets:
        q, k, v = one["q"], one["k"], one["v"]
        assert q.untyped_storage().data_ptr() == k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        assert k.data_ptr() - q.data_ptr() == 2 * 4 * 64 and v.data_ptr() - k.data_ptr() == 2 * 2 * 64
        assert q.stride() == k.stride() == (8 * 64, 64, 1)
        for name, array in call.arrays.items():
            assert np.ascontiguousarray(array).tobytes() == to_numpy(one[name]).tobytes(), name
    first, second = sets
    assert first["q"].untyped_storage().data_ptr() != second["q"].untyped_storage().data_ptr()


def test_placing_keeps_strides_and_bits() -> None:
    for dtype in (np.float32, np.int64):
        array = np.arange(60, dtype=dtype).reshape(6, 10)[:, :7]
        tensor = place(array, HOST)
        assert tensor.stride() == (10, 1) and np.array_equal(tensor.numpy(), array)
    assert place(np.zeros((0, 5), np.float32), HOST).shape == (0, 5)


BY_LIBRARIES = {name for name in names() if twin_named(name).library}  # which `diptych tune` measures
OF_EXPERTS = {"grouped_linear", "grouped_gated_linear", "routed_linear", "routed_gated_linear"}  # without peers so far
BOOKKEEPING = {"known_tokens"}  # a launch of a few numbers, of no peer
OF_FEW_ROWS = {
    *OF_EXPERTS,
    *("linear", "gated_linear", "vocabulary_head", "paged_attention", "kv_block_copy"),
    *("sample_tokens", "token_log_probs", "adjust_logits"),
}


@pytest.mark.parametrize("tokens", [1, 4096])
def test_all_operations_are_measured(tokens: int) -> None:
    found = {work.operation: work.num_bytes for work in works(TINY, tokens)}
    operations = {operation.partition(" ")[0] for operation in found}
    of_mlp = {"gated_linear"}  # which a mixture has by expert
    missing = BY_LIBRARIES | BOOKKEEPING | of_mlp | (OF_FEW_ROWS if tokens == 4096 else set())
    assert operations == {*names(), "moe_dispatch+combine"} - missing
    assert set(PEERS) == {*names()} - BY_LIBRARIES - OF_EXPERTS - BOOKKEEPING
    assert found["moe_dispatch+combine"] == found["moe_dispatch"] + found["moe_combine"]
    dense = {work.operation.partition(" ")[0] for work in works(replace(TINY, experts=0, top_k=0), tokens)}
    of_mixture = {name for name in operations if name.startswith(("moe_", "router_"))} | OF_EXPERTS
    assert dense - of_mlp == operations - of_mixture


def test_libraries_that_are_not_here_are_no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parity.bench.kernel_peers.find_spec", lambda _: None)
    assert installed("rms_norm") == {}
    library = SimpleNamespace(rmsnorm=lambda x, weight, **options: (x, weight, options))
    monkeypatch.setattr("parity.bench.kernel_peers.find_spec", lambda name: name == "quack" or None)
    monkeypatch.setitem(sys.modules, "quack", library)
    [(name, peer)] = installed("rms_norm").items()
    assert name == "quack"
    assert peer(Operands({"x": 1, "weight": 2}, {"eps": 3})) == (1, 2, {"eps": 3})
    assert installed("gated_activation") == {}


def test_a_result_in_place_has_no_buffer_of_its_own() -> None:
    twin = replace(RMS_NORM, outputs=(Output("x", in_place="x"),), optimized="tests.parity.planted:in_place")
    [calls] = make_calls(twin, CORNER, {}, 1, HOST)
    assert calls["ours"]().data_ptr() == calls["ours"]().data_ptr()
