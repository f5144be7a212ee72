"""Kernels that are not ours, unmodified: quack-kernels' norm and matrix products, and the attention of flash-attn-4,
compiled and run by their own host code, on a simulated GPU that checks everything."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from parity.executors.poisoned import contiguous
from parity.executors.simulate.checked_gpu import CheckedGpu
from parity.executors.simulate.memory import SimulatedArray, SimulatedTensor
from parity.executors.simulate.program import Program, Runtime
from simulators.gpu.chip import H200
from simulators.gpu.ptx.parser import parse

Array = NDArray[Any]
Compiled = tuple[bytes, str]  # an object and its PTX
pytestmark = pytest.mark.skipif(find_spec("quack") is None, reason="quack-kernels is not installed")
BF16 = np.dtype(ml_dtypes.bfloat16)
ORDERLY, HOSTILE = None, 1


@pytest.fixture(scope="module", autouse=True)
def quack() -> Any:
    """It imports triton for its tuner, which is not used: something stands for that. It is told of a chip, since it
    finds none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUACK_ARCH", "sm_90a")
        patch.setenv("QUACK_CACHE_ENABLED", "0")
        patch.setenv("FLASH_ATTENTION_NUM_SMS", str(H200.num_sms))
        if find_spec("triton") is None:
            import torch

            torch.compile(lambda x: x)  # torch looks for triton itself, and is content without
            for name in ("triton", "triton.language", "triton.tools", "triton.tools.disasm"):
                patch.setitem(sys.modules, name, MagicMock(name=name))
            sys.modules["triton"].runtime.cache.FileCacheManager = object  # type: ignore[attr-defined]
        yield import_module("quack.gemm")


def compiled(directory: Path, make: Callable[[], object]) -> Compiled:
    """What `make` has the DSL compile, for Hopper."""
    from cutlass import cute
    from cutlass.base_dsl import Arch
    from cutlass.cutlass_dsl import CuTeDSL

    functions = []
    options = f" --gpu-arch sm_90a --keep-ptx --dump-dir {directory}"
    compile_as_asked = cute.compile

    def compile_and_keep(*arguments: Any, **named: Any) -> Any:
        named["options"] = named.get("options", "") + options
        functions.append(compile_as_asked(*arguments, **named))
        return functions[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cute, "compile", compile_and_keep)
        patch.setattr(CuTeDSL, "get_arch_enum", lambda self: Arch.from_string("sm_90a"))  # asked before it compiles
        make()
    (function,) = functions
    function.export_to_c(str(directory / "kernel.o"), function_name="kernel")
    (ptx,) = directory.glob("*.ptx")
    return (directory / "kernel.o").read_bytes(), ptx.read_text()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Compiled]:
    """Compiles each kernel once."""
    done: dict[Any, Compiled] = {}

    def get(make: Callable[..., object], *arguments: Any) -> Compiled:
        key = make, arguments
        if key not in done:
            done[key] = compiled(tmp_path_factory.mktemp("kernel"), partial(make, *arguments))
        return done[key]

    return get


class Simulated:
    """A kernel on a GPU of its own."""

    def __init__(self, compiled: Compiled, seed: int | None) -> None:
        self._gpu = CheckedGpu(H200)
        self._gpu.hostile_seed = seed
        self._arrays: list[SimulatedArray] = []  # which outlive it
        self.run: Program = Runtime(self._gpu, H200).link(compiled[0], "kernel", parse(compiled[1]))

    def given(self, name: str, array: Array) -> SimulatedTensor:
        made = self._allocated(name, array.shape, array.dtype, is_initialized=True)
        made.values[...] = array
        return made.view

    def asked(self, name: str, shape: tuple[int, ...], dtype: Any) -> SimulatedTensor:
        """It holds NaN until the kernel writes to it."""
        return self._allocated(name, shape, np.dtype(dtype), is_initialized=False).view

    def _allocated(self, name: str, shape: tuple[int, ...], dtype: Any, *, is_initialized: bool) -> SimulatedArray:
        made = SimulatedArray.poisoned(contiguous(name, shape, dtype), 0xFF, None)
        self._arrays.append(made)
        size = made.layout.span * dtype.itemsize
        self._gpu.memory.add(made.view.data_ptr(), size, name, is_initialized=is_initialized)
        return made


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(BF16)


