import pytest

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.module import Parameter, Register, Symbol, Variable, Vector
from tests.simulators.gpu.ptx.text import kernel, module


def test_parameters_lie_as_members_of_a_structure_do() -> None:
    text = """.entry k(.param .align 1 .b8 a[1], .param .align 64 .b8 map[128], .param .align 4 .b8 c[12], .param
        .u32 d, .param.u64 .ptr .global .align 256 e, .param .f32 f, .param .u64 .ptr g, .param .v4 .f32 h,
        .param .b8 i[2][3], .param .b16 j) { ret; }"""
    parsed = module(text).kernels["k"]
    assert parsed.parameters == (
        Parameter("a", 0, 1, 1),
        Parameter("map", 64, 128, 64),
        Parameter("c", 192, 12, 4),
        Parameter("d", 204, 4, 4),
        Parameter("e", 208, 8, 8),
        Parameter("f", 216, 4, 4),
        Parameter("g", 224, 8, 8),
        Parameter("h", 240, 16, 16),
        Parameter("i", 256, 6, 1),
        Parameter("j", 262, 2, 2),
    )
    assert parsed.parameter_bytes == 264


@pytest.mark.parametrize("parentheses", ["", "()"])
def test_a_kernel_without_parameters(parentheses: str) -> None:
    assert module(f".entry k{parentheses} {{ ret; }}").kernels["k"].parameter_bytes == 0


def test_variables() -> None:
    text = """.extern .shared .align 16 .b8 dynamic[];
        .shared .v4 .f32 four, more[3];
        .const .u16 table[] = {1, -1, 0xABCD};
        .weak .global .align 32 .b32 grid[2][3] = {{1}, {2, 3}};
        .visible .global .attribute(.managed) .f32 x = 1.5, y = 0f40000000, z = -2;
        .global .f64 wide = 0d3FF0000000000000;
        .global .b8 nothing[4];
        .extern .global .u64 elsewhere;"""
    little = lambda width, *values: b"".join(value.to_bytes(width, "little") for value in values)  # noqa: E731
    assert module(text).variables == (
        Variable("dynamic", "shared", 0, 16, is_external=True),
        Variable("four", "shared", 16, 16),
        Variable("more", "shared", 48, 16),
        Variable("table", "const", 6, 2, initial=little(2, 1, 0xFFFF, 0xABCD)),
        Variable("grid", "global", 24, 32, initial=little(4, 1, 0, 0, 2, 3)),
        Variable("x", "global", 4, 4, initial=little(4, 0x3FC00000)),
        Variable("y", "global", 4, 4, initial=little(4, 0x40000000)),
        Variable("z", "global", 4, 4, initial=little(4, 0xC0000000)),
        Variable("wide", "global", 8, 8, initial=little(8, 0x3FF0000000000000)),
        Variable("nothing", "global", 4, 1),
        Variable("elsewhere", "global", 8, 8, is_external=True),
    )


def test_variables_of_a_kernel_hide_those_of_the_module_and_of_outer_braces() -> None:
    body = """.shared .b32 x; .local .align 16 .b8 depot[64]; mov.b32 %r1, x;
        { .shared .b32 depot; mov.b32 %r1, depot+4; }
        mov.b32 %r1, depot; mov.b64 %rd1, a;"""
    parsed = kernel(body, before=".shared .b32 x; ")
    assert [(one.name, one.space) for one in parsed.variables] == [
        ("x@0", "shared"),
        ("depot", "local"),
        ("depot@1", "shared"),
    ]
    operands = [one.operands[1] for one in parsed.instructions]
    assert operands == [Symbol("x@0"), Symbol("depot@1", 4), Symbol("depot"), Symbol("a")]


def test_registers() -> None:
    body = ".reg .b16 one, %x<3>; .reg .v4 .s32 abcd; .reg .v2 .f32 %v<2>; mov.x one, %x2, abcd, abcd.y, %v1.x, %r10;"
    assert kernel(body).instructions[0].operands == (
        Register("one", "b16"),
        Register("%x2", "b16"),
        Vector(tuple(Register(f"abcd.{part}", "s32") for part in "xyzw")),
        Register("abcd.y", "s32"),
        Register("%v1.x", "f32"),
        Register("%r10", "b32"),
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("mov.b32 %r1, %r99;", "%r99 is not declared"),
        ("mov.b32 %r1, %r01;", "%r01 is not declared"),
        ("{ .reg .b32 x; } mov.b32 %r1, x;", "x is not declared"),
        ("mov.b32 %r1, x; .reg .b32 x;", "x is not declared"),
        (".reg .v2 .b32 v; mov.b32 %r1, v.z;", "v.z is not declared"),
        (".reg .b32 %r<3>;", "%r is declared already"),
        (".reg .b32 %r5;", "%r5 is declared already"),
        (".reg .b32 x; .reg .b64 x;", "x is declared already"),
        (".reg .b32 x2; .reg .b64 x<4>;", "x is declared already"),
        (".shared .b32 x; .shared .b32 x;", "x is declared already"),
        (".reg .b33 x;", "expected a type, found '.b33'"),
        (".reg .b32 x", "expected ';', found '}'"),
        (".shared .b8 x[];", "x has no size"),
        (".shared .b8 x[0];", "the size of an array is 0"),
        (".shared .b8 x[-1];", "the size of an array is -1"),
        (".shared .align 3 .b8 x;", "an alignment is a power of two, not 3"),
        (".shared .b32 x = 1;", "a variable in .shared has no initial value"),
        (".global .b32 x[2] = {1, 2, 3};", "more initial values than the 2"),
        (".global .b64 x = y;", "the address of a variable as an initial value is not supported"),
        (".global .b32 x = 1.5;", "no initial value of type b32"),
        (".global .f32 x = 1.0e200;", "too large for type f32"),
        (".global .b8 x" + "[1]" * 2000 + ";", "more than 16 dimensions"),
        (".global .b8 x[99999999999999];", "would have 99999999999999 bytes"),
    ],
)
def test_faults_are_told_with_their_line(body: str, message: str) -> None:
    with pytest.raises(PtxSyntaxError) as raised:
        kernel(body)
    assert message in str(raised.value)
    assert raised.value.place is not None
    assert raised.value.place.line == 5 + (body == ".reg .b32 x")  # there the fault is the brace after it
