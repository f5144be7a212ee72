"""Floating-point arithmetic that PTX defines to the bit: every rounding, flush of denormals, saturation, NaN rule."""

from __future__ import annotations

from itertools import product

from tests.simulators.gpu.vectors.probe import Probe, binary, ternary, unary

ROUNDINGS = (".rn", ".rz", ".rm", ".rp")
WIDTH = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32", "f32": "b32", "f64": "b64"}
HALVES = ("f16", "f16x2", "bf16", "bf16x2")


def _names(op: str, kind: str, *choices: tuple[str, ...]) -> list[str]:
    return [f"{op}{''.join(modifiers)}.{kind}" for modifiers in product(*choices)]


def _ftz(kind: str) -> tuple[str, ...]:
    return ("", ".ftz") if kind in ("f32", "f16", "f16x2") else ("",)


def _sums() -> list[Probe]:
    """add, sub, mul, fma."""
    probes = []
    for op in ("add", "sub", "mul"):
        names = _names(op, "f32", ("", *ROUNDINGS), ("", ".ftz"), ("", ".sat"))
        names += _names(op, "f64", ("", *ROUNDINGS))
        for kind in HALVES:
            names += _names(op, kind, ("", ".rn"), _ftz(kind), ("", ".sat") if kind.startswith("f") else ("",))
        probes += [binary(name, WIDTH[_kind(name)], (_kind(name),) * 2) for name in names]
    names = _names("fma", "f32", ROUNDINGS, ("", ".ftz"), ("", ".sat")) + _names("fma", "f64", ROUNDINGS)
    names += ["mad.rn.f32", "mad.rz.ftz.sat.f32", "mad.rp.f64"]
    for kind in HALVES:
        names += _names("fma.rn", kind, _ftz(kind), ("", ".sat", ".relu") if kind.startswith("f") else ("", ".relu"))
        names += _names("fma.rn.oob", kind, ("", ".relu"))
    return probes + [ternary(name, WIDTH[_kind(name)], (_kind(name),) * 3) for name in names]


def _quotients() -> list[Probe]:
    """rcp, sqrt, div of one rounding."""
    probes = []
    for kind in ("f32", "f64"):
        for op in ("rcp", "sqrt"):
            probes += [unary(name, WIDTH[kind], kind) for name in _names(op, kind, ROUNDINGS, _ftz(kind))]
        probes += [binary(name, WIDTH[kind], (kind, kind)) for name in _names("div", kind, ROUNDINGS, _ftz(kind))]
    return probes


def _signs() -> list[Probe]:
    """neg, abs, min, max, copysign, testp."""
    probes = []
    for kind, width in WIDTH.items():
        for op in ("neg", "abs"):
            probes += [unary(name, width, kind) for name in _names(op, kind, _ftz(kind))]
        choices = () if kind == "f64" else (("", ".NaN"), ("", ".xorsign.abs"))
        for op in ("min", "max"):
            probes += [binary(name, width, (kind, kind)) for name in _names(op, kind, _ftz(kind), *choices)]
    for kind in ("f32", "f64"):
        probes.append(binary(f"copysign.{kind}", WIDTH[kind], (kind, kind)))
        tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        probes += [unary(f"testp.{test}.{kind}", "pred", kind) for test in tests]
    return probes


def _kind(name: str) -> str:
    return name.rsplit(".", 1)[1]


PROBES = (*_sums(), *_quotients(), *_signs())