def check_rounded_once(out: Array, exact: Array, magnitude: Array, terms: int) -> None:
    """bf16 of sums of products in f32, in any order: exact is f64, magnitude the sum of the products' magnitudes."""
    slack = magnitude * terms * 2.0**-24
    assert (np.abs(out.astype(np.float64) - exact) <= np.abs(exact) * 2.0**-8 + slack).all()
    assert np.mean(out != exact.astype(BF16)) < 1 / 100


def product(a: Array, b: Array) -> tuple[Array, Array]:
    """a b^T and that of the magnitudes, in f64."""
    wide = a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2)
    return wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])


HIDDEN = 1024


def norm() -> None:
    """By quack's own heuristic."""
    from cutlass import BFloat16, Float32, cute
    from quack.compile_utils import make_fake_tensor
    from quack.rmsnorm import RMSNorm, RmsNormFwdConfig

    config = RmsNormFwdConfig.from_analytical_heuristic(HIDDEN, 16, arch_major=9)
    rows = cute.sym_int()
    x, out = (make_fake_tensor(BFloat16, (rows, HIDDEN), 8) for _ in range(2))
    weight = make_fake_tensor(BFloat16, (HIDDEN,), 8)
    cute.compile(
        RMSNorm(BFloat16, HIDDEN, config=config),
        *(x, weight, None, None, out, None, None, None, Float32(0)),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
        options="--enable-tvm-ffi",
    )


@pytest.mark.parametrize(("rows", "seed"), [(40, ORDERLY), (36, HOSTILE)])
def test_rms_norm(kernel: Callable[..., Compiled], rows: int, seed: int | None) -> None:
    """Whole blocks of 4 rows: the rows that a block lacks it reads from shared memory all the same, unwritten."""
    gpu = Simulated(kernel(norm), seed)
    x, weight = normal(rows, HIDDEN), normal(HIDDEN)
    out = gpu.asked("out", x.shape, BF16)
    gpu.run(gpu.given("x", x), gpu.given("weight", weight), None, None, out, None, None, None, 1e-6)
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + 1e-6)
    expected = (wide * scale * weight.astype(np.float64)).astype(BF16)
    assert np.mean(out.array != expected) < 1 / 1000, "it rounds once, from float32"


def gemm(cluster: int, pingpong: bool, scheduler: str, grouped: bool, gathers: bool) -> None:
    from cutlass import BFloat16
    from quack.gemm import _compile_gemm
    from quack.rounding import RoundingMode

    inspect.unwrap(_compile_gemm)(  # not its cache, in memory and on disk, where there is nothing left to compile
        *(BFloat16, BFloat16, BFloat16, None, "k", "k", "n", None, (128, 128), (cluster, 1, 1), pingpong),
        *(scheduler != "one tile a block", scheduler == "dynamic", None, None, 0, 0, 0, False, None, grouped, False),
        *(gathers, False, False, (9, 0), RoundingMode.RN, 0, None),
    )


def run_gemm(gpu: Simulated, a: Any, b: Any, d: Any, scheduler: str, clusters: int, varlen: Any = None) -> None:
    """clusters: that the scheduler thinks are there."""
    counter = gpu.given("counter", np.zeros(1, np.int32)).data_ptr() if scheduler == "dynamic" else None
    epilogue, schedule = (None,) * 12, (clusters, None, 8, counter, None, None)
    gpu.run(gpu.given("a", a), gpu.given("b", b), d, None, epilogue, schedule, varlen, None, None)


@pytest.mark.parametrize(
    ("cluster", "pingpong", "scheduler", "clusters", "shape", "seed"),
    [
        (1, False, "static", 132, (1, 256, 256, 128), ORDERLY),
        (1, False, "static", 132, (1, 200, 136, 72), HOSTILE),
        (2, False, "static", 132, (1, 200, 136, 72), ORDERLY),
        (1, True, "static", 1, (2, 72, 72, 776), ORDERLY),  # around the ring of stages twice in a tile
        (2, True, "dynamic", 1, (1, 392, 72, 136), HOSTILE),
        (1, False, "one tile a block", 132, (2, 72, 136, 200), HOSTILE),
    ],
)
def test_gemm(
    kernel: Callable[..., Compiled],
    cluster: int,
    pingpong: bool,
    scheduler: str,
    clusters: int,
    shape: tuple[int, int, int, int],
    seed: int | None,
) -> None:
    gpu = Simulated(kernel(gemm, cluster, pingpong, scheduler, False, False), seed)
    batch, m, n, k = shape
    a, b, out = normal(batch, m, k), normal(batch, n, k), gpu.asked("out", (batch, m, n), BF16)
    run_gemm(gpu, a, b, out, scheduler, clusters)
    check_rounded_once(out.array, *product(a, b), k)


