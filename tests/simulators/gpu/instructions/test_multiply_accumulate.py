"""mma.sync in kernels: a product of 64 x 64 x 64 through shared memory, other types, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from tests.simulators.gpu.launching import kernel, run

SIZE = 64


def product_text() -> str:
    """Of bf16 rows of A, then of B transposed, 128 bytes each: a thread brings a row, a warp makes 16 rows of sums."""
    lines = ["mov.u32 %base, tile; shl.b32 %to, %r1, 7; add.u32 %to, %to, %base;"]
    lines += ["mul.wide.u32 %rd10, %r1, 128; mad.wide.u32 %rd11, %r2, 16384, %rd10; add.u64 %rd11, %rd1, %rd11;"]
    for step in range(0, 128, 16):
        lines += [f"ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd11+{step}];"]
        lines += [f"st.shared.v4.b32 [%to+{step}], {{%r4, %r5, %r6, %r7}};"]
    lines += ["bar.sync 0; shr.u32 %r3, %r1, 5; and.b32 %lane, %r1, 31;"]
    # Rows of A: those of the warp, 16, twice: for the lower and the upper half of k.
    lines += ["shl.b32 %a, %r3, 11; and.b32 %r8, %lane, 15; shl.b32 %r8, %r8, 7; add.u32 %a, %a, %r8;"]
    lines += ["shr.u32 %r8, %lane, 4; shl.b32 %r8, %r8, 4; add.u32 %a, %a, %r8; add.u32 %a, %a, %base;"]
    lines += [
        "and.b32 %b, %lane, 7; shl.b32 %b, %b, 7; shr.u32 %r8, %lane, 3; and.b32 %r8, %r8, 1; shl.b32 %r8, %r8, 4;"
    ]
    lines += ["add.u32 %b, %b, %r8; add.u32 %b, %b, %base;"]
    lines += [f"mov.b32 %c{i}, 0;" for i in range(32)]
    for k in range(SIZE // 16):
        lines += [f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r4, %r5, %r6, %r7}}, [%a+{32 * k}];"]
        for n in range(8):
            sums = ", ".join(f"%c{4 * n + i}" for i in range(4))
            lines += [f"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {{%r8, %r9}}, [%b+{8192 + 1024 * n + 32 * k}];"]
            lines += [
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                f"{{{sums}}}, {{%r4, %r5, %r6, %r7}}, {{%r8, %r9}}, {{{sums}}};"
            ]
    lines += ["shr.u32 %r8, %lane, 2; shl.b32 %r9, %r3, 4; add.u32 %r8, %r8, %r9; and.b32 %r9, %lane, 3;"]
    lines += ["shl.b32 %r8, %r8, 8; shl.b32 %r9, %r9, 3; add.u32 %r8, %r8, %r9;"]
    lines += ["shl.b32 %r9, %r2, 14; add.u32 %r8, %r8, %r9; cvt.u64.u32 %rd12, %r8; add.u64 %rd12, %rd2, %rd12;"]
    for n in range(8):
        lines += [f"st.global.v2.b32 [%rd12+{32 * n}], {{%c{4 * n}, %c{4 * n + 1}}};"]
        lines += [f"st.global.v2.b32 [%rd12+{32 * n + 2048}], {{%c{4 * n + 2}, %c{4 * n + 3}}};"]
    variables = ".shared .align 128 .b8 tile[16384]; .reg .b32 %base, %to, %lane, %a, %b, %c<32>;"
    return kernel("\n".join(lines), 2, variables)


@pytest.mark.parametrize(("blocks", "seed"), [(3, None), (2, 0)])
def test_a_product_is_within_its_bound(blocks: int, seed: int | None) -> None:
    random = np.random.default_rng(0)
    operands = (random.standard_normal((blocks, 2, SIZE, SIZE)).astype(np.float32).view(np.uint32) >> 16).astype(
        np.uint16
    )
    out = np.zeros((blocks, SIZE, SIZE), np.float32)
    gpu = Gpu(H200, seed=seed)
    run(product_text(), [operands, out], grid=blocks, block=128, gpu=gpu)
    values = (operands.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    a, b = values[:, 0], values[:, 1].swapaxes(1, 2)
    unit = 2.0**-23 * (np.abs(a) @ np.abs(b))
    worst = (np.abs(out - a @ b) / unit).max()
    assert 0 < worst < SIZE / 16 * (16 + 5) / 4


def words(kind: str, count: int) -> str:
    return "{" + ", ".join(f"%{kind}{i}" for i in range(count)) + "}"


def one_instruction(name: str, registers: tuple[int, int, int], bits: int = 32) -> str:
    """A warp's fragments of A, B and C from three arrays, [register, lane], and D to a fourth."""
    lines = []
    for letter, array, count in zip("abc", (1, 2, 3), registers, strict=True):
        lines += [f"mul.wide.u32 %rd10, %r1, {bits // 8}; add.u64 %rd10, %rd10, %rd{array};"]
        lines += [f"ld.global.b{bits} %{letter}{i}, [%rd10+{i * 4 * bits}];" for i in range(count)]
    c = words("c", registers[2])
    lines += [f"{name} {c}, {words('a', registers[0])}, {words('b', registers[1])}, {c};"]
    lines += [f"mul.wide.u32 %rd10, %r1, {bits // 8}; add.u64 %rd10, %rd10, %rd4;"]
    lines += [f"st.global.b{bits} [%rd10+{i * 4 * bits}], %c{i};" for i in range(registers[2])]
    return kernel("\n".join(lines), 4, f".reg .b{bits} %a<8>, %b<8>, %c<8>;")


