"""Integers: arithmetic, shifts, bits, carries. Division by zero and shifts beyond the width are among the operands."""

from __future__ import annotations

from tests.simulators.gpu.vectors.probe import Probe, binary, ternary, unary

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")
LOP3 = (0x00, 0x01, 0x17, 0x1E, 0x2A, 0x3C, 0x69, 0x80, 0x96, 0xAA, 0xB8, 0xC0, 0xCA, 0xD8, 0xE8, 0xF0, 0xFE, 0xFF)


def _width(kind: str) -> str:
    return f"b{kind.removesuffix('x2')[1:]}" if not kind.endswith("x2") else "b32"


def _arithmetic() -> list[Probe]:
    probes = []
    for kind in TYPES:
        width = _width(kind)
        names = [f"{op}.{kind}" for op in ("add", "sub", "min", "max", "mul.lo", "mul.hi", "div", "rem")]
        probes += [binary(name, width, (kind, kind)) for name in names]
        probes += [ternary(f"{op}.{kind}", width, (kind,) * 3) for op in ("mad.lo", "mad.hi", "sad")]
        if kind.startswith("s"):
            probes += [unary(f"{op}.{kind}", width, kind) for op in ("abs", "neg")]
        if width != "b64":
            wide = f"b{2 * int(width[1:])}"
            probes.append(binary(f"mul.wide.{kind}", wide, (kind, kind)))
            probes.append(ternary(f"mad.wide.{kind}", wide, (kind, kind, f"{kind[0]}{wide[1:]}")))
    for kind in ("u16x2", "s16x2"):
        probes += [binary(f"{op}.{kind}", "b32", (kind, kind)) for op in ("add", "min", "max")]
    relu = [f"{op}.relu.{kind}" for op in ("min", "max") for kind in ("s32", "s16x2")]
    probes += [binary(name, "b32", (name.rsplit(".", 1)[1],) * 2) for name in relu]
    probes += [binary(f"{op}.sat.s32", "b32", ("s32", "s32")) for op in ("add", "sub")]
    probes.append(ternary("mad.hi.sat.s32", "b32", ("s32",) * 3))
    for kind in ("u32", "s32"):
        for part in ("lo", "hi"):
            probes.append(binary(f"mul24.{part}.{kind}", "b32", (kind, kind)))
            probes.append(ternary(f"mad24.{part}.{kind}", "b32", (kind,) * 3))
    for a in "us":
        for b in "us":
            probes.append(ternary(f"dp4a.{a}32.{b}32", "b32", ("u32",) * 3))
            probes += [ternary(f"dp2a.{part}.{a}32.{b}32", "b32", ("u32",) * 3) for part in ("lo", "hi")]
    return probes


