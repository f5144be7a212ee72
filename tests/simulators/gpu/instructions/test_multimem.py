"""What each form of `multimem` gives, and which forms are refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from simulators.gpu.errors import UnsupportedInstruction
from tests.simulators.gpu.instructions.multicast import OWN, Array, four, launched, random

# The type of PTX, its own of NumPy, and the register.
TYPES: dict[str, tuple[Any, str]] = {
    "u32": (np.uint32, "%r"),
    "s32": (np.int32, "%r"),
    "b32": (np.uint32, "%r"),
    "u64": (np.uint64, "%rd2"),
    "s64": (np.int64, "%rd2"),
    "b64": (np.uint64, "%rd2"),
    "f32": (np.float32, "%f"),
    "f64": (np.float64, "%rd2"),
    "f16x2": (np.float16, "%r"),
    "bf16x2": (ml_dtypes.bfloat16, "%r"),
    "f16": (np.float16, "%rs"),
    "bf16": (ml_dtypes.bfloat16, "%rs"),
}
FUNCTIONS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
HALVES = ("f16x2", "bf16x2")
VECTORS = [(f"v{n}.{kind}", n) for n, kind in ((2, "f32"), (4, "f32"), (2, "f16x2"), (4, "f16x2"), (4, "bf16x2"))]
VECTORS += [(f"v{n}.{kind}", n) for n in (2, 4, 8) for kind in ("f16", "bf16")]
INTEGERS = [(name, kind) for name in ("min", "max") for kind in ("u32", "s32", "u64", "s64")]
INTEGERS += [(name, kind) for name in ("and", "or", "xor") for kind in ("b32", "b64")]
INTEGERS += [("add", kind) for kind in ("u32", "s32", "u64")]
FORMS = [(name, kind, 1) for name, kind in INTEGERS]
FORMS += [("add", kind, 1) for kind in ("f32", "f64", *HALVES)]
FORMS += [(name, kind, 1) for name in ("min", "max") for kind in HALVES]
FORMS += [("add", *vector) for vector in VECTORS]


def values_of(kind: str, count: int) -> str:
    """Registers."""
    register = TYPES[kind.rsplit(".", 1)[-1]][1]
    names = [f"{register}{i + 4}" for i in range(count)]
    return names[0] if count == 1 else "{" + ", ".join(names) + "}"


def moved(kind: str, count: int) -> int:
    """Elements of NumPy's that a thread moves."""
    return count * (2 if kind.endswith("x2") else 1)


def first_of_each(arrays: Sequence[Array], kind: str, count: int) -> list[Array]:
    """Of each thread's 16 bytes, those that it moves."""
    return [one.reshape(32, -1)[:, : moved(kind, count)] for one in arrays]


