"""A thought is told from the content, however the text is cut, and nothing of it is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api.pieces import Content, Mark, Piece, Reasoning, joined
from engine.api.thought import Opening, ThoughtSplit
from tests.engine.api.cuts import PLACES, cut

TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "think>", "<", ">", "\n", "\n\n", " ", "a", "é😀"]),
    max_size=10,
).map("".join)
OPENINGS = st.sampled_from(list(Opening))


def split(opening: Opening, texts: list[str]) -> list[Piece]:
    parser = ThoughtSplit(opening)
    pieces = [piece for text in texts for piece in parser.push(text)]
    return list(joined([*pieces, *parser.finish()]))


@given(opening=OPENINGS, text=TEXTS, places=PLACES)
def test_however_it_is_cut(opening: Opening, text: str, places: list[int]) -> None:
    assert split(opening, cut(text, places)) == split(opening, [text])


@given(opening=OPENINGS, text=TEXTS)
def test_nothing_is_lost_and_the_order_is_kept(opening: Opening, text: str) -> None:
    pieces = split(opening, list(text))
    assert "".join(piece.text for piece in pieces if isinstance(piece, Mark | Reasoning | Content)) == text
    kinds = "".join(type(piece).__name__[0] for piece in pieces)
    assert re.fullmatch("M?(RM?)?C?", kinds), kinds


@given(opening=OPENINGS, text=TEXTS)
def test_no_tag_is_in_the_thought_and_no_line_end_at_its_edges(opening: Opening, text: str) -> None:
    pieces = split(opening, [text])
    has_ended = any(isinstance(piece, Mark) and "</think>" in piece.text for piece in pieces)
    for piece in pieces:
        if isinstance(piece, Reasoning):
            assert "</think>" not in piece.text and not piece.text.startswith("\n")
            assert not has_ended or not piece.text.endswith("\n")
        if isinstance(piece, Content) and has_ended:
            assert not piece.text.startswith("\n")


@pytest.mark.parametrize(
    ("opening", "text", "expected"),
    [
        (Opening.EITHER, "<think>\nWhy?\n</think>\n\nSo.", ("Why?", "So.")),
        (Opening.EITHER, "<think>Why?\n\nHow?</think>So.\n", ("Why?\n\nHow?", "So.\n")),
        (Opening.EITHER, "<think>\n\n</think>\n\nSo.", ("", "So.")),
        (Opening.EITHER, "<think>\nWhy?\n", ("Why?\n", "")),
        (Opening.EITHER, "<think>\nWhy?\n</thin", ("Why?\n</thin", "")),
        (Opening.EITHER, "<think>a</think>b</think><think>c", ("a", "b</think><think>c")),
        (Opening.EITHER, "So <think>\nWhy?\n</think>", ("", "So <think>\nWhy?\n</think>")),
        (Opening.EITHER, "\n<think>", ("", "\n<think>")),
        (Opening.EITHER, "<thin", ("", "<thin")),
        (Opening.EITHER, "", ("", "")),
        (Opening.THOUGHT, "\nWhy?\n</think>\n\nSo.", ("Why?", "So.")),
        (Opening.THOUGHT, "Why?", ("Why?", "")),
        (Opening.THOUGHT, "</think>\n\nSo.", ("", "So.")),
        (Opening.CONTENT, "<think>\nWhy?\n</think>\n\nSo.", ("", "<think>\nWhy?\n</think>\n\nSo.")),
    ],
)
def test_thought_and_content(opening: Opening, text: str, expected: tuple[str, str]) -> None:
    pieces = split(opening, [text])
    texts = ["".join(p.text for p in pieces if isinstance(p, kind)) for kind in (Reasoning, Content)]
    assert tuple(texts) == expected


def test_what_is_certain_is_not_held_back() -> None:
    parser = ThoughtSplit(Opening.EITHER)
    assert list(parser.push("<think>\n")) == [Mark("<think>"), Mark("\n")]
    assert list(parser.push("Why < how\n")) == [Reasoning("Why < how")]
    assert list(parser.push("</")) == []
    assert list(parser.push("b>")) == [Reasoning("\n</b>")]
    assert list(parser.push("\n</think>\n\nS")) == [Mark("\n</think>"), Mark("\n\n"), Content("S")]
    assert parser.in_content and parser.has_thought
