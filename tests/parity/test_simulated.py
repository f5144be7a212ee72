"""Every twin runs on simulated chips, with all checks, and gives what the reference says, without a GPU."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from optimized.compile.arch import SM_90A, SM_100A, Arch
from optimized.compile.library import Library
from parity.cases import names, twin_named
from parity.executors.simulate.executor import SimulateExecutor
from parity.harness import configurations, seed_of, try_case
from parity.twin import Call, Config, Twin

LIGHT = 3 * 2**20  # bytes of a case's arrays: what takes seconds to simulate has more
LIGHT_PAIRS = 256  # tokens times experts a token, of products that look for an expert's tokens themselves
# One light corner in so many, in each run of the tests, and others for the other architecture. Of a dispatch fewer: the
# barrier of its grid holds tens of thousands of threads.
EVERY = dict.fromkeys(names(), 12) | {"moe_dispatch": 25, "qk_norm_rope_kv_write": 16}
# Kernels of libraries take seconds to compile, and seconds to simulate, since their tiles are large: one corner
# of each, on Hopper. For Blackwell they have instructions that the simulator does not know.
EVERY |= {"linear_many_rows": 1000, "grouped_linear_many_rows": 1000, "prefill_attention": 1000}
# Products for few rows: each is one loop, whose many variants take seconds to compile.
EVERY |= {"linear": 20, "gated_linear": 20, "vocabulary_head": 20}
EVERY |= {"grouped_linear": 30, "grouped_gated_linear": 30, "routed_gated_linear": 25, "routed_linear": 30}
# Each corner of attention to paged keys is a kernel of its own, which takes seconds to compile.
EVERY |= {"paged_attention": 45}
# Sampling: four kernels for each size of a vocabulary, which take seconds each to compile.
EVERY |= {"sample_tokens": 24, "token_log_probs": 22, "adjust_logits": 14}
ARCHS = {"sm_90a": SM_90A, "sm_100a": SM_100A}


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library((tmp_path_factory.mktemp("kernels"),))


def size_of(call: Call) -> int:
    """Bytes of all arrays, what lies between their rows and repeated rows included."""
    total = 0
    for name, array in call.arrays.items():
        rows = call.repeated.get(name, len(array) if array.ndim else 1)
        shape = (rows, *array.shape[1:])
        spans = [(length - 1) * abs(stride) for length, stride in zip(shape, array.strides, strict=True)]
        total += sum(spans) + array.itemsize if prod(shape) else 0
    return total + sum(len(call.arrays) * stride * 4 for stride in call.out_strides.values())


def light_corners(twin: Twin) -> list[Config]:
    corners = configurations(twin, searched=0)
    if twin.name.startswith("routed_"):
        corners = [one for one in corners if one["tokens"] * one["per_token"] <= LIGHT_PAIRS]
    return [one for one in corners if size_of(twin.inputs(one, np.random.default_rng(seed_of(one)))) <= LIGHT]


def failures(twin: Twin, configs: list[Config], arch: Arch, kernels: Library) -> list[str | None]:
    executor = SimulateExecutor(arch, kernels)
    records = [try_case(twin, config, executor) for config in configs]
    is_unknown = bool(twin.library) and any("does not know" in (record.reason or "") for record in records)
    assert is_unknown or any(record.ok and record.kernels for record in records), "nothing was simulated"
    return [f"{dict(record.config)}: {record.reason}" for record in records if record.status == "fail"]


@pytest.mark.parametrize(
    ("name", "arch"),
    [(name, arch) for name in names() for arch in ARCHS if arch == "sm_90a" or not twin_named(name).library],
)
def test_some_corners(name: str, arch: str, kernels: Library) -> None:
    twin, first = twin_named(name), EVERY[name] // 2 if arch == "sm_100a" else 0
    assert failures(twin, light_corners(twin)[first :: EVERY[name]], ARCHS[arch], kernels) == []


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", names())
def test_all_corners(name: str, arch: str, kernels: Library) -> None:
    twin = twin_named(name)
    assert failures(twin, [*configurations(twin, searched=0)], ARCHS[arch], kernels) == []