@pytest.mark.parametrize(("name", "kind", "count"), FORMS)
def test_a_load_in_the_types_own_precision(name: str, kind: str, count: int) -> None:
    dtype = TYPES[kind.rsplit(".", 1)[-1]][0]
    replicas = four(dtype, 512 // np.dtype(dtype).itemsize)
    out = np.zeros_like(replicas[0])
    values = values_of(kind, count)
    plain = kind.replace("bf16x2", "b32").replace("f16x2", "b32").replace("bf16", "b16").replace("f16", "b16")
    plain = plain.replace("f64", "b64")
    store = f"st.global.{plain} [%rd11], {values};"
    if count == 8:  # a store has at most 128 bits, of 32-bit elements
        halves = [f"mov.b32 %r{i + 10}, {{%rs{2 * i + 4}, %rs{2 * i + 5}}};" for i in range(4)]
        store = " ".join(halves) + " st.global.v4.b32 [%rd11], {%r10, %r11, %r12, %r13};"
    launched(f"{OWN} multimem.ld_reduce.global.{name}.{kind} {values}, [%rd10]; {store}", replicas, [out])
    wanted = reduce(FUNCTIONS[name], first_of_each(replicas, kind, count))
    assert np.array_equal(first_of_each([out], kind, count)[0], wanted)


@pytest.mark.parametrize("kind", HALVES)
def test_a_sum_in_float32_is_rounded_once(kind: str) -> None:
    dtype = TYPES[kind][0]
    replicas = four(dtype, 256)
    out = np.zeros_like(replicas[0])
    values = values_of(kind, 4)
    body = f"{OWN} multimem.ld_reduce.add.acc::f32.v4.{kind} {values}, [%rd10]; st.global.v4.b32 [%rd11], {values};"
    launched(body, replicas, [out])
    wanted = reduce(np.add, [one.astype(np.float32) for one in replicas]).astype(dtype)
    assert np.array_equal(out, wanted)
    assert not np.array_equal(out, reduce(np.add, replicas))


@pytest.mark.parametrize(("kind", "count"), [(kind, 1) for kind in TYPES if kind not in ("f16", "bf16")] + VECTORS)
def test_a_store_goes_to_each_replica(kind: str, count: int) -> None:
    dtype = TYPES[kind.rsplit(".", 1)[-1]][0]
    source = random(np.uint8, 512, 9)
    replicas = [np.zeros(512, np.uint8) for _ in range(4)]
    values = values_of(kind, count)
    plain = kind.replace("bf16", "f16").replace("f16x2", "b32").replace("f16", "b16").replace("f64", "b64")
    load = f"ld.global.{plain} {values}, [%rd11];"
    if count == 8:
        halves = [f"mov.b32 {{%rs{2 * i + 4}, %rs{2 * i + 5}}}, %r{i + 10};" for i in range(4)]
        load = "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd11]; " + " ".join(halves)
    launched(f"{OWN} {load} multimem.st.global.{kind} [%rd10], {values};", replicas, [source])
    size = moved(kind, count) * np.dtype(dtype).itemsize
    wanted = np.where(np.arange(16) < size, source.reshape(32, 16), 0)
    for one in replicas:
        assert np.array_equal(one.reshape(32, 16), wanted)


@pytest.mark.parametrize(("name", "kind"), INTEGERS)
def test_an_integer_reduction_changes_each_replica(name: str, kind: str) -> None:
    dtype, register = TYPES[kind][0], values_of(kind, 1)
    replicas = four(dtype, 64)
    source = random(dtype, 512 // np.dtype(dtype).itemsize, 9)
    before = [one.copy() for one in replicas]
    plain = kind if kind[0] != "b" else f"u{kind[1:]}"
    launched(
        f"{OWN} ld.global.{plain} {register}, [%rd11]; multimem.red.{name}.{kind} [%rd1], {register};",
        replicas,
        [source],
    )
    added = source.reshape(32, -1)[:, 0]
    for one, old in zip(replicas, before, strict=True):
        assert one[0] == reduce(FUNCTIONS[name], [*added], old[0])
        assert np.array_equal(one[1:], old[1:])


@pytest.mark.parametrize(("kind", "count"), [("f32", 1), ("f64", 1), ("v4.f32", 4), ("v4.bf16x2", 4), ("v2.f16", 2)])
def test_a_floating_reduction(kind: str, count: int) -> None:
    dtype = TYPES[kind.rsplit(".", 1)[-1]][0]
    replicas = four(dtype, 512 // np.dtype(dtype).itemsize)
    source = random(dtype, replicas[0].size, 9)
    wanted = [one + source for one in replicas]
    values = values_of(kind, count)
    plain = kind.replace("bf16", "f16").replace("f16x2", "b32").replace("f16", "b16").replace("f64", "b64")
    body = f"{OWN} ld.global.{plain} {values}, [%rd11]; multimem.red.relaxed.gpu.global.add.{kind} [%rd10], {values};"
    launched(body, replicas, [source])
    for one, each in zip(*(first_of_each(arrays, kind, count) for arrays in (replicas, wanted)), strict=True):
        assert np.array_equal(one, each)


def test_denormals_of_f32_are_kept_by_a_load_and_not_by_a_reduction() -> None:
    replicas, out = [np.full(128, 2.0**-140, np.float32) for _ in range(4)], np.zeros(128, np.float32)
    body = f"""{OWN} multimem.ld_reduce.add.f32 %f1, [%rd10]; st.global.f32 [%rd11], %f1;
    multimem.red.add.f32 [%rd10], %f1;"""
    launched(body, replicas, [out])
    assert (out[::4] == 2.0**-138).all()
    assert all((one[::4] == 0).all() and (one[1::4] == 2.0**-140).all() for one in replicas)


REFUSED = [
    "multimem.ld_reduce.min.f32 %f1, [%rd1]",
    "multimem.ld_reduce.add.s64 %rd5, [%rd1]",
    "multimem.ld_reduce.add.b32 %r5, [%rd1]",
    "multimem.ld_reduce.and.u32 %r5, [%rd1]",
    "multimem.ld_reduce.inc.u32 %r5, [%rd1]",
    "multimem.ld_reduce.u32 %r5, [%rd1]",
    "multimem.ld_reduce.add.f16 %rs5, [%rd1]",
    "multimem.ld_reduce.add.e4m3x4 %r5, [%rd1]",
    "multimem.ld_reduce.add.v2.u32 {%r5, %r6}, [%rd1]",
    "multimem.ld_reduce.add.v2.f32 %f1, [%rd1]",
    "multimem.ld_reduce.add.acc::f32.f32 %f1, [%rd1]",
    "multimem.ld_reduce.min.acc::f32.f16x2 %r5, [%rd1]",
    "multimem.ld_reduce.release.gpu.add.u32 %r5, [%rd1]",
    "multimem.ld_reduce.relaxed.add.u32 %r5, [%rd1]",
    "multimem.ld_reduce.gpu.add.u32 %r5, [%rd1]",
    "multimem.ld_reduce.weak.gpu.add.u32 %r5, [%rd1]",
    "multimem.st.acquire.gpu.u32 [%rd1], %r5",
    "multimem.st.add.u32 [%rd1], %r5",
    "multimem.st.v8.f32 [%rd1], {%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}",
    "multimem.red.weak.add.u32 [%rd1], %r5",
    "multimem.red.min.f16x2 [%rd1], %r5",
    "multimem.red.shared.add.u32 [%rd1], %r5",
    "multimem.ld.u32 %r5, [%rd1]",
]


@pytest.mark.parametrize("instruction", REFUSED)
def test_forms_that_ptxas_refuses_or_nobody_knows(instruction: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="multimem"):
        launched(f"{instruction};", [np.zeros(128, np.float32) for _ in range(4)])
