import pytest

from simulators.gpu.errors import PtxSyntaxError
from simulators.gpu.ptx.module import (
    Address,
    Immediate,
    Instruction,
    Label,
    NotRegister,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)
from tests.simulators.gpu.ptx.text import kernel


def r(index: int) -> Register:
    return Register(f"%r{index}", "b32")


P1 = Register("%p1", "pred")


def only(text: str) -> Instruction:
    (found,) = kernel(text).instructions
    return found


@pytest.mark.parametrize(
    ("text", "operand"),
    [
        ("%r1", r(1)),
        ("!%p1", NotRegister(P1)),
        ("-5", Immediate(-5)),
        ("0f3F800000", Immediate(0x3F800000, 32)),
        ("%tid.x", Special("%tid.x")),
        ("%clock64", Special("%clock64")),
        ("%lanemask_lt", Special("%lanemask_lt")),
        ("%cluster_ctarank", Special("%cluster_ctarank")),
        ("a", Symbol("a")),
        ("a+8", Symbol("a", 8)),
        ("_", Sink()),
        ("%r1|%p1", Pair(r(1), P1)),
        ("_|%p1", Pair(Sink(), P1)),
        ("%r1|_", Pair(r(1), Sink())),
        ("{%r1, _, 3}", Vector((r(1), Sink(), Immediate(3)))),
        ("[%r1]", Address(r(1))),
        ("[%r1+8]", Address(r(1), 8)),
        ("[%r1+-4]", Address(r(1), -4)),
        ("[%r1-4]", Address(r(1), -4)),
        ("[ %r1 + 0x10 ]", Address(r(1), 16)),
        ("[a]", Address(Symbol("a"))),
        ("[a+4+4]", Address(Symbol("a"), 8)),
        ("[64]", Address(None, 64)),
        ("[%r1+8, {%r2, 0}]", Vector((Address(r(1), 8), Vector((r(2), Immediate(0)))))),
    ],
)
def test_operands(text: str, operand: Operand) -> None:
    # First and last, for what may follow an operand differs.
    assert only(f"op.b32 {text}, %r1, {text};").operands == (operand, r(1), operand)


@pytest.mark.parametrize(
    ("text", "opcode", "modifiers"),
    [
        ("ret;", "ret", ()),
        ("atom.global.acq_rel.gpu.add.u32;", "atom", ("global", "acq_rel", "gpu", "add", "u32")),
        ("add .sat .s32;", "add", ("sat", "s32")),
        ("tcgen05.ld.sync.aligned.32x32b.x2.b32;", "tcgen05", ("ld", "sync", "aligned", "32x32b", "x2", "b32")),
        ("tcgen05.ld .sync .aligned .32x32b .x2.b32;", "tcgen05", ("ld", "sync", "aligned", "32x32b", "x2", "b32")),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.mbarrier::complete_tx::bytes;",
            "cp",
            ("async", "bulk", "tensor", "2d", "shared::cluster", "mbarrier::complete_tx::bytes"),
        ),
    ],
)
def test_opcodes_and_modifiers(text: str, opcode: str, modifiers: tuple[str, ...]) -> None:
    assert (only(text).opcode, only(text).modifiers) == (opcode, modifiers)


def test_guards_and_the_text_for_messages() -> None:
    plain, inverted = kernel("@%p1  add.s32\t%r1,\n  %r2, /* why */ 3; @!%p1 ret;").instructions
    assert (plain.guard, inverted.guard) == (P1, NotRegister(P1))
    assert plain.text == "@%p1 add.s32 %r1, %r2, 3"
    assert inverted.text == "@!%p1 ret"
    assert (plain.place.line, inverted.place.line) == (5, 6)


def test_each_pair_of_braces_has_its_own_registers_and_labels() -> None:
    once = "{ .reg .pred P; LOOP: setp.x P, %r1, 0; @P bra LOOP; @!P bra.uni DONE; DONE: }"
    parsed = kernel(f"{once} DONE: {once} bra DONE; {{ bra DONE; }}")
    first, second = (parsed.instructions[index] for index in (0, 3))
    assert [first.operands[0], second.operands[0]] == [Register("P@1", "pred"), Register("P@2", "pred")]
    targets = [one.operands[0] for one in parsed.instructions if one.opcode == "bra"]
    assert targets == [
        Label("LOOP@1", 0),
        Label("DONE@1", 3),
        Label("LOOP@2", 3),
        Label("DONE@2", 6),
        Label("DONE", 3),
        Label("DONE", 3),
    ]
    assert parsed.labels == {"LOOP@1": 0, "DONE@1": 3, "DONE": 3, "LOOP@2": 3, "DONE@2": 6}


