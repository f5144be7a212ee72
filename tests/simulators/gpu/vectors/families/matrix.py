"""mma.sync, ldmatrix, stmatrix, movmatrix: fragments over the threads of a warp, and how their sums are rounded."""

from __future__ import annotations

from tests.simulators.gpu.vectors.probe import Probe

WARPS = 32  # four of each regime of tiles.py


def _registers(letter: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{first + i}" for i in range(count)) + "}"


def _mma(
    shape: str, types: str, kinds: tuple[str, str, str], counts: tuple[int, int, int, int], more: str = ""
) -> Probe:
    """counts: registers of d, a, b, c. PTX leaves the order and width of the sum open; the chip's are reproduced."""
    d, a, b, c = counts
    operands = ", ".join(
        (_registers("d", 0, d), _registers("a", 0, a), _registers("a", a, b), _registers("a", a + b, c))
    )
    name = f"mma.sync.aligned.{shape}.row.col{more}.{types}"
    inputs = (kinds[0],) * a + (kinds[1],) * b + (kinds[2],) * c
    return Probe(name, f"{name} {operands};", inputs, ("b32",) * d, count=WARPS * 32, block=32, is_elementwise=False)


def _tiles(form: str, accumulator: str) -> tuple[str, str, str]:
    return f"tile_{form}_a", f"tile_{form}_b", f"tile_{accumulator}_c"


def _mmas() -> list[Probe]:
    return [
        _mma("m16n8k16", "f32.bf16.bf16.f32", _tiles("bf16", "f32"), (4, 4, 2, 4)),
        _mma("m16n8k16", "f32.f16.f16.f32", _tiles("f16", "f32"), (4, 4, 2, 4)),
        _mma("m16n8k16", "f16.f16.f16.f16", _tiles("f16", "f16"), (2, 4, 2, 2)),
        _mma("m16n8k8", "f32.bf16.bf16.f32", _tiles("bf16", "f32"), (4, 2, 1, 4)),
        _mma("m16n8k8", "f32.f16.f16.f32", _tiles("f16", "f32"), (4, 2, 1, 4)),
        _mma("m16n8k8", "f32.tf32.tf32.f32", _tiles("tf32", "f32"), (4, 4, 2, 4)),
        _mma("m16n8k4", "f32.tf32.tf32.f32", _tiles("tf32", "f32"), (4, 2, 1, 4)),
        _mma("m16n8k32", "f32.e4m3.e4m3.f32", _tiles("e4m3", "f32"), (4, 4, 2, 4)),
        _mma("m16n8k32", "f32.e5m2.e4m3.f32", ("tile_e5m2_a", "tile_e4m3_b", "tile_f32_c"), (4, 4, 2, 4)),
        _mma("m16n8k32", "s32.s8.s8.s32", ("tile_s8", "tile_s8", "s32"), (4, 4, 2, 4)),
        _mma("m16n8k32", "s32.u8.s8.s32", ("tile_s8", "tile_s8", "s32"), (4, 4, 2, 4), ".satfinite"),
        _mma("m16n8k16", "s32.s8.u8.s32", ("tile_s8", "tile_s8", "s32"), (4, 2, 1, 4)),
    ]


STORE_TILE = """.reg .b32 %base, %own, %row;
mov.u32 %base, tile; shl.b32 %own, %lane, 4; add.u32 %own, %own, %base;
shl.b32 %row, %a4, 4; add.u32 %row, %row, %base;
st.shared.v4.b32 [%own], {%a0, %a1, %a2, %a3};
bar.warp.sync -1;
"""


def _copies() -> list[Probe]:
    """Each thread puts 16 bytes into the tile; rows are given in an order of each warp's own."""
    probes = []
    for trans in ("", ".trans"):
        for count in (1, 2, 4):
            name = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            body = STORE_TILE + f"{name} {_registers('d', 0, count)}, [%row];"
            inputs = ("u32",) * 4 + ("rows",)
            probes.append(_copy(name, body, inputs, count))
            name = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
            read = "bar.warp.sync -1; ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%own];"
            values = _registers("a", 5, count)
            probes.append(_copy(name, STORE_TILE + f"{name} [%row], {values}; {read}", inputs + ("u32",) * count, 4))
    move = "movmatrix.sync.aligned.m8n8.trans.b16"
    probes.append(Probe(move, f"{move} %d0, %a0;", ("u32",), ("b32",), count=128, block=32, is_elementwise=False))
    return probes


def _copy(name: str, body: str, inputs: tuple[str, ...], outputs: int) -> Probe:
    return Probe(name, body, inputs, ("b32",) * outputs, count=128, block=32, shared=512, is_elementwise=False)


WGMMA = """.reg .b32 %base, %to; .reg .b64 %da, %db, %wide; .reg .pred %first, %yes;
mov.u32 %base, tile;
mov.u32 %to, %tid.x; setp.lt.u32 %first, %to, 64;
shl.b32 %to, %to, 4; add.u32 %to, %to, %base; st.shared.v4.b32 [%to], {{%a0, %a1, %a2, %a3}};
mov.u32 %to, %tid.x; shl.b32 %to, %to, 2; add.u32 %to, %to, %base; @%first st.shared.b32 [%to + 2048], %a4;
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %to, %base, 4; and.b32 %to, %to, 0x3fff; cvt.u64.u32 %wide, %to; or.b64 %da, %wide, {descriptor};
add.u32 %to, %base, 2048; shr.u32 %to, %to, 4; and.b32 %to, %to, 0x3fff; cvt.u64.u32 %wide, %to;
or.b64 %db, %wide, {descriptor};
mov.b32 %d0, %a5; mov.b32 %d1, %a6; mov.b32 %d2, %a7; mov.b32 %d3, %a8;
setp.eq.u32 %yes, 0, 0;
wgmma.fence.sync.aligned;
{name} {{%d0, %d1, %d2, %d3}}, %da, %db, %yes, 1, 1{more};
wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""


def _wgmmas() -> list[Probe]:
    """64 rows of 32 bytes (A) and 8 (B), both K-major, no swizzle.

    A core matrix is 8 rows of 16 bytes. The two along k are 128 bytes apart, those along m or n 256 bytes. Thread t
    writes row t % 8 of core matrix t // 8 of A: of k half t // 8 % 2 and rows t // 16 * 8 to t // 16 * 8 + 7.
    """
    descriptor = f"{(128 >> 4) << 16 | (256 >> 4) << 32:#x}"
    probes = []
    for shape, types, form, more in (
        ("m64n8k16", "f32.bf16.bf16", "bf16", ", 0, 0"),
        ("m64n8k16", "f32.f16.f16", "f16", ", 0, 0"),
        ("m64n8k8", "f32.tf32.tf32", "tf32", ""),
        ("m64n8k32", "f32.e4m3.e4m3", "e4m3", ""),
    ):
        name = f"wgmma.mma_async.sync.aligned.{shape}.{types}"
        body = WGMMA.format(name=name, descriptor=descriptor, more=more)
        inputs = (f"tile_{form}_a_wide",) * 4 + (f"tile_{form}_b_wide",) + ("tile_f32_c_wide",) * 4
        probes.append(
            Probe(name, body, inputs, ("b32",) * 4, count=16 * 128, block=128, shared=4096, is_elementwise=False)
        )
    return probes


PROBES = (*_mmas(), *_copies(), *_wgmmas())
