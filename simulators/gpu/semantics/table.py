"""Which opcodes are of data, and who knows what each of them means."""

from __future__ import annotations

from collections.abc import Callable

from simulators.gpu.ptx.module import Instruction
from simulators.gpu.semantics import (
    bits,
    comparison,
    conversion,
    dot,
    fields,
    floating,
    integer,
    moves,
    sign,
    transcendental,
)
from simulators.gpu.semantics.elementwise import Elementwise

Resolver = Callable[[Instruction], Elementwise]


def _by_type(of_integers: Resolver, of_floats: Resolver) -> Resolver:
    """An opcode that integers and floats share: the type, which is the last modifier, tells which."""

    def resolve(instruction: Instruction) -> Elementwise:
        is_float = instruction.modifiers and instruction.modifiers[-1].startswith(("f", "bf"))
        return (of_floats if is_float else of_integers)(instruction)

    return resolve


def _by_accuracy(of_exact: Resolver, of_approximate: Resolver) -> Resolver:
    """div, rcp and sqrt: .approx and .full are not IEEE 754."""

    def resolve(instruction: Instruction) -> Elementwise:
        is_approximate = "approx" in instruction.modifiers or "full" in instruction.modifiers
        return (of_approximate if is_approximate else of_exact)(instruction)

    return resolve


RESOLVERS: dict[str, Resolver] = {
    **integer.RESOLVERS,
    **bits.RESOLVERS,
    **fields.RESOLVERS,
    **dot.RESOLVERS,
    **moves.RESOLVERS,
    **comparison.RESOLVERS,
    **conversion.RESOLVERS,
    **transcendental.RESOLVERS,
}
_FLOATING: dict[str, Resolver] = {**floating.RESOLVERS, **sign.RESOLVERS}
for _opcode, _of_floats in _FLOATING.items():
    _exact = _of_floats
    if _opcode in transcendental.RESOLVERS:
        _exact = _by_accuracy(_of_floats, transcendental.RESOLVERS[_opcode])
    RESOLVERS[_opcode] = _by_type(integer.RESOLVERS[_opcode], _exact) if _opcode in integer.RESOLVERS else _exact


def elementwise_of(instruction: Instruction) -> Elementwise | None:
    """What a data instruction computes. None: the opcode is not one of data.

    Raises UnsupportedInstruction where the opcode is of data, but a modifier or an operand is not known.
    """
    resolve = RESOLVERS.get(instruction.opcode)
    return None if resolve is None else resolve(instruction)
