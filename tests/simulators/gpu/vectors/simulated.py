"""The simulator's answers to the probes: by the meaning of single instructions, or by a launch of the whole machine."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simulators.gpu.chip import H200
from simulators.gpu.errors import UnsupportedInstruction
from simulators.gpu.gpu import Gpu
from simulators.gpu.launch import Launch
from simulators.gpu.ptx.module import Immediate, Instruction, NotRegister, Operand, Pair, Register, Sink, Vector
from simulators.gpu.ptx.parser import parse
from simulators.gpu.semantics.table import elementwise_of
from tests.simulators.gpu.vectors.inputs import dtype_of, inputs_of, memory_of
from tests.simulators.gpu.vectors.probe import OUTPUT_BITS, Probe, body_text, module_text

REGISTER_DTYPES = {"pred": np.dtype(np.bool_), "b8": np.dtype(np.uint16)} | {
    f"b{bits}": dtype_of(bits) for bits in (16, 32, 64)
}
CARRY = "carry"  # the condition code, among the registers


def elementwise_answers(probe: Probe) -> list[NDArray]:
    """Outputs of a probe whose threads do not meet. Errors: UnsupportedInstruction."""
    registers: dict[str, NDArray] = {}
    for i, array in enumerate(inputs_of(probe.inputs, probe.count)):
        registers[f"%a{i}"] = array.astype(np.bool_) if probe.inputs[i] == "pred" else array
    (kernel,) = parse(body_text(probe)).kernels.values()
    with np.errstate(all="ignore"):
        for instruction in kernel.instructions:
            if instruction.opcode != "ret":
                _execute(instruction, registers)
    outputs = zip(probe.outputs, range(len(probe.outputs)), strict=True)
    return [registers[f"%d{i}"].astype(dtype_of(OUTPUT_BITS[output])) for output, i in outputs]


def _execute(instruction: Instruction, registers: dict[str, NDArray]) -> None:
    meaning = elementwise_of(instruction)
    if meaning is None:
        raise UnsupportedInstruction(instruction)
    named = meaning.operands[:-1] if meaning.reads_carry else meaning.operands
    sources = [one for operand in instruction.operands[1:] for one in _flat(operand)]
    values = [_value(source, bits, registers) for source, bits in zip(sources, named, strict=True)]
    if meaning.reads_carry:
        values.append(registers[CARRY])
    before = [value.copy() for value in values]
    results = meaning.function(*values)
    assert all(np.array_equal(value, old) for value, old in zip(values, before, strict=True)), "an operand was changed"
    results = results if isinstance(results, tuple) else (results,)
    destinations: list[Operand] = [*_flat(instruction.operands[0])]
    if meaning.writes_carry:
        destinations.append(Register(CARRY, "pred"))
    for destination, result in zip(destinations, results, strict=True):
        assert not any(np.may_share_memory(result, value) for value in values), "a result is an operand's memory"
        if isinstance(destination, Register):
            registers[destination.name] = result.astype(REGISTER_DTYPES[destination.type])
        else:
            assert isinstance(destination, Sink)


def _flat(operand: Operand) -> Sequence[Operand]:
    if isinstance(operand, Vector):
        return operand.elements
    return (operand.first, operand.second) if isinstance(operand, Pair) else (operand,)


def _value(operand: Operand, bits: int, registers: dict[str, NDArray]) -> NDArray:
    """8-bit operands are the low bits of 16."""
    match operand:
        case Register(name):
            value = registers[name]
            return value & np.uint16(0xFF) if bits == 8 else value.astype(np.bool_ if bits == 1 else dtype_of(bits))
        case NotRegister(Register(name)):
            return ~registers[name]
        case Immediate(value):
            return dtype_of(bits).type(value & (1 << bits) - 1)
    raise AssertionError(f"a probe has an operand {operand}")


def launched_answers(probe: Probe, inputs: Sequence[NDArray] | None = None) -> list[NDArray]:
    """Outputs, then memories, after the simulated chip ran the probe's kernel. inputs: others than its own."""
    inputs = inputs_of(probe.inputs, probe.count) if inputs is None else inputs
    outputs = [np.zeros(probe.count, dtype_of(OUTPUT_BITS[output])) for output in probe.outputs]
    memories = [memory_of(memory, position, probe.count) for position, memory in enumerate(probe.memories)]
    gpu = Gpu(H200)
    placed = [_aligned(array) for array in (*inputs, *outputs, *memories)]
    for number, array in enumerate(placed):
        gpu.memory.add(array.ctypes.data, array.nbytes, f"array {number}")
    parameters = struct.pack(f"<{len(placed)}Q", *(array.ctypes.data for array in placed))
    grid = (probe.count // probe.block, 1, 1)
    gpu.launch(parse(module_text([probe])), Launch(probe.entry, grid, (probe.block, 1, 1), parameters))
    return [array.reshape(-1) for array in placed[len(inputs) :]]


def _aligned(array: NDArray) -> NDArray:
    """A copy at an address that every access may have."""
    raw = np.zeros(array.nbytes + 256, np.uint8)
    start = -raw.ctypes.data % 256
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
