"""What the modifiers of memory instructions say. Source: PTX ISA, "Memory Consistency Model", "Cache Operators"."""

from __future__ import annotations

from dataclasses import dataclass

from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.ptx.module import Instruction
from simulators.gpu.watch import Order, Scope

SPACES = ("global", "shared", "shared::cta", "shared::cluster", "local", "param", "param::entry", "const")
_OTHER_NAMES = {"shared": "shared::cta", "param::entry": "param"}
TYPES = {f"{kind}{bits}": bits for kind in "bsuf" for bits in (8, 16, 32, 64)} | {
    "f16x2": 32,
    "bf16": 16,
    "bf16x2": 32,
    "f16": 16,
    "b128": 128,
}
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
SCOPES = ("cta", "cluster", "gpu", "sys")
_ORDERS: dict[str, Order] = {
    "weak": "weak",
    "relaxed": "relaxed",
    "volatile": "relaxed",
    "mmio": "relaxed",
    "acquire": "acquire",
    "release": "release",
    "acq_rel": "acq_rel",
}
# They say how to cache, and nothing about what is read or written.
_CACHING = ("nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified", "L2::cache_hint")
_CACHING_LEVELS = ("L1::", "L2::")


@dataclass(frozen=True)
class MemoryModifiers:
    """Of a load, a store or an atomic."""

    space: str
    type: str
    bits: int
    count: int
    order: Order
    scope: Scope
    rest: tuple[str, ...]  # those that are the instruction's own


def memory_modifiers(instruction: Instruction, own: tuple[str, ...] = ()) -> MemoryModifiers:
    """own: what else the instruction may be told. Errors: UnsupportedInstruction for a modifier that is unknown."""
    space, order, count, kind = "generic", "weak", 1, ""
    scope: Scope | None = None
    rest = []
    for one in instruction.modifiers:
        if one in own:
            rest.append(one)
        elif one in SPACES:
            space = _OTHER_NAMES.get(one, one)
        elif one in _ORDERS:
            order = _ORDERS[one]
            if one in ("volatile", "mmio"):
                scope = "sys"
        elif one in SCOPES:
            scope = one  # type: ignore[assignment] # it is one of the names that Scope lists
        elif one in VECTORS:
            count = VECTORS[one]
        elif one in TYPES:
            kind = one
        elif one not in _CACHING and not one.startswith(_CACHING_LEVELS):
            raise UnsupportedInstruction(instruction, f"modifier .{one} is unknown")
    if not kind:
        raise UnsupportedInstruction(instruction, "it has no type that is known")
    return MemoryModifiers(space, kind, TYPES[kind], count, order, scope or "gpu", tuple(rest))  # type: ignore[arg-type]