def test_a_register_of_inner_braces_hides_that_of_the_outer_ones_until_they_close() -> None:
    parsed = kernel("{ mov.b32 %r1, 0; .reg .b64 %r1; { mov.b64 %r1, 1; } } mov.b32 %r1, 2;")
    assert [one.operands[0] for one in parsed.instructions] == [r(1), Register("%r1@1", "b64"), r(1)]


def test_a_label_may_end_a_kernel() -> None:
    assert kernel("bra.uni $end; ret; $end:").instructions[0].operands == (Label("$end", 2),)


def test_branch_targets() -> None:
    parsed = kernel("ts: .branchtargets A, B, A; A: brx.idx.uni %r1, ts; B: ret;")
    assert parsed.branch_targets == {"ts": (0, 1, 0)}
    assert parsed.instructions[0].operands == (r(1), Label("ts", 0))


def test_a_call_is_an_instruction_like_any_other() -> None:
    before = ".extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 v) ; "
    body = """{ // callseq 0, 0
        .param .b64 param0; .param .b32 retval0; st.param.b64 [param0], %rd1;
        prototype_0 : .callprototype (.param .b32 _) _ (.param .b64 _);
        call.uni (retval0), vprintf, (param0, param0); call (retval0), %rd1, (), prototype_0; }"""
    store, call, indirect = kernel(body, before).instructions
    assert store.operands[0] == Address(Symbol("param0@1"))
    arguments = Vector((Symbol("param0@1"),) * 2)
    assert call.operands == (Vector((Symbol("retval0@1"),)), Symbol("vprintf"), arguments)
    assert indirect.operands[2:] == (Vector(()), Label("prototype_0@1", 1))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("add.s32 %r1, %r2, 3 ret;", "expected ',' or ';', found 'ret'"),
        ("add.s32 %r1, , %r2;", "expected an operand, found ','"),
        ("add.s32 %r1, %r2,;", "expected an operand, found ';'"),
        ("@%r1 ret;", "expected a register of type pred, found '%r1'"),
        ("@%p9 ret;", "%p9 is not declared"),
        ("@P ret;", "P is not declared"),
        ("mov.pred %p1, !%r1;", "expected a register of type pred, found '%r1'"),
        ("%r1, %r2;", "expected an instruction, found '%r1'"),
        ("bra $nowhere;", "the label $nowhere is not placed"),
        ("{ L: } bra L;", "the label L is not placed"),
        ("L: L: ret;", "the label L is placed twice"),
        ("ts: .branchtargets A; ret;", "the label A is not placed"),
        ("ld.b32 %r1, [%r9, ];", "expected '{', found ']'"),
        ("ld.b32 %r1, [%r9;", "expected ']', found ';'"),
        ("ld.b32 %r1, [x];", "x is not declared"),
        ("ld.b32 %r1, [%r2+%r3];", "expected an offset in bytes, found '%r3'"),
        ("mov.b32 {%r1, %r2;", "expected '}', found ';'"),
        ("mov.b32 {}, %r2;", "expected an operand, found '}'"),
        ("mov.b32 " + "{" * 5000, "expected an operand, found '{'"),
        (".bogus;", "the directive .bogus is not known within a kernel"),
        (".loc 3 1 1\nret;", "no .file has the number 3"),
        ("mov.b32 %r1, `;", "the character '`' is not one of PTX"),
        ('.pragma "x', "the string that begins here does not end"),
        ("/* ret;", "the comment that begins here does not end"),
    ],
)
def test_faults_are_told_with_their_line(body: str, message: str) -> None:
    with pytest.raises(PtxSyntaxError) as raised:
        kernel(body)
    assert message in str(raised.value)
    assert raised.value.place is not None
    assert raised.value.place.line == 5
