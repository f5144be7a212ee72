"""Atomics of one thread on memory of its own: what they return, and what they leave."""

from __future__ import annotations

from tests.simulators.gpu.vectors.inputs import Memory
from tests.simulators.gpu.vectors.probe import Probe

COUNT = 512
WIDTH = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32", "f32": "b32", "f64": "b64"}


def _width(kind: str) -> str:
    return WIDTH.get(kind, f"b{kind[1:]}")


def _operand(kind: str) -> str:
    return f"u{kind[1:]}" if kind.startswith("b") and kind not in WIDTH else kind


def _names() -> list[str]:
    names = [f"add.{kind}" for kind in ("u32", "s32", "u64", "f32", "f64")]
    names += [f"add.noftz.{kind}" for kind in ("f16", "f16x2", "bf16", "bf16x2")]
    names += [f"{op}.{kind}" for op in ("min", "max") for kind in ("u32", "s32", "u64", "s64")]
    names += [f"{op}.u32" for op in ("inc", "dec")]
    return names + [f"{op}.b{bits}" for op in ("and", "or", "xor") for bits in (32, 64)]


def _scalar() -> list[Probe]:
    probes = []
    for name in _names():
        kind = name.rsplit(".", 1)[1]
        operand = _operand(kind)
        body = f"atom.global.{name} %d0, [%m0], %a0;"
        probes.append(_atomic(f"atom.global.{name}", body, (operand,), (_width(kind),), Memory(operand)))
        body = f"red.relaxed.gpu.global.{name} [%m0], %a0;"
        probes.append(_atomic(f"red.global.{name}", body, (operand,), (), Memory(operand)))
    for bits in (32, 64):
        body = f"atom.acq_rel.sys.global.exch.b{bits} %d0, [%m0], %a0;"
        probes.append(_atomic(f"atom.global.exch.b{bits}", body, (f"u{bits}",), (f"b{bits}",), Memory(f"u{bits}")))
    return probes


def _compare_and_swap() -> list[Probe]:
    """Half of the threads name what is there."""
    probes = []
    for bits in (16, 32, 64):
        there = f".reg .b{bits} %there; ld.global.b{bits} %there, [%m0]; selp.b{bits} %there, %there, %a0, %a2;\n"
        body = there + f"atom.release.gpu.global.cas.b{bits} %d0, [%m0], %there, %a1;"
        inputs = (f"u{bits}", f"u{bits}", "pred")
        probes.append(_atomic(f"atom.global.cas.b{bits}", body, inputs, (f"b{bits}",), Memory(f"u{bits}")))
    body = """.reg .b128 %new, %old, %there; .reg .b64 %low, %high;
ld.global.v2.b64 {%low, %high}, [%m0]; selp.b64 %low, %low, %a0, %a2; mov.b128 %there, {%low, %high};
mov.b128 %new, {%a0, %a1}; atom.global.cas.b128 %old, [%m0], %there, %new; mov.b128 {%d0, %d1}, %old;"""
    probes.append(_atomic("atom.global.cas.b128", body, ("u64", "u64", "pred"), ("b64", "b64"), Memory("u64", 2)))
    body = """.reg .b128 %new, %old;
mov.b128 %new, {%a0, %a1}; atom.global.exch.b128 %old, [%m0], %new; mov.b128 {%d0, %d1}, %old;"""
    return [*probes, _atomic("atom.global.exch.b128", body, ("u64", "u64"), ("b64", "b64"), Memory("u64", 2))]


def _vectors() -> list[Probe]:
    probes = []
    for name, items in (
        ("add.v2.f32", 2),
        ("add.v4.f32", 4),
        ("add.noftz.v2.f16", 2),
        ("add.noftz.v8.bf16", 8),
        ("add.noftz.v4.f16x2", 4),
        ("add.noftz.v2.bf16x2", 2),
        ("min.noftz.v4.f16", 4),
        ("max.noftz.v4.bf16", 4),
        ("max.noftz.v2.f16x2", 2),
    ):
        op, *more, shape, kind = name.split(".")
        values, results = ("{" + ", ".join(f"%{letter}{i}" for i in range(items)) + "}" for letter in "ad")
        full = ".".join(("atom.global", shape, kind, op, *more))
        order = f"atom.global.{op}{'.noftz' if more else ''}.{shape}.{kind}"
        body = f"{order} {results}, [%m0], {values};"
        outputs = (WIDTH[kind],) * items
        probes.append(_atomic(full, body, (kind,) * items, outputs, Memory(kind, items)))
        order = order.replace("atom", "red", 1)
        probes.append(
            _atomic(
                full.replace("atom", "red", 1), f"{order} [%m0], {values};", (kind,) * items, (), Memory(kind, items)
            )
        )
    return probes


def _shared() -> list[Probe]:
    """The same in shared memory, where the sum of f32 keeps denormals."""
    probes = []
    for name in (
        "add.f32",
        "add.f64",
        "add.u32",
        "add.noftz.f16x2",
        "add.noftz.bf16x2",
        "min.s32",
        "inc.u32",
        "exch.b32",
    ):
        kind = name.rsplit(".", 1)[1]
        operand, width = _operand(kind), _width(kind)
        body = f""".reg .b32 %to;
mov.u32 %to, tile; mad.lo.u32 %to, %lane, {int(width[1:]) // 8}, %to; st.shared.{width} [%to], %a0;
atom.shared.{name} %d0, [%to], %a1; ld.shared.{width} %d1, [%to];"""
        probes.append(
            Probe(f"atom.shared.{name}", body, (operand, operand), (width, width), (), None, COUNT, 32, 256, False)
        )
    return probes


def _atomic(name: str, body: str, inputs: tuple[str, ...], outputs: tuple[str, ...], memory: Memory) -> Probe:
    return Probe(name, body, inputs, outputs, (memory,), count=COUNT, is_elementwise=False)


PROBES = (*_scalar(), *_compare_and_swap(), *_vectors(), *_shared())
