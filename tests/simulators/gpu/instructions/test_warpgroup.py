"""wgmma: every layout of its operands against NumPy, and the faults of who does not wait for it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from simulators.gpu.chip import H200
from simulators.gpu.errors import SimulatorError, UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.numbers.formats import FORMATS, decoded
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.launching import kernel, run

TILE = 16384  # bytes of each operand's place
WIDTHS = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
MODES = {0: 0, 32: 3, 64: 2, 128: 1}  # of a descriptor, by bytes of the swizzle


@dataclass(frozen=True)
class Form:
    """One instruction's operands."""

    columns: int = 64
    kind: str = "bf16"
    result: str = "f32"
    swizzle: int = 128
    k_major: tuple[bool, bool] = (True, True)
    scales: tuple[int, int] = (1, 1)

    @property
    def width(self) -> int:
        return WIDTHS[self.kind]

    @property
    def depth(self) -> int:
        return 32 // self.width

    @property
    def registers(self) -> int:
        return self.columns // (4 if self.result == "f16" else 2)

    @property
    def name(self) -> str:
        return f"wgmma.mma_async.sync.aligned.m64n{self.columns}k{self.depth}.{self.result}.{self.kind}.{self.kind}"

    def immediates(self, a_in_registers: bool) -> str:
        if self.kind in ("s8", "u8"):
            return ""
        majors = [0 if one else 1 for one in self.k_major] if self.width == 2 else []
        return "".join(f", {one}" for one in (*self.scales, *majors[1 if a_in_registers else 0 :]))


