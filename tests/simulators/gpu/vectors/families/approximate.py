"""Instructions whose last bits PTX leaves open. Bounds: PTX ISA, "Floating Point Instructions" and "Half precision"."""

from __future__ import annotations

from math import pi

from tests.simulators.gpu.vectors.probe import Accuracy, Probe, binary, unary

COUNT = 2048
ONE_ULP, TWO_ULP = Accuracy(2.0**-23), Accuracy(2.0**-22)
BOUNDS = {
    "rcp.approx": ONE_ULP,
    "rsqrt.approx": Accuracy(2.0**-22.4),
    "sqrt.approx": ONE_ULP,
    "ex2.approx": TWO_ULP,
    # absolute where the operand is within 0.5 and 2, relative elsewhere
    "lg2.approx": Accuracy(2.0**-22, 2.0**-22),
    "sin.approx": Accuracy(0.0, 2.0**-20.5, 2 * pi),
    "cos.approx": Accuracy(0.0, 2.0**-20.5, 2 * pi),
}


def _f32() -> list[Probe]:
    probes = []
    for name, accuracy in BOUNDS.items():
        for ftz in ("", ".ftz"):
            probes.append(unary(f"{name}{ftz}.f32", "b32", "f32", accuracy=accuracy, count=COUNT))
    probes.append(unary("tanh.approx.f32", "b32", "f32", accuracy=Accuracy(2.0**-11), count=COUNT))
    for ftz in ("", ".ftz"):
        for op in ("approx", "full"):
            probes.append(binary(f"div.{op}{ftz}.f32", "b32", ("f32", "f32"), accuracy=TWO_ULP, count=COUNT))
    return probes


def _halves() -> list[Probe]:
    of_tanh_f16, of_bf16 = Accuracy(2.0**-10.987), Accuracy(2.0**-8)
    probes = []
    for name, accuracy in (
        ("ex2.approx.f16", Accuracy(2.0**-9.9)),
        ("ex2.approx.ftz.bf16", Accuracy(2.0**-7)),
        ("tanh.approx.f16", of_tanh_f16),
        ("tanh.approx.bf16", of_bf16),
    ):
        kind = name.rsplit(".", 1)[1]
        probes.append(unary(name, "b16", "sample16", accuracy=accuracy, count=4096))
        probes.append(unary(f"{name}x2", "b32", f"{kind}x2", accuracy=accuracy))
    return probes


def _f64() -> list[Probe]:
    gross = Accuracy(2.0**-19)
    return [unary(f"{op}.approx.ftz.f64", "b64", "f64", accuracy=gross) for op in ("rcp", "rsqrt")]


PROBES = (*_f32(), *_halves(), *_f64())