@pytest.mark.parametrize(("pingpong", "gathers", "seed"), [(True, False, HOSTILE), (False, True, ORDERLY)])
def test_grouped_gemm(kernel: Callable[..., Compiled], pingpong: bool, gathers: bool, seed: int | None) -> None:
    """Rows of a, in groups of unequal length, each with a matrix of its own; an empty one too."""
    lengths, n, k = (70, 0, 130, 1), 72, 72
    gpu = Simulated(kernel(gemm, 1, pingpong, "static", True, gathers), seed)
    ends = np.cumsum(lengths)
    a, b = normal(300 if gathers else ends[-1], k), normal(len(lengths), n, k)
    rows = np.random.default_rng(3).permutation(len(a))[: ends[-1]].astype(np.int32) if gathers else None
    out = gpu.asked("out", (ends[-1], n), BF16)
    starts = gpu.given("starts", np.array([0, *ends], np.int32))
    varlen = (starts, None, None if rows is None else gpu.given("rows", rows), None)
    run_gemm(gpu, a, b, out, "static", 1, varlen)
    groups = np.split(a if rows is None else a[rows], ends[:-1])
    exact = [product(group, matrix) for group, matrix in zip(groups, b, strict=True)]
    check_rounded_once(out.array, *(np.concatenate(parts) for parts in zip(*exact, strict=True)), k)


def attention(head_dim: int, causal: bool) -> None:
    """Two heads of queries for each of keys. Its host code compiles, and does not launch, for tensors without data."""
    import torch
    from flash_attn.cute.interface import _flash_attn_fwd  # type: ignore[import-not-found]
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(1, 8, heads, head_dim, dtype=torch.bfloat16, device="cuda") for heads in (2, 1, 1))
        _flash_attn_fwd(q, k, v, causal=causal, return_lse=True, _arch=90)


@pytest.mark.skipif(find_spec("flash_attn") is None, reason="flash-attn-4 is not installed")
@pytest.mark.filterwarnings("ignore:Argument aux_data")
@pytest.mark.parametrize(
    ("head_dim", "causal", "queries", "keys", "seed"), [(64, True, 100, 150, HOSTILE), (128, False, 70, 300, ORDERLY)]
)
def test_attention(
    kernel: Callable[..., Compiled], head_dim: int, causal: bool, queries: int, keys: int, seed: int | None
) -> None:
    gpu = Simulated(kernel(attention, head_dim, causal), seed)
    q, k, v = normal(1, queries, 2, head_dim), normal(1, keys, 1, head_dim), normal(1, keys, 1, head_dim)[::, ::-1]
    out, lse = gpu.asked("out", q.shape, BF16), gpu.asked("lse", (1, 2, queries), np.float32)
    scale = head_dim**-0.5
    tensors = gpu.given("q", q), gpu.given("k", k), gpu.given("v", v), out, lse
    gpu.run(*tensors, scale, *(None,) * 9, (None, None), None, None)
    scores = np.einsum("qhd,kd->hqk", q[0].astype(np.float64), k[0, :, 0].astype(np.float64)) * scale
    if causal:
        scores[:, np.arange(keys) > np.arange(queries)[:, None] + keys - queries] = -np.inf
    most = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - most)
    sums = weights.sum(axis=-1, keepdims=True)
    values = v[0, :, 0].astype(np.float64)
    expected = np.einsum("hqk,kd->qhd", weights / sums, values)
    assert np.abs(lse.array[0] - (most + np.log(sums))[..., 0]).max() < 1e-5
    # Weights are rounded to bf16 before they are multiplied, and so is the result.
    bound = 2.0**-8 * (np.einsum("hqk,kd->qhd", weights / sums, np.abs(values)) + np.abs(expected))
    assert (np.abs(out.array[0].astype(np.float64) - expected) <= bound).all()