def offsets(rows: int, form: Form, k_major: bool) -> tuple[np.ndarray, int, int]:
    """Bytes of [row, k] from the start, `leading` and `stride`, as the ISA's canonical CuTe layouts say it."""
    t = 16 // form.width  # elements of 16 bytes
    c = max(form.swizzle // 16, 1)
    row, k = np.arange(rows)[:, None], np.arange(form.depth)
    if k_major:  # ((8, m), (T, 2)) : ((c T, SBO), (1, LBO or T))
        stride, leading = (8 * c * t + 8 * t) * form.width, (8 * t) * form.width
        if form.swizzle == 0:
            leading, stride = 8 * 16, 2 * 8 * 16
        step = leading // form.width if form.swizzle == 0 else t
        if form.swizzle:
            stride = 8 * c * 16
        place = row % 8 * c * t + row // 8 * (stride // form.width) + k % t + k // t * step
    elif form.swizzle == 0:  # ((T, 1, m), (8, k)) : ((1, T, SBO), (T, LBO))
        stride, leading = 8 * 16, rows // t * 8 * 16
        place = row % t + row // t * (stride // form.width) + k % 8 * t + k // 8 * (leading // form.width)
    else:  # ((T, c, m), (8, k)) : ((1, T, LBO), (c T, SBO))
        stride = 8 * c * 16
        leading = form.depth // 8 * stride
        place = row % t + row // t % c * t + row // (c * t) * (leading // form.width)
        place = place + k % 8 * c * t + k // 8 * (stride // form.width)
    place = place * form.width
    return place ^ ((place >> 7 & (c - 1)) << 4), leading, stride


def image(codes: np.ndarray, form: Form, k_major: bool, start: int) -> tuple[np.ndarray, int]:
    """The bytes of a matrix [rows, K] in shared memory, and its descriptor. `tile` is at a multiple of 1024."""
    place, leading, stride = offsets(len(codes), form, k_major)
    raw = np.zeros(TILE, np.uint8)
    for byte in range(form.width):
        raw[place + byte] = (codes >> (8 * byte)) & 0xFF
    descriptor = start >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | MODES[form.swizzle] << 62
    return raw, descriptor


def body(form: Form, *, a_in_registers: bool = False, keeps: bool = True, wait: str = "0", after: str = "") -> str:
    """Arrays: images, descriptors (u64 of A and B), fragments of A [4, 128], D [registers, 128]."""
    lines = ["mov.u32 %base, tile; shl.b32 %to, %r1, 4; add.u32 %to, %to, %base; mul.wide.u32 %rd10, %r1, 16;"]
    lines += ["add.u64 %rd11, %rd1, %rd10;"]
    for step in range(0, 2 * TILE, 2048):
        lines += [f"ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%rd11+{step}];"]
        lines += [f"st.shared.v4.b32 [%to+{step}], {{%r4, %r5, %r6, %r7}};"]
    lines += ["fence.proxy.async.shared::cta; bar.sync 0;"]
    # The descriptors are as if the tile were at 0.
    lines += ["shr.u32 %r4, %base, 4; cvt.u64.u32 %rd12, %r4; ld.global.v2.b64 {%rd13, %rd14}, [%rd2];"]
    lines += ["add.u64 %rd13, %rd13, %rd12; add.u64 %rd14, %rd14, %rd12; mul.wide.u32 %rd10, %r1, 4;"]
    lines += ["add.u64 %rd15, %rd3, %rd10; add.u64 %rd16, %rd4, %rd10;"]
    lines += [f"ld.global.b32 %a{i}, [%rd15+{512 * i}];" for i in range(4)]
    lines += [f"ld.global.b32 %d{i}, [%rd16+{512 * i}];" for i in range(form.registers)]
    d = "{" + ", ".join(f"%d{i}" for i in range(form.registers)) + "}"
    a = "{%a0, %a1, %a2, %a3}" if a_in_registers else "%rd13"
    lines += [f"setp.eq.u32 %p1, 0, {0 if keeps else 1};", "wgmma.fence.sync.aligned;"]
    lines += [f"{form.name} {d}, {a}, %rd14, %p1{form.immediates(a_in_registers)};"]
    lines += ["wgmma.commit_group.sync.aligned;", after]
    lines += [f"wgmma.wait_group.sync.aligned {wait};"] if wait else []
    lines += [f"st.global.b32 [%rd16+{512 * i}], %d{i};" for i in range(form.registers)]
    variables = f".shared .align 1024 .b8 tile[{2 * TILE}]; .reg .b32 %base, %to, %a<4>, %d<{form.registers}>;"
    return kernel("\n".join(lines), 4, variables)


class Operands:
    """Random matrices of small whole numbers, whose sums every type holds exactly."""

    def __init__(self, form: Form, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.form = form
        table = np.arange(-3, 4)
        if form.kind == "u8":
            table = np.arange(7)
        a, b = random.choice(table, (64, form.depth)), random.choice(table, (form.columns, form.depth))
        self.c = random.integers(-9, 10, (64, form.columns))
        self.product = a @ b.T
        codes = [encoded(one, form.kind) for one in (a, b)]
        images = [
            image(one, form, major, start) for one, major, start in zip(codes, form.k_major, (0, TILE), strict=True)
        ]
        self.memory = np.concatenate([raw for raw, _ in images])
        self.descriptors = np.array([descriptor for _, descriptor in images], np.uint64)
        self.fragments = fragments(codes[0], form.width)
        self.out = sums_as_registers(self.c, form)

    def arrays(self) -> list[np.ndarray]:
        return [self.memory, self.descriptors, self.fragments, self.out]


def encoded(values: np.ndarray, kind: str) -> np.ndarray:
    """u32 codes."""
    if kind in ("s8", "u8"):
        return values.astype(np.uint32) & 0xFF
    if kind == "tf32":
        return values.astype(np.float32).view(np.uint32)
    table = decoded(FORMATS[kind])
    codes = {float(value): code for code, value in enumerate(table) if not np.isnan(value)}
    return np.vectorize(lambda value: codes[float(value)])(values).astype(np.uint32)


def fragments(codes: np.ndarray, width: int) -> np.ndarray:
    """A [64, K] as registers [4, 128]."""
    per_word = 4 // width
    thread = np.arange(128)
    g, t, first = thread % 32 // 4, thread % 4, thread // 32 * 16
    out = np.zeros((4, 128), np.uint32)
    for i in range(4):
        for j in range(per_word):
            out[i] |= codes[first + g + 8 * (i % 2), (t + 4 * (i // 2)) * per_word + j] << np.uint32(8 * width * j)
    return out


def places(form: Form) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of sums [sum of a thread, 128]."""
    thread, i = np.arange(128), np.arange(form.columns // 2)[:, None]
    row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
    return row, i // 4 * 8 + thread % 4 * 2 + i % 2


def sums_as_registers(sums: np.ndarray, form: Form) -> np.ndarray:
    values = sums[places(form)]
    if form.result == "s32":
        return values.astype(np.int32).view(np.uint32)
    if form.result == "f32":
        return values.astype(np.float32).view(np.uint32)
    half = values.astype(np.float16).view(np.uint16).astype(np.uint32)
    return half[::2] | half[1::2] << np.uint32(16)


def check(
    form: Form,
    *,
    seed: int | None = None,
    grid: int = 1,
    block: int = 128,
    keeps: bool = True,
    a_in_registers: bool = False,
) -> None:
    operands = Operands(form)
    expected = operands.product * form.scales[0] * form.scales[1] + (operands.c if keeps else 0)
    gpu = Gpu(H200, seed=seed)
    run(body(form, a_in_registers=a_in_registers, keeps=keeps), operands.arrays(), gpu=gpu, grid=grid, block=block)
    assert operands.out.tolist() == sums_as_registers(expected, form).tolist()


@pytest.mark.parametrize("majors", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_layouts_of_shared_memory(swizzle: int, majors: tuple[bool, bool]) -> None:
    check(Form(swizzle=swizzle, k_major=majors, columns=128))


@pytest.mark.parametrize(
    ("kind", "result"),
    [("f16", "f32"), ("f16", "f16"), ("tf32", "f32"), ("e4m3", "f32"), ("e5m2", "f16"), ("s8", "s32"), ("u8", "s32")],
)
@pytest.mark.parametrize("a_in_registers", [False, True])
def test_types(kind: str, result: str, a_in_registers: bool) -> None:
    check(Form(kind=kind, result=result, columns=32, swizzle=64), a_in_registers=a_in_registers)


@pytest.mark.parametrize("columns", [8, 24, 136, 256])
def test_widths(columns: int) -> None:
    check(Form(columns=columns, swizzle=32))


def test_a_in_registers_with_b_along_n() -> None:
    check(Form(k_major=(True, False), swizzle=64), a_in_registers=True)


@pytest.mark.parametrize("scales", [(1, -1), (-1, 1), (-1, -1)])
def test_scales(scales: tuple[int, int]) -> None:
    check(Form(scales=scales))


def test_without_the_accumulator() -> None:
    check(Form(), keeps=False)


@pytest.mark.parametrize("seed", [0, 1])
def test_warps_that_come_apart(seed: int) -> None:
    check(Form(columns=16), seed=seed)


def test_who_does_not_wait_has_nothing() -> None:
    for wait in ("", "1"):
        operands = Operands(Form(columns=8))
        run(body(Form(columns=8), wait=wait), operands.arrays(), block=128)
        assert np.isnan(operands.out.view(np.float32)).all()


def test_what_is_not_committed_is_not_waited_for() -> None:
    operands = Operands(Form(columns=8))
    run(body(Form(columns=8)).replace("wgmma.commit_group.sync.aligned;", ""), operands.arrays(), block=128)
    assert np.isnan(operands.out.view(np.float32)).all()


def test_shared_memory_that_is_given_away_too_early_is_told() -> None:
    after = "@%p1 st.shared.b32 [%to], 12345;"
    with pytest.raises(SimulatorError, match=r"was written before wgmma\.wait_group\.sync\.aligned 0"):
        run(body(Form(), after=after), Operands(Form()).arrays(), block=128)


def test_products_follow_one_another() -> None:
    """Two products into one D, in two groups: the first one's end tells nothing of the second's."""
    form = Form(columns=8)
    text = body(form, wait="1")
    issue = text[text.index(form.name) : text.index("wgmma.wait_group")]
    operands = Operands(form)
    run(text.replace(issue, issue + issue), operands.arrays(), block=128)
    assert np.isnan(operands.out.view(np.float32)).all()
    operands = Operands(form)
    run(text.replace(issue, issue + issue).replace("aligned 1;", "aligned 0;"), operands.arrays(), block=128)
    assert operands.out.tolist() == sums_as_registers(operands.c + 2 * operands.product, form).tolist()


@pytest.mark.parametrize(
    ("change", "block", "message"),
    [
        ("", 96, "less than 128 threads"),
        ("setp.eq.u32 %p2, %r1, 100; @%p2 exit;", 128, "less than 128 threads"),
        (
            "setp.eq.u32 %p2, %r1, 77; @%p2 add.u64 %rd14, %rd14, 2;",
            128,
            r"thread \(77, 0, 0\): an operand is not that",
        ),
        ("mov.b64 %rd9, 0x2000000000000; or.b64 %rd14, %rd14, %rd9;", 128, "base offset"),
        ("add.u64 %rd14, %rd14, 0x3000;", 128, "is not within"),
    ],
)
def test_what_is_wrong_is_told(change: str, block: int, message: str) -> None:
    text = body(Form()).replace("wgmma.fence", change + "\nwgmma.fence")
    with pytest.raises(SimulatorError, match=message):
        run(text, Operands(Form()).arrays(), block=block)


def test_other_forms_are_refused() -> None:
    text = body(Form())
    for old, new in (
        (Form().name, Form().name.replace("n64", "n264")),
        (Form().name, Form().name.replace("k16", "k8")),
        (Form().name, Form().name.replace("mma_async", "mma_async.sp")),
        ("1, 1, 0, 0;", "1, 1, 0;"),
        ("1, 1, 0, 0;", "1, 2, 0, 0;"),
    ):
        assert old in text and parse(text)
        with pytest.raises(UnsupportedInstruction, match="wgmma"):
            run(text.replace(old, new), Operands(Form()).arrays(), block=128)
