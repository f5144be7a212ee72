"""What only sm_100a has. These are assembled, never run: semantics unverified on a chip."""

from __future__ import annotations

from itertools import product

from tests.simulators.gpu.vectors.families.floating import ROUNDINGS
from tests.simulators.gpu.vectors.inputs import Memory
from tests.simulators.gpu.vectors.probe import Probe, binary, ternary, unary

VERSION = "8.8"
TARGET = "sm_100a"


def _arithmetic() -> list[Probe]:
    probes = []
    for op, rnd, ftz in product(("add", "sub", "mul"), ROUNDINGS, ("", ".ftz")):
        probes.append(binary(f"{op}{rnd}{ftz}.f32x2", "b64", ("f32x2", "f32x2")))
    for rnd, ftz in product(ROUNDINGS, ("", ".ftz")):
        probes.append(ternary(f"fma{rnd}{ftz}.f32x2", "b64", ("f32x2",) * 3))
    for rnd, sat, kind in product(ROUNDINGS, ("", ".sat"), ("f16", "bf16")):
        probes.append(ternary(f"fma{rnd}{sat}.f32.{kind}", "b32", (kind, kind, "f32")))
        probes += [binary(f"{op}{rnd}{sat}.f32.{kind}", "b32", (kind, "f32")) for op in ("add", "sub")]
    for op, ftz, nan, absolute in product(("min", "max"), ("", ".ftz"), ("", ".NaN"), ("", ".abs")):
        probes.append(ternary(f"{op}{ftz}{nan}{absolute}.f32", "b32", ("f32",) * 3))
    return probes


def _conversions() -> list[Probe]:
    probes = []
    for small, relu in product(("e2m3x2", "e3m2x2"), ("", ".relu")):
        probes.append(binary(f"cvt.rn.satfinite{relu}.{small}.f32", "b16", ("f32", "f32")))
        probes.append(unary(f"cvt.rn{relu}.f16x2.{small}", "b32", "all16", count=65536))
    for relu in ("", ".relu"):
        to = f"cvt.rn.satfinite{relu}.e2m1x2.f32"
        body = f".reg .b8 %small; {to} %small, %a0, %a1; mov.b16 %d0, {{%small, 0}};"
        probes.append(Probe(to, body, ("f32", "f32"), ("b16",)))
        of = f"cvt.rn{relu}.f16x2.e2m1x2"
        body = f".reg .b8 %small, %rest; mov.b16 {{%small, %rest}}, %a0; {of} %d0, %small;"
        probes.append(Probe(of, body, ("u16",), ("b32",), count=256))
    for rnd, sat in product((".rz", ".rp"), ("", ".satfinite")):
        probes.append(binary(f"cvt{rnd}{sat}.ue8m0x2.f32", "b16", ("f32", "f32")))
        probes.append(unary(f"cvt{rnd}{sat}.ue8m0x2.bf16x2", "b16", "bf16x2"))
    probes.append(unary("cvt.rn.bf16x2.ue8m0x2", "b32", "all16", count=65536))
    for rnd, relu in product((".rn", ".rz"), ("", ".relu")):
        probes.append(unary(f"cvt{rnd}{relu}.satfinite.tf32.f32", "b32", "f32"))
    return probes


def _others() -> list[Probe]:
    probes = []
    for op, absolute, nan in product(("min", "max"), ("", ".abs"), ("", ".NaN")):
        name = f"redux.sync.{op}{absolute}{nan}.f32"
        probes.append(Probe(name, f"{name} %d0, %a0, -1;", ("f32",), ("b32",), block=32, is_elementwise=False))
    for items, bits in ((8, 32), (4, 64)):
        values = "{" + ", ".join(f"%d{i}" for i in range(items)) + "}"
        body = f"ld.global.v{items}.b{bits} {values}, [%m0]; st.global.v{items}.b{bits} [%m0], {values};"
        memories = (Memory(f"u{bits}", items),)
        probes.append(
            Probe(f"ld.global.v{items}.b{bits}", body, (), (f"b{bits}",) * items, memories, is_elementwise=False)
        )
    return probes


PROBES = (*_arithmetic(), *_conversions(), *_others())