def _bits() -> list[Probe]:
    probes = []
    for bits in (16, 32, 64):
        kind, width = f"u{bits}", f"b{bits}"
        probes += [binary(f"{op}.{width}", width, (kind, kind)) for op in ("and", "or", "xor")]
        probes += [unary(f"{op}.{width}", width, kind) for op in ("not", "cnot")]
        probes += [binary(f"{name}{bits}", width, (kind, "amount")) for name in ("shl.b", "shr.b", "shr.u", "shr.s")]
    for op in ("and", "or", "xor"):
        probes.append(binary(f"{op}.pred", "pred", ("pred", "pred"), count=256))
    probes.append(unary("not.pred", "pred", "pred", count=256))
    for side in "lr":
        for mode in ("clamp", "wrap"):
            probes.append(ternary(f"shf.{side}.{mode}.b32", "b32", ("u32", "u32", "amount")))
    for bits in (32, 64):
        kind, width = f"u{bits}", f"b{bits}"
        probes += [unary(f"{op}.{width}", "b32", kind) for op in ("popc", "clz")]
        probes.append(unary(f"brev.{width}", width, kind))
        for sign in "us":
            probes.append(ternary(f"bfe.{sign}{bits}", width, (kind, "amount", "amount")))
            probes += [unary(f"bfind{mode}.{sign}{bits}", "b32", kind) for mode in ("", ".shiftamt")]
        bfi = f"bfi.{width} %d0, %a0, %a1, %a2, %a3;"
        probes.append(Probe(f"bfi.{width}", bfi, (kind, kind, "amount", "amount"), (width,)))
    for mode in ("clamp", "wrap"):
        probes.append(binary(f"bmsk.{mode}.b32", "b32", ("amount", "amount")))
        probes += [binary(f"szext.{mode}.{kind}", "b32", (kind, "amount")) for kind in ("u32", "s32")]
    probes += [ternary(f"prmt.b32{mode}", "b32", ("u32",) * 3) for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr")]
    probes.append(ternary("prmt.b32.rc16", "b32", ("u32",) * 3))
    probes.append(ternary("fns.b32", "b32", ("u32", "lane", "amount")))
    for lut in LOP3:
        body = f"lop3.b32 %d0, %a0, %a1, %a2, {lut:#x};"
        probes.append(Probe(f"lop3.b32 {lut:#x}", body, ("u32",) * 3, ("b32",), count=512))
    for op in ("and", "or"):
        body = f"lop3.{op}.b32 %d0|%d1, %a0, %a1, %a2, 0x96, %a3;"
        probes.append(Probe(f"lop3.{op}.b32", body, ("u32", "u32", "u32", "pred"), ("b32", "pred"), count=512))
    return probes


def _moves() -> list[Probe]:
    return [
        Probe("mov.b64 pack", "mov.b64 %d0, {%a0, %a1};", ("u32", "u32"), ("b64",), count=256),
        Probe("mov.b32 pack", "mov.b32 %d0, {%a0, %a1};", ("u16", "u16"), ("b32",), count=256),
        Probe("mov.b64 pack four", "mov.b64 %d0, {%a0, %a1, %a2, %a3};", ("u16",) * 4, ("b64",), count=256),
        Probe("mov.b64 unpack", "mov.b64 {%d0, %d1}, %a0;", ("u64",), ("b32", "b32"), count=256),
        Probe("mov.b32 unpack", "mov.b32 {%d0, %d1}, %a0;", ("u32",), ("b16", "b16"), count=256),
        Probe("mov.b64 unpack four", "mov.b64 {%d0, %d1, %d2, %d3}, %a0;", ("u64",), ("b16",) * 4, count=256),
        Probe("mov.b64 unpack high", "mov.b64 {_, %d0}, %a0;", ("u64",), ("b32",), count=256),
    ]


def _carries() -> list[Probe]:
    """Chains through the condition code: the low word sets it, the next uses and sets it, the last tells it."""
    probes = []
    for bits in (32, 64):
        kinds, outputs = (f"u{bits}",) * 4, (f"b{bits}",) * 3
        for op, kind in ((op, f"{sign}{bits}") for op in ("add", "sub") for sign in "us"):
            tell = f"{op}c.u{bits} %d2, 0, 0;"
            body = f"{op}.cc.{kind} %d0, %a0, %a1; {op}c.cc.{kind} %d1, %a2, %a3; {tell}"
            probes.append(Probe(f"{op}.cc.{kind}", body, kinds, outputs))
        low, high = f"mad.lo.cc.u{bits} %d0, %a0, %a1, %a2;", f"madc.hi.cc.u{bits} %d1, %a0, %a1, %a3;"
        probes.append(Probe(f"mad.cc.u{bits}", f"{low} {high} addc.u{bits} %d2, 0, 0;", kinds, outputs))
        low, high = f"mad.hi.cc.s{bits} %d0, %a0, %a1, %a2;", f"madc.lo.s{bits} %d1, %a0, %a1, %a3;"
        probes.append(Probe(f"mad.hi.cc.s{bits}", f"{low} {high}", kinds, outputs[:2]))
    return probes


PROBES = (*_arithmetic(), *_bits(), *_moves(), *_carries())
