import pytest

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.module import Place
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.ptx.text import HEADER, module


def test_a_module_without_kernels() -> None:
    parsed = parse("// a comment\n.version 8.8 /* another,\n of two lines */ .target sm_100a, texmode_independent")
    assert (parsed.version, parsed.target, parsed.kernels, parsed.variables) == ("8.8", "sm_100a", {}, ())


def test_directives_of_a_kernel() -> None:
    text = """.visible .entry k() .reqntid 128 .maxntid 8, 4 .reqnctapercluster 2, 1, 3 .minnctapersm 2 .maxnreg 64
        .explicitcluster .maxclusterrank 8 .noreturn .pragma "nounroll", "x"; { ret; }"""
    assert module(text).kernels["k"].directives == {
        "reqntid": (128, 1, 1),
        "maxntid": (8, 4, 1),
        "reqnctapercluster": (2, 1, 3),
        "minnctapersm": (2,),
        "maxnreg": (64,),
        "explicitcluster": (),
        "maxclusterrank": (8,),
        "noreturn": (),
    }


def test_kernels_of_one_module_share_its_names_but_not_their_own() -> None:
    text = """.shared .b32 x; .entry first(.param .b64 p);
        .entry first(.param .b64 p) { .reg .b32 %r<2>; L: mov.b32 %r1, x; }
        .weak .entry second(.param .b64 p) { .reg .b64 %r<3>; L: mov.b64 %r2, p; }"""
    kernels = module(text).kernels
    assert {name: str(one.instructions[0].operands[0]) for name, one in kernels.items()} == {
        "first": "Register(name='%r1', type='b32')",
        "second": "Register(name='%r2', type='b64')",
    }


def test_places_in_the_source() -> None:
    text = """.entry k() { ret;
        .loc 1 20 3
        ret; ret;
        .loc 2 30 1, function_name $L__info_string0+8, inlined_at 1 21 5
        ret;
        } .entry other() { ret; }
        .file 1 "a.py" .file 2 "b.py", 1700000000, 99
        .section .debug_info { .b32 1, $L-$M\n$L: .b8 2 }"""
    kernels = module(text).kernels
    assert [one.place for one in kernels["k"].instructions] == [
        Place(4),
        Place(6, "a.py", 20),
        Place(6, "a.py", 20),
        Place(8, "b.py", 30),
    ]
    assert kernels["other"].instructions[0].place == Place(9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected '.version', found the end of the text"),
        (".target sm_90a", "line 1: expected '.version'"),
        (".version 8\n.target sm_90a", "line 1: expected a version"),
        (".version 8.8\n.entry k() {}", "line 2: expected '.target'"),
        (".version 8.8\n.target sm_90a\n.address_size 32", "line 3: only addresses of 64 bits"),
        (HEADER + ".entry k() { ret;", "line 4: expected the '}' of the '{' in line 4, found the end of the text"),
        (HEADER + ".entry k() {\n{\n ret; }", "line 6: expected the '}' of the '{' in line 4"),
        (HEADER + ".entry k() { ret; } }", "line 4: expected a directive of a module, found '}'"),
        (HEADER + ".entry k() { ret; } .entry k() { ret; }", "line 4: the kernel k is declared already"),
        (HEADER + ".entry k(.param .b32 x,)", "line 4: expected '.param', found ')'"),
        (HEADER + ".entry k(.param .b32 x, .param .b32 x)", "line 4: x is declared already"),
        (HEADER + ".entry k() .bogus 1 { }", "line 4: the directive .bogus of a kernel is not known"),
        (HEADER + ".func f() { ret; }", "line 4: the device function f has a body, which is not supported"),
        (HEADER + ".section .x { .b8 1", "line 4: the section that begins here does not end"),
        (HEADER + "é", "line 4: the character 'é' is not one of PTX"),
        (HEADER + '.file 1 "a', "line 4: the string that begins here does not end"),
        (HEADER + "\n\x00", "line 5: the character '\\x00' is not one of PTX"),
    ],
)
def test_faults(text: str, message: str) -> None:
    with pytest.raises(PtxSyntaxError) as raised:
        parse(text)
    assert message in str(raised.value)
