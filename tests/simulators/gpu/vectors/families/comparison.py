"""setp, set, selp, slct: every comparison, with NaN among the operands."""

from __future__ import annotations

from tests.simulators.gpu.vectors.families.floating import WIDTH
from tests.simulators.gpu.vectors.probe import Probe, binary, ternary

ORDERED = ("eq", "ne", "lt", "le", "gt", "ge")
FLOATING = (*ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
COUNT = 512


def _setp() -> list[Probe]:
    probes = []
    for kind in ("f32", "ftz.f32", "f64", "f16", "ftz.f16", "bf16"):
        operands = (kind.removeprefix("ftz."),) * 2
        probes += [binary(f"setp.{compare}.{kind}", "pred", operands, count=COUNT) for compare in FLOATING]
    for kind in ("f16x2", "ftz.f16x2", "bf16x2"):
        for compare in FLOATING:
            name, operands = f"setp.{compare}.{kind}", (kind.removeprefix("ftz."),) * 2
            body = f"{name} %d0|%d1, %a0, %a1;"
            probes.append(Probe(name, body, operands, ("pred", "pred"), count=COUNT))
    for bits in (16, 32, 64):
        for sign, compares in (("s", ORDERED), ("u", (*ORDERED, "lo", "ls", "hi", "hs")), ("b", ("eq", "ne"))):
            operands = (f"u{bits}", f"u{bits}")
            probes += [binary(f"setp.{compare}.{sign}{bits}", "pred", operands, count=COUNT) for compare in compares]
    for boolean in ("and", "or", "xor"):
        for kind, operand in (("lt.f32", "f32"), ("hi.u32", "u32")):
            for invert in ("", "!"):
                body = f"setp.{kind[:2]}.{boolean}.{operand} %d0|%d1, %a0, %a1, {invert}%a2;"
                name = f"setp.{kind[:2]}.{boolean}.{operand} {'inverted' if invert else ''}".strip()
                probes.append(Probe(name, body, (operand, operand, "pred"), ("pred", "pred"), count=COUNT))
    return probes


def _set() -> list[Probe]:
    probes = []
    for result in ("u32", "s32", "f32"):
        for compare, kind in (("lt", "s32"), ("hs", "u32"), ("equ", "f32"), ("ge", "f64"), ("num", "f32")):
            probes.append(binary(f"set.{compare}.{result}.{kind}", "b32", (kind, kind), count=COUNT))
        probes.append(binary(f"set.ltu.ftz.{result}.f32", "b32", ("f32", "f32"), count=COUNT))
        boolean = f"set.gt.and.{result}.f32"
        probes.append(ternary(boolean, "b32", ("f32", "f32", "pred"), count=COUNT))
    for kind in ("f16", "bf16"):
        for compare in ("lt", "neu", "nan"):
            for result, width in ((kind, "b16"), ("u16", "b16"), ("s16", "b16"), ("u32", "b32")):
                probes.append(binary(f"set.{compare}.{result}.{kind}", width, (kind, kind), count=COUNT))
            probes.append(binary(f"set.{compare}.{kind}x2.{kind}x2", "b32", (f"{kind}x2",) * 2, count=COUNT))
    return probes


def _select() -> list[Probe]:
    probes = [ternary(f"selp.b{bits}", f"b{bits}", (f"u{bits}",) * 2 + ("pred",), count=256) for bits in (16, 32, 64)]
    for kind in ("f32", "f64"):
        probes.append(ternary(f"selp.{kind}", WIDTH[kind], (kind, kind, "pred"), count=256))
    for bits in (16, 32, 64):
        operands = (f"u{bits}",) * 2
        for name, kind in (
            (f"slct.b{bits}.s32", "s32"),
            (f"slct.b{bits}.f32", "f32"),
            (f"slct.ftz.b{bits}.f32", "f32"),
        ):
            probes.append(ternary(name, f"b{bits}", (*operands, kind), count=COUNT))
    return probes


PROBES = (*_setp(), *_set(), *_select())
