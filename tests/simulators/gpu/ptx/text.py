"""Short texts for tests."""

from simulators.gpu.ptx.module import Kernel, Module
from simulators.gpu.ptx.parser import parse

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"  # what follows begins in line 4

REGISTERS = ".reg .pred %p<9>; .reg .b32 %r<99>; .reg .b64 %rd<9>; .reg .f32 %f<9>;\n"


def module(declarations: str) -> Module:
    return parse(HEADER + declarations)


def kernel(body: str, before: str = "") -> Kernel:
    """A kernel of that body, whose first line is line 5 of the text, with the registers above."""
    text = f"{before}.entry k(.param .b64 a, .param .b32 b) {{ {REGISTERS}{body}\n}}"
    return module(text).kernels["k"]
