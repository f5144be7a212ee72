"""A probe: one instruction (or a short sequence) that every thread executes on operands of its own; and its kernel.

Registers of a body: inputs %a0, %a1, ...; outputs %d0, %d1, ...; addresses of the thread's own memory %m0, ...;
%thread (in the grid) and %lane, 32 bits. Registers are declared as bits of a width, which PTX lets every type use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.simulators.gpu.vectors.inputs import Memory, bits_of

VERSION = "8.6"
TARGET = "sm_90a"
OUTPUT_BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}


@dataclass(frozen=True)
class Accuracy:
    """How far a result may be from the true one, as PTX documents it: by either bound, whichever is larger."""

    relative: float = 0.0
    absolute: float = 0.0
    within: float = float("inf")  # operands of larger magnitude have no bound


@dataclass(frozen=True)
class Probe:
    """What is asked of a chip. Outputs are recorded in order, then the memories as the kernel leaves them."""

    name: str  # unique
    body: str  # PTX statements
    inputs: tuple[str, ...] = ()  # kinds of inputs.py, loaded into %a0, ...
    outputs: tuple[str, ...] = ()  # keys of OUTPUT_BITS, stored from %d0, ...
    memories: tuple[Memory, ...] = ()  # of each thread, at %m0, ...
    accuracy: Accuracy | None = None  # None: exact
    count: int = 1024  # threads
    block: int = 256  # threads
    shared: int = 0  # bytes of shared memory, named `tile`, 128-byte aligned
    is_elementwise: bool = True  # threads do not meet, in memory or otherwise, and nothing branches

    @property
    def entry(self) -> str:
        """The kernel's name in PTX."""
        return "probe_" + "".join(letter if letter.isalnum() else "_" for letter in self.name)


def unary(name: str, result: str, kind: str, **more: object) -> Probe:
    """`name d, a`."""
    return Probe(name, f"{name} %d0, %a0;", (kind,), (result,), **more)  # type: ignore[arg-type]


def binary(name: str, result: str, kinds: tuple[str, str], **more: object) -> Probe:
    """`name d, a, b`."""
    return Probe(name, f"{name} %d0, %a0, %a1;", kinds, (result,), **more)  # type: ignore[arg-type]


def ternary(name: str, result: str, kinds: tuple[str, str, str], **more: object) -> Probe:
    """`name d, a, b, c`."""
    return Probe(name, f"{name} %d0, %a0, %a1, %a2;", kinds, (result,), **more)  # type: ignore[arg-type]


def registers_of(probe: Probe) -> list[str]:
    """The declarations of the registers that a body may name."""

    def declare(letter: str, bits: Iterable[int]) -> list[str]:
        return [f".reg .{'pred' if n == 1 else f'b{max(n, 16)}'} %{letter}{i};" for i, n in enumerate(bits)]

    return [
        *declare("a", map(bits_of, probe.inputs)),
        *declare("d", (OUTPUT_BITS[output] for output in probe.outputs)),
        *declare("m", (64 for _ in probe.memories)),
        ".reg .b32 %thread, %lane;",
    ]


def body_text(probe: Probe) -> str:
    """A module of one kernel that is the body alone: whoever parses it brings the operands."""
    lines = [*registers_of(probe), probe.body, "ret;"]
    return _module([f".visible .entry {probe.entry}()\n{{\n" + "\n".join(lines) + "\n}\n"], VERSION, TARGET)


def module_text(probes: Iterable[Probe], version: str = VERSION, target: str = TARGET) -> str:
    """A module with a kernel for each probe. Its parameters: addresses of the inputs, the outputs, the memories."""
    return _module([_kernel(probe) for probe in probes], version, target)


def _module(kernels: list[str], version: str, target: str) -> str:
    return f".version {version}\n.target {target}\n.address_size 64\n\n" + "\n".join(kernels)


def _kernel(probe: Probe) -> str:
    num_parameters = len(probe.inputs) + len(probe.outputs) + len(probe.memories)
    parameters = ", ".join(f".param .u64 p{i}" for i in range(num_parameters))
    lines = [
        *registers_of(probe),
        ".reg .b16 %byte;",
        ".reg .b32 %number, %threads;",
        ".reg .b64 %at;",
        "mov.u32 %thread, %tid.x;",
        "mov.u32 %number, %ctaid.x;",
        "mov.u32 %threads, %ntid.x;",
        "mad.lo.u32 %thread, %number, %threads, %thread;",
        "mov.u32 %lane, %laneid;",
    ]
    if probe.shared:
        lines.insert(0, f".shared .align 128 .b8 tile[{probe.shared}];")
    number = 0

    def address(stride: int, register: str = "%at") -> list[str]:
        nonlocal number
        number += 1
        return [
            f"ld.param.u64 {register}, [p{number - 1}];",
            f"cvta.to.global.u64 {register}, {register};",
            f"mad.wide.u32 {register}, %thread, {stride}, {register};",
        ]

    for i, kind in enumerate(probe.inputs):
        if bits_of(kind) == 1:
            lines += [*address(1), "ld.global.u8 %byte, [%at];", f"setp.ne.u16 %a{i}, %byte, 0;"]
        else:
            lines += [*address(bits_of(kind) // 8), f"ld.global.b{bits_of(kind)} %a{i}, [%at];"]
    stores = []
    for i, output in enumerate(probe.outputs):
        bits = OUTPUT_BITS[output]
        stores += address(max(bits, 8) // 8)
        if bits == 1:
            stores += [f"selp.u16 %byte, 1, 0, %d{i};", "st.global.u8 [%at], %byte;"]
        else:
            stores += [f"st.global.b{bits} [%at], %d{i};"]
    memories = []
    for i, memory in enumerate(probe.memories):
        memories += address(memory.stride, f"%m{i}")
    lines += [*memories, probe.body, *stores, "ret;"]
    return f".visible .entry {probe.entry}({parameters})\n{{\n" + "\n".join(lines) + "\n}\n"
