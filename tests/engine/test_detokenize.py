"""The pieces of a stream, joined, are the text of all ids, for any ids; and each is whole characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from engine.detokenize import IncrementalDetokenizer
from engine.tokenizer import Tokenizer
from tests.engine.artefacts import qwen3_tokenizer_directory


class Bytes:
    """A tokenizer whose id is its byte, but for one special token."""

    special_token_ids = frozenset({256})

    def id_to_bytes(self, token_id: int) -> bytes:
        return b"<special>" if token_id == 256 else bytes([token_id])

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and i == 256)]
        return b"".join(map(self.id_to_bytes, kept)).decode(errors="replace")


@pytest.fixture(scope="module", params=["bytes", "dense", pytest.param("qwen3", marks=pytest.mark.network)])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    if request.param == "bytes":
        return Bytes()
    assert request.config.cache is not None
    directory: Path = BUILTIN_DIRECTORY / "dense"
    if request.param == "qwen3":
        directory = qwen3_tokenizer_directory(request.config.cache)
    return Tokenizer.from_directory(directory)


def pieces(tokenizer: Any, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
    return [*(detokenizer.push(id_) for id_ in ids), detokenizer.flush()]


@settings(deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_ids_give_the_text_that_decoding_them_gives(tokenizer: Any, data: st.DataObject, skip: bool) -> None:
    highest = 256 if isinstance(tokenizer, Bytes) else tokenizer.num_token_ids + 10
    ids = data.draw(st.lists(st.integers(0, highest) | st.sampled_from(sorted(tokenizer.special_token_ids))))
    assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(ids=st.lists(st.sampled_from([*b"a\x80\x9f\xa0\xbf\xc0\xc3\xe0\xe2\xed\xef\xf0\xf4\xf5\xff", 256]), max_size=12))
def test_bytes_that_are_no_utf8_give_what_decoding_them_at_once_gives(ids: list[int]) -> None:
    assert "".join(pieces(Bytes(), ids)) == Bytes().decode(ids)


# What a character's bytes are before the last of them has come. Its last byte tells 64 neighbours apart.
BEGUN = {
    encoded[:end]
    for point in range(0x80, 0x110000, 0x40)
    if not 0xD800 <= point < 0xE000
    for encoded in [chr(point).encode()]
    for end in range(1, len(encoded))
}
# Where Python's decoder must look at more than one byte: surrogates, overlong forms, and what is beyond U+10FFFF.
ODD_BYTES = [*b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff"]


@settings(max_examples=300)
@given(ids=st.lists(st.sampled_from(ODD_BYTES) | st.integers(0, 255), max_size=12))
@example(ids=[0xED, 0xA0])
@example(ids=[0xED, 0xBF, 0x80])
@example(ids=[0xED, 0x9F])
@example(ids=[0xED, 0xED, 0xA0, 0xED])
def test_a_character_is_pending_where_the_text_ends_inside_one(ids: list[int]) -> None:
    """After every byte; and what was given out and what the flush would add are the whole text."""
    detokenizer, given_out = IncrementalDetokenizer(Bytes()), ""  # type: ignore[arg-type]
    for count, byte in enumerate(ids, start=1):
        given_out += detokenizer.push(byte)
        begun = any(bytes(ids[count - length : count]) in BEGUN for length in range(1, min(3, count) + 1))
        assert detokenizer.pending == begun
        assert given_out + "\N{REPLACEMENT CHARACTER}" * begun == Bytes().decode(ids[:count])
    pending = detokenizer.pending
    assert detokenizer.flush() == "\N{REPLACEMENT CHARACTER}" * pending
    assert not detokenizer.pending


@settings(deadline=None)
@given(text=st.text())
@example(text="a\N{REPLACEMENT CHARACTER}b👩‍👩‍👧‍👦🪷")
def test_characters_come_once_and_whole_as_soon_as_they_can(text: str) -> None:
    detokenizer = IncrementalDetokenizer(Bytes())  # type: ignore[arg-type]
    for character in text:
        encoded = character.encode()
        assert [detokenizer.push(byte) for byte in encoded] == [""] * (len(encoded) - 1) + [character]


def test_an_emoji_over_several_tokens_streams_as_one(tokenizer: Any) -> None:
    ids = [*"🪷".encode()] if isinstance(tokenizer, Bytes) else tokenizer.encode("🪷")
    assert len(ids) > 1
    assert pieces(tokenizer, ids) == [""] * (len(ids) - 1) + ["🪷", ""]


def test_a_character_that_never_ends_is_told_of_at_the_end() -> None:
    assert pieces(Bytes(), [*b"a", *"🪷".encode()[:3]]) == ["a", "", "", "", "\N{REPLACEMENT CHARACTER}"]
    assert pieces(Bytes(), [*"🪷".encode()[:3], *b"a"]) == ["", "", "", "\N{REPLACEMENT CHARACTER}a", ""]


def test_a_skipped_special_token_inside_a_character_does_not_break_it() -> None:
    first, second = "é".encode()
    assert pieces(Bytes(), [first, 256, second]) == ["", "", "é", ""]
    assert pieces(Bytes(), [first, 256, second], False) == [
        "",
        "\N{REPLACEMENT CHARACTER}<special>",
        "\N{REPLACEMENT CHARACTER}",
        "",
    ]


def test_a_token_costs_the_same_wherever_it_stands() -> None:
    """The work is counted, not timed: each push looks at its own token's bytes, once, and at no others."""
    looked_at: list[int] = []

    class Counted(Bytes):
        def id_to_bytes(self, token_id: int) -> bytes:
            looked_at.append(token_id)
            return super().id_to_bytes(token_id)

    detokenizer = IncrementalDetokenizer(Counted())  # type: ignore[arg-type]
    ids = [*"né".encode()] * 500
    for count, id_ in enumerate(ids, start=1):
        detokenizer.push(id_)
        assert len(looked_at) == count and looked_at[-1] == id_
        held, _ = detokenizer._decoder.getstate()
        assert len(held) < 4