@pytest.mark.parametrize(("rows", "depth"), [(8, 4), (16, 4), (16, 8), (16, 16)])
def test_float64(rows: int, depth: int) -> None:
    random = np.random.default_rng(rows + depth)
    a, b, c = (random.standard_normal(shape) for shape in ((rows, depth), (depth, 8), (rows, 8)))
    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    halves = rows // 8
    of_a = np.stack([a[g + 8 * (i % halves), t + 4 * (i // halves)] for i in range(rows * depth // 32)])
    of_b = np.stack([b[t + 4 * i, g] for i in range(depth // 4)])
    of_c = np.stack([c[g + 8 * (i // 2), 2 * t + i % 2] for i in range(rows // 4)])
    out = np.zeros_like(of_c)
    name = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.f64.f64.f64.f64"
    run(one_instruction(name, (len(of_a), len(of_b), len(of_c)), 64), [of_a, of_b, of_c, out])
    expected = a @ b + c
    assert np.allclose(out, np.stack([expected[g + 8 * (i // 2), 2 * t + i % 2] for i in range(rows // 4)]), rtol=1e-14)


@pytest.mark.parametrize(("rows", "depth", "kind"), [(8, 32, "s4"), (16, 32, "u4"), (16, 64, "s4"), (8, 16, "u8")])
def test_small_whole_numbers(rows: int, depth: int, kind: str) -> None:
    """Nibbles are the digits of the words in hexadecimal."""
    bits = int(kind[1:])
    random = np.random.default_rng(depth)
    per_word = 32 // bits
    chunks = depth // per_word  # along k
    a, b = (random.integers(0, 1 << bits, shape) for shape in ((rows, chunks, per_word), (8, chunks, per_word)))
    c = random.integers(-1000, 1000, (rows, 8))

    def packed(values: np.ndarray) -> np.ndarray:
        return np.bitwise_or.reduce(values.astype(np.uint32) << (bits * np.arange(per_word)).astype(np.uint32), axis=-1)

    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    halves = rows // 8
    of_a = np.stack([packed(a)[g + 8 * (i % halves), t + 4 * (i // halves)] for i in range(halves * chunks // 4)])
    of_b = np.stack([packed(b)[g, t + 4 * i] for i in range(chunks // 4)])
    of_c = np.stack([c[g + 8 * (i // 2), 2 * t + i % 2] for i in range(rows // 4)]).astype(np.int32)
    out = np.zeros_like(of_c)
    name = f"mma.sync.aligned.m{rows}n8k{depth}.row.col.s32.{kind}.{kind}.s32"
    run(one_instruction(name, (len(of_a), len(of_b), len(of_c))), [of_a, of_b, of_c, out])
    if kind == "s4":
        a, b = (np.where(one >= 8, one - 16, one) for one in (a, b))
    expected = a.reshape(rows, -1) @ b.reshape(8, -1).T + c
    assert out.tolist() == np.stack([expected[g + 8 * (i // 2), 2 * t + i % 2] for i in range(rows // 4)]).tolist()


@pytest.mark.parametrize(
    "form",
    [
        "m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3.f32.ue8m0",
        "m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32",
        "m8n8k4.row.col.f32.f16.f16.f32",
        "m16n8k16.row.col.f32.f16.bf16.f32",
        "m16n8k16.row.col.f16.bf16.bf16.f16",
        "m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
        "m16n8k16.row.col.satfinite.f32.f16.f16.f32",
    ],
)
def test_other_forms_are_refused(form: str) -> None:
    with pytest.raises(UnsupportedInstruction, match="mma"):
        run(one_instruction(f"mma.sync.aligned.{form}", (4, 2, 4)), [np.zeros((8, 32), np.uint32) for _ in range(4)])


def test_a_warp_that_is_not_whole_is_told() -> None:
    text = one_instruction("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", (4, 2, 4))
    with pytest.raises(SimulatorError, match="less than 32 threads"):
        run(text, [np.zeros((8, 32), np.uint32) for _ in range(4)], block=31)
