"""Where a sample ends and what may be shown: against a reader that sees one character, or one byte, at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from reference.serving.request import FinishReason, SamplingParams
from reference.serving.stop import Ending, ending, first_stop_string, text_to_show, unchanging
from tests.reference.serving.fakes import ABC, DEF_TO_J, END_OF_TURN, EOS, NUM_TOKEN_IDS, decode, ids_of

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def end_of(token_ids: Sequence[int], *, budget: int = 100, **params: Any) -> Ending | None:
    return ending(token_ids, SamplingParams(**params), decode=decode, eos_token_ids={EOS}, budget=budget)


# Stop strings

# Few letters, so that stop strings overlap; one of two bytes, and U+FFFD itself.
TEXT = st.text("abé\ufffd", max_size=12)
STOPS = st.lists(st.text("abé\ufffd", min_size=1, max_size=4), max_size=3).map(tuple)


@given(TEXT, STOPS)
def test_the_stop_string_is_the_first_that_a_reader_completes(text: str, stop: tuple[str, ...]) -> None:
    for end in range(len(text) + 1):
        complete = [string for string in stop if text[:end].endswith(string)]
        if complete:
            longest = max(complete, key=len)
            assert first_stop_string(text, stop) == (end - len(longest), longest)
            return
    assert first_stop_string(text, stop) is None


@st.composite
def streams(draw: st.DrawFn) -> list[int]:
    """Tokens that together are UTF-8 or nearly: characters, bytes that finish nothing, longer tokens, special ones."""
    pieces = st.one_of(
        st.text("abé😀\ufffd", min_size=1, max_size=3).map(ids_of),
        st.sampled_from([[0xF0], [0xF0, 0x9F], [0x80], [0xC3], [ABC], [END_OF_TURN]]),
    )
    return [token_id for piece in draw(st.lists(pieces, min_size=1, max_size=6)) for token_id in piece]


@given(streams(), STOPS, st.booleans(), st.booleans())
def test_what_is_shown_is_never_taken_back_and_never_part_of_a_stop_string(
    tokens: list[int], stop: tuple[str, ...], include: bool, skip: bool
) -> None:
    params: dict[str, Any] = {"stop": stop, "include_stop_str_in_output": include, "skip_special_tokens": skip}
    shown = ""
    for count in range(1, len(tokens) + 1):
        end = end_of(tokens[:count], budget=len(tokens), **params)
        text = text_to_show(tokens[:count], SamplingParams(**params), decode) if end is None else end.text
        assert text.startswith(shown)
        assert include or first_stop_string(text, stop) is None
        if end is not None:
            break
        held = unchanging(decode(tokens[:count], skip))[len(text) :]
        assert held == "" or (not include and any(string.startswith(held) and string != held for string in stop))
        shown = text
    assert end is not None
    whole = decode(tokens[:count], skip)
    found = first_stop_string(whole, stop)
    if found is None:
        assert (end.text, end.finish_reason, end.stop_reason) == (whole, LENGTH, None)
    else:
        begin, string = found
        cut = begin + len(string) if include else begin
        assert (end.text, end.finish_reason, end.stop_reason) == (whole[:cut], STOP, string)


def test_a_stop_string_across_tokens() -> None:
    stop = ("CDEF",)
    assert text_to_show([ABC], SamplingParams(stop=stop), decode) == "AB"
    assert end_of([ABC], stop=stop) is None
    assert end_of([ABC, DEF_TO_J], stop=stop) == Ending("AB", STOP, "CDEF")
    assert end_of([ABC, DEF_TO_J], stop=stop, include_stop_str_in_output=True) == Ending("ABCDEF", STOP, "CDEF")


def test_what_was_held_back_is_shown_once_it_cannot_be_a_stop_string() -> None:
    params = SamplingParams(stop=("CDX",))
    assert text_to_show([ABC], params, decode) == "AB"
    assert text_to_show([ABC, ord("D")], params, decode) == "AB"
    assert text_to_show([ABC, ord("D"), ord("!")], params, decode) == "ABCD!"
    assert end_of([ABC, ord("D")], stop=("CDX",), budget=2) == Ending("ABCD", LENGTH)


def test_a_stop_string_of_any_length_costs_as_much_as_the_text_is_long() -> None:
    params = SamplingParams(stop=("a" * 10_000_000,))
    assert text_to_show(ids_of("b" + "a" * 100), params, decode) == "b"
    assert text_to_show(ids_of("a" * 100), params, decode) == ""


def test_a_stop_string_counts_before_min_tokens() -> None:
    assert end_of(ids_of("no"), stop=("o",), min_tokens=5) == Ending("n", STOP, "o")


# Characters


def test_an_emoji_over_four_tokens_comes_as_one() -> None:
    emoji = ids_of("😀")
    shown = [text_to_show([65, *emoji[:count]], SamplingParams(), decode) for count in range(5)]
    assert shown == ["A", "A", "A", "A", "A😀"]


def test_a_literal_replacement_character_is_late_but_does_not_stall() -> None:
    tokens = ids_of("a\ufffd\ufffd\ufffdb")
    shown = [text_to_show(tokens[:count], SamplingParams(), decode) for count in range(1, len(tokens) + 1)]
    assert shown[3] == "a", "the first U+FFFD may yet be the beginning of something else"
    assert shown[6] == "a\ufffd" and shown[9] == "a\ufffd\ufffd"
    assert shown[-1] == "a\ufffd\ufffd\ufffdb"
    assert end_of(tokens[:-1], budget=len(tokens) - 1) == Ending("a\ufffd\ufffd\ufffd", LENGTH)


def test_an_unfinished_character_at_the_end_is_shown_as_one_replacement() -> None:
    assert end_of([65, 0xF0, 0x9F], budget=3) == Ending("A\ufffd", LENGTH)
    assert end_of([65, 0xF0, 0x9F, EOS]) == Ending("A\ufffd", STOP)


def test_an_unfinished_character_is_no_stop_string() -> None:
    emoji = ids_of("😀")
    assert all(end_of(emoji[:count], stop=("\ufffd",)) is None for count in (1, 2, 3, 4))
    assert end_of([*ids_of("\ufffd"), 65], stop=("\ufffd",)) == Ending("", STOP, "\ufffd")
    assert end_of([*ids_of("\ufffd"), EOS], stop=("\ufffd",)) == Ending("", STOP, "\ufffd"), "and does not leak"


@pytest.mark.parametrize(("text", "settled"), [("", ""), ("a", "a"), ("a\ufffd", "a"), ("\ufffd\ufffd", "\ufffd")])
def test_only_the_last_replacement_character_can_change(text: str, settled: str) -> None:
    assert unchanging(text) == settled


@given(streams(), st.integers(0, NUM_TOKEN_IDS - 1), st.booleans())
def test_the_text_of_more_tokens_starts_with_what_cannot_change(tokens: list[int], last: int, skip: bool) -> None:
    assert decode([*tokens, last], skip).startswith(unchanging(decode(tokens, skip)))


def byte_level_tokenizer() -> Tokenizer:
    """One token a byte, as Qwen3's tokenizer spells and decodes bytes; id = byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(unprintable)}
    tokenizer = Tokenizer(models.BPE(vocab={spelling[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTES = byte_level_tokenizer()


@given(st.lists(st.sampled_from([0x41, 0x80, 0x9F, 0xBD, 0xBF, 0xC3, 0xED, 0xEF, 0xF0, 0xF4]), max_size=8))
def test_a_real_byte_level_decoder_keeps_the_same_law(data: list[int]) -> None:
    text = BYTES.decode(data)
    assert text == decode(data)
    assert not data or text.startswith(unchanging(BYTES.decode(data[:-1])))


# Ids


@pytest.mark.parametrize(
    ("params", "tokens", "expected"),
    [
        ({}, [65, EOS], Ending("A", STOP)),
        ({}, [EOS], Ending("", STOP)),
        ({"skip_special_tokens": False}, [65, EOS], Ending("A", STOP)),
        ({"include_stop_str_in_output": True}, [65, EOS], Ending("A", STOP)),
        ({"include_stop_str_in_output": True, "skip_special_tokens": False}, [65, EOS], Ending("A<eos>", STOP)),
        ({"ignore_eos": True}, [65, EOS], None),
        ({"ignore_eos": True, "stop_token_ids": (EOS,)}, [65, EOS], Ending("A", STOP, EOS)),
        ({"stop_token_ids": (EOS,)}, [65, EOS], Ending("A", STOP)),
        ({"stop_token_ids": (66, 67)}, [65, 67], Ending("A", STOP, 67)),
        ({"stop_token_ids": (66,), "include_stop_str_in_output": True}, [65, 66], Ending("AB", STOP, 66)),
        ({}, [65, END_OF_TURN], None),
    ],
)
def test_ending_ids(params: dict[str, Any], tokens: list[int], expected: Ending | None) -> None:
    assert end_of(tokens, **params) == expected


def test_a_special_token_that_ends_nothing_is_text_unless_skipped() -> None:
    assert end_of([65, END_OF_TURN, 66], budget=3) == Ending("AB", LENGTH)
    assert end_of([65, END_OF_TURN, 66], budget=3, skip_special_tokens=False) == Ending("A<end>B", LENGTH)
    assert end_of([EOS, 66], budget=2, ignore_eos=True, skip_special_tokens=False) == Ending("<eos>B", LENGTH)


def test_the_stop_string_before_the_id_before_the_budget() -> None:
    tokens = [65, 66]
    assert end_of(tokens, budget=2) == Ending("AB", LENGTH)
    assert end_of(tokens, budget=2, stop_token_ids=(66,)) == Ending("A", STOP, 66)
    assert end_of(tokens, budget=2, stop=("B",)) == Ending("A", STOP, "B")
    both: dict[str, Any] = {"stop": ("B",), "stop_token_ids": (66,)}
    assert end_of(tokens, **both) == Ending("A", STOP, 66), "the id's own text is not shown, so it completes nothing"
    assert end_of(tokens, **both, include_stop_str_in_output=True) == Ending("AB", STOP, "B")
