"""cvt: between integers, between floats, to and from fp8 and tf32, with every rounding and saturation."""

from __future__ import annotations

from itertools import product

from tests.simulators.gpu.vectors.families.floating import ROUNDINGS, WIDTH
from tests.simulators.gpu.vectors.probe import Probe, binary, ternary, unary

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
INTEGRAL = (".rni", ".rzi", ".rmi", ".rpi")
FLOATS = ("f16", "bf16", "f32", "f64")
COUNT = 512


def _width(kind: str) -> str:
    """8-bit values live in 16-bit registers."""
    return WIDTH.get(kind) or f"b{max(int(kind[1:]), 16)}"


def _operand(kind: str) -> str:
    return "u16" if kind.endswith("8") else kind


def _integers() -> list[Probe]:
    names = [f"cvt.{to}.{of}" for to, of in product(INTEGERS, INTEGERS)]
    names += [f"cvt.sat.{to}.{of}" for to, of in product(INTEGERS, INTEGERS) if not _holds(to, of)]
    return [_convert(name, 256) for name in names]


def _holds(to: str, of: str) -> bool:
    """All values of a type are values of another one: ptxas takes no `.sat` then."""
    bits, more = int(of[1:]), int(to[1:])
    return more >= bits if to[0] == of[0] else to[0] == "s" and more > bits


def _is_known(to: str, of: str) -> bool:
    """ptxas converts between no 8-bit integers and bf16."""
    return {to, of} not in ({"bf16", "u8"}, {"bf16", "s8"})


def _integer_to_float() -> list[Probe]:
    pairs = [pair for pair in product(FLOATS, INTEGERS) if _is_known(*pair)]
    return [_convert(f"cvt{rnd}.{to}.{of}", COUNT) for (to, of), rnd in product(pairs, ROUNDINGS)]


def _float_to_integer() -> list[Probe]:
    pairs = [pair for pair in product(INTEGERS, FLOATS) if _is_known(*pair)]
    names = [f"cvt{rnd}.{to}.{of}" for (to, of), rnd in product(pairs, INTEGRAL)]
    names += [f"cvt{rnd}.ftz.{to}.f32" for to, rnd in product(INTEGERS, INTEGRAL)]
    names += [f"cvt.rni.sat.{to}.f32" for to in INTEGERS]
    return [_convert(name, COUNT) for name in names]


def _floats() -> list[Probe]:
    names = []
    for rnd, ftz, sat in product(ROUNDINGS, ("", ".ftz"), ("", ".sat")):
        names += [f"cvt{rnd}{ftz}{sat}.f16.f32", f"cvt{rnd}{ftz}{sat}.f32.f64"]
    for rnd in ROUNDINGS:
        names += [f"cvt{rnd}.f16.f64", f"cvt{rnd}.bf16.f64", f"cvt{rnd}.bf16.f32", f"cvt{rnd}.bf16.f16"]
        names += [f"cvt{rnd}.f16.bf16"]
    for sat in ("", ".sat"):
        names += [f"cvt{sat}.f64.f16", f"cvt{sat}.f64.f32", f"cvt.ftz{sat}.f64.f32"]
        names += [f"cvt{sat}.{kind}.{kind}" for kind in ("f32", "f64", "f16")]
        for rnd in INTEGRAL:
            names += [f"cvt{rnd}{sat}.{kind}.{kind}" for kind in ("f32", "f64", "f16")] + [f"cvt{rnd}.ftz{sat}.f32.f32"]
    names += [f"cvt{rnd}.bf16.bf16" for rnd in INTEGRAL] + ["cvt.f64.bf16"]
    names += [f"cvt{rnd}.relu.{to}.f32" for rnd, to in product((".rn", ".rz"), ("f16", "bf16"))]
    names += [f"cvt{rnd}{relu}.tf32.f32" for rnd, relu in product((".rn", ".rz"), ("", ".relu"))]
    names += ["cvt.rna.tf32.f32", "cvt.rna.satfinite.tf32.f32"]
    probes = [_convert(name, 1024) for name in names]
    # All 65,536 operands.
    for name in ("cvt.f32.f16", "cvt.ftz.f32.f16", "cvt.sat.f32.f16", "cvt.f32.bf16"):
        probes.append(unary(name, "b32", "all16", count=65536))
    return probes


def _packed() -> list[Probe]:
    probes = []
    for rnd, relu, to in product((".rn", ".rz"), ("", ".relu"), ("f16x2", "bf16x2")):
        probes.append(binary(f"cvt{rnd}{relu}.{to}.f32", "b32", ("f32", "f32")))
    for rnd, relu in product((".rn", ".rz"), ("", ".relu")):
        probes.append(binary(f"cvt{rnd}{relu}.satfinite.f16x2.f32", "b32", ("f32", "f32")))
    for fp8, relu in product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        probes.append(binary(f"cvt.rn.satfinite{relu}.{fp8}.f32", "b16", ("f32", "f32")))
        probes.append(unary(f"cvt.rn.satfinite{relu}.{fp8}.f16x2", "b16", "f16x2"))
        probes.append(unary(f"cvt.rn{relu}.f16x2.{fp8}", "b32", "all16", count=65536))
        # Every f16, in the lower half; its mirror image in the upper.
        body = f"not.b16 %d1, %a0; mov.b32 %d2, {{%a0, %d1}}; cvt.rn.satfinite{relu}.{fp8}.f16x2 %d0, %d2;"
        name = f"cvt.rn.satfinite{relu}.{fp8}.f16x2 all"
        probes.append(Probe(name, body, ("all16",), ("b16", "b16", "b32"), count=65536))
    probes += [binary(f"cvt.pack.sat.{to}.s32", "b32", ("s32", "s32")) for to in ("u16", "s16")]
    probes += [ternary(f"cvt.pack.sat.{to}.s32.b32", "b32", ("s32", "s32", "u32")) for to in ("u8", "s8", "u4", "s4")]
    return probes


def _convert(name: str, count: int) -> Probe:
    to, of = name.split(".")[-2:]
    return unary(name, "b32" if to == "tf32" else _width(to), _operand(of), count=count)


PROBES = (*_integers(), *_integer_to_float(), *_float_to_integer(), *_floats(), *_packed())
