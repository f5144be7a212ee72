"""Whole texts: three that CuTeDSL compiled for kernels of ours, and one written by hand."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.gpu.errors import SimulatorError
from simulators.gpu.ptx.module import Address, Place, Register, Symbol, Vector
from simulators.gpu.ptx.parser import parse
from tests.simulators.gpu.ptx.spelling import plain, spelled

TEXTS = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "texts").glob("*.ptx"))}
WORDS = {name: re.findall(r"\s+|[\w$%.:]+|.", text) for name, text in TEXTS.items()}
VOCABULARY = [*sorted(set().union(*WORDS.values())), ".func", "call", "(", "1<<3", ".v4", "\0"]


@pytest.mark.parametrize("name", TEXTS)
def test_instructions_written_again_are_those_of_the_text(name: str) -> None:
    (kernel,) = parse(TEXTS[name]).kernels.values()
    lines = TEXTS[name].splitlines()
    for instruction in kernel.instructions:
        assert spelled(instruction) == plain(instruction.text)
        assert instruction.text in " ".join(lines[instruction.place.line - 1].split())
    text = re.sub(r"//.*|\.section[^}]*}", "", TEXTS[name][TEXTS[name].index(".entry") :])
    declarations = re.findall(r"(?:^|\s)\.(?:reg|pragma|shared)\s[^;]*;", text)
    assert len(kernel.instructions) == text.count(";") - len(declarations)


def test_the_forms_of_hopper() -> None:
    module = parse(TEXTS["hopper"])
    kernel = module.kernels["gemm"]
    assert [one.offset for one in kernel.parameters] == [0, 128, 136]
    assert module.variables[1].initial == b"hi\0"
    by_opcode = {one.opcode: one for one in kernel.instructions}
    copy = by_opcode["cp"]
    assert copy.modifiers[-3:] == ("mbarrier::complete_tx::bytes", "multicast::cluster", "L2::cache_hint")
    assert isinstance(copy.operands[1], Vector)
    assert copy.operands[1].elements[0] == Address(Register("%rd1", "b64"))
    assert copy.place == Place(TEXTS["hopper"][: TEXTS["hopper"].index("cp.async")].count("\n") + 1, "pipeline.py", 40)
    assert by_opcode["wgmma"].place.file == "gemm.py"
    waits = [one.operands[0] for one in kernel.instructions if "try_wait" in one.modifiers]
    assert waits == [Register("P1@1", "pred"), Register("P1@3", "pred")]
    assert kernel.instructions[1].operands[1] == Symbol("tiles", 1024)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(WORDS)),
    st.lists(
        st.tuples(
            st.integers(0, 10**6),
            st.sampled_from(["delete", "repeat", "replace", "insert"]),
            st.sampled_from(VOCABULARY),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_no_change_of_words_raises_anything_but_our_errors(name: str, changes: list[tuple[int, str, str]]) -> None:
    words = list(WORDS[name])
    for position, change, word in changes:
        at = position % len(words)
        if change == "delete":
            del words[at]
        elif change == "repeat":
            words.insert(at, words[at])
        elif change == "replace":
            words[at] = word
        else:
            words.insert(at, f" {word} ")
    try:
        parse("".join(words))
    except SimulatorError as error:
        assert error.place is not None  # and the message has the line


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=".%$@!{}[]()<>;:,=+-~*|/\"'0123456789abfxrdUF_ \n\t\0é²"))
def test_no_text_raises_anything_but_our_errors(text: str) -> None:
    for around in ("{}", ".version 8.8\n.target sm_90a\n{}", ".version 8.8\n.target sm_90a\n.entry k() {{ {} }}"):
        try:
            parse(around.format(text))
        except SimulatorError as error:
            assert error.place is not None
