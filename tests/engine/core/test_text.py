"""The text of a sample as it grows, token by token: what the specification says of all its tokens, at an even cost.

The specification decodes the whole output for every token; `TextStream` sees each token once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.core.text import TextStream
from reference.model.history_runner import HistoryModel
from reference.serving.request import SamplingParams
from reference.serving.stop import Ending, ending, text_to_show
from tests.engine.core.running import MODEL, engine_of, request, run
from tests.engine.core.vocabulary import TinyTokenizer, detokenizer
from tests.reference.serving.fakes import (
    ABC,
    DEF_TO_J,
    E_ACUTE_SPACE,
    END_OF_TURN,
    EOS,
    VOCAB_SIZE,
    decode,
    ids_of,
)

STOP_ID = ord("c")


def specified(token_ids: Sequence[int], params: SamplingParams, budget: int) -> tuple[list[str], Ending | None]:
    """What is shown after each token, and the end if there is one."""
    shown, pieces = "", []
    for count in range(1, len(token_ids) + 1):
        end = ending(token_ids[:count], params, decode=decode, eos_token_ids={EOS}, budget=budget)
        text = text_to_show(token_ids[:count], params, decode) if end is None else end.text
        assert text.startswith(shown)
        pieces.append(text.removeprefix(shown))
        shown = text
        if end is not None:
            return pieces, end
    return pieces, None


def streamed(
    token_ids: Sequence[int], params: SamplingParams, budget: int, stream: TextStream | None = None
) -> tuple[list[str], str | None, bool]:
    """The pieces that a stream gives, the stop string that ended it, and whether anything did. As the engine asks."""
    stream = stream or TextStream.of(params, detokenizer)
    pieces = []
    for count, token_id in enumerate(token_ids, start=1):
        is_ending_id = (token_id == EOS and not params.ignore_eos) or token_id in params.stop_token_ids
        if is_ending_id or count >= budget:
            hides = is_ending_id and not params.include_stop_str_in_output
            piece, stop = stream.finish(None if hides else token_id)
            return [*pieces, piece], stop, True
        piece, stop = stream.push(token_id)
        pieces.append(piece)
        if stop is not None:
            return pieces, stop, True
    return pieces, None, False


def check(token_ids: Sequence[int], params: SamplingParams, budget: int) -> None:
    expected, end = specified(token_ids, params, budget)
    pieces, stop, ended = streamed(token_ids, params, budget)
    assert pieces == expected
    assert ended == (end is not None)
    assert stop == (end.stop_reason if end is not None and isinstance(end.stop_reason, str) else None)


# Few letters, so that stop strings overlap; characters of two and four bytes; U+FFFD itself.
LETTERS = "ab\u00e9\ufffd"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4) | st.sampled_from(["CDEF", "BC", "<e", "J"]), max_size=4)
WHOLE = st.text(LETTERS + "\U0001f600", min_size=1, max_size=3).map(ids_of)
PIECES = st.sampled_from(
    [
        [0xF0],
        [0xF0, 0x9F],
        [0xF0, 0x9F, 0x98],
        [0x80],
        [0xC3],
        [0xA9],
        [0xFF],
        [0xEF, 0xBF],  # the beginning of U+FFFD
        [0xED],
        [0xED, 0xA0],  # half a surrogate
        [0xED, 0xBF],
        [0xA0, 0x80],
        [ABC],
        [DEF_TO_J],
        [E_ACUTE_SPACE],
        [END_OF_TURN],
        [EOS],
        [STOP_ID],
    ]
)
STREAMS = st.lists(WHOLE | PIECES, min_size=1, max_size=10).map(lambda pieces: [i for piece in pieces for i in piece])
PARAMS = st.builds(
    SamplingParams,
    stop=STOPS.map(tuple),
    stop_token_ids=st.sampled_from([(), (STOP_ID,), (0xED, END_OF_TURN)]),
    include_stop_str_in_output=st.booleans(),
    skip_special_tokens=st.booleans(),
    ignore_eos=st.booleans(),
)


@settings(max_examples=400)
@given(STREAMS, PARAMS, st.sampled_from([1, 3, 7, 100]))
@example([*ids_of("\ufffd"), 0xF0, 0x9F], SamplingParams(stop=("\ufffd",)), 100)
@example([*ids_of("a\ufffd"), EOS], SamplingParams(stop=("\ufffd",)), 100)
@example(ids_of("abab"), SamplingParams(stop=("bb", "aba", "ba")), 100)
def test_each_token_shows_what_is_specified(token_ids: list[int], params: SamplingParams, budget: int) -> None:
    check(token_ids, params, budget)


@settings(max_examples=150)
@given(st.lists(st.integers(0, 258), min_size=1, max_size=30), PARAMS)
def test_any_tokens_show_what_is_specified(token_ids: list[int], params: SamplingParams) -> None:
    check(token_ids, params, budget=100)


@given(STREAMS, PARAMS)
def test_what_is_left_of_a_sample_that_cannot_go_on_is_its_whole_text(
    token_ids: list[int], params: SamplingParams
) -> None:
    stream = TextStream.of(params, detokenizer)
    shown = ""
    for token_id in token_ids:
        piece, stop = stream.push(token_id)
        shown += piece
        if stop is not None:
            return
    assert shown + stream.rest() == decode(token_ids, params.skip_special_tokens)


def test_the_check_sees_a_stream_that_shows_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: nothing is held back for a stop string that may have begun."""
    token_ids, params = [ABC, ord("!")], SamplingParams(stop=("CDX",))
    check(token_ids, params, budget=100)
    monkeypatch.setattr(TextStream, "_possible_beginning", lambda self, text: 0)
    with pytest.raises(AssertionError):
        check(token_ids, params, budget=100)


# What it costs


def kept(stream: TextStream) -> int:
    return len(stream._kept)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("n\u00e9", ()),
        ("\ufffd", ()),
        ("n\u00e9", ("x" * 20,)),
        ("ab", ("ab" * 10 + "c",)),
        ("\ufffd", ("\ufffd" * 10 + "c",)),
        ("aab", ("abb", "aaab")),
    ],
)
def test_what_is_kept_does_not_grow_with_the_text(text: str, stop: tuple[str, ...], include: bool) -> None:
    params = SamplingParams(stop=stop, include_stop_str_in_output=include)
    stream = TextStream.of(params, detokenizer)
    longest = max(map(len, stop), default=0)
    for token_id in ids_of(text * 300):
        _, found = stream.push(token_id)
        assert found is None
        assert kept(stream) <= 2 * longest + 1


def test_a_token_costs_the_same_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted, not timed: bytes that are decoded, and characters that are searched for stop strings."""
    decoded, searched = [0], [0]

    def id_to_bytes(self: TinyTokenizer, token_id: int) -> bytes:
        decoded[0] += 1
        return bytes([token_id])

    def find(self: TextStream, text: str) -> Any:
        searched[0] += len(text) - max(0, self._searched - self._longest + 1 - self._base)
        return look(self, text)

    look = TextStream._find
    monkeypatch.setattr(TinyTokenizer, "id_to_bytes", id_to_bytes)
    monkeypatch.setattr(TextStream, "_find", find)
    params = SamplingParams(stop=("xyz", "abababx"))
    stream = TextStream.of(params, detokenizer)
    costs = set()
    for number, token_id in enumerate(ids_of("ab" * 500)):
        decoded[0] = searched[0] = 0
        stream.push(token_id)
        if number > 20:
            costs.add((decoded[0], searched[0]))
    assert len(costs) == 1 and max(costs) <= (1, 8)


def test_a_stop_string_of_any_length_costs_no_more_than_the_text() -> None:
    """The text could begin it for as long as it goes on: all of it is held back, and comes in the end."""
    params = SamplingParams(stop=("a" * 10_000_000,))
    token_ids = ids_of("b" + "a" * 300)
    pieces, stop, _ = streamed(token_ids, params, budget=len(token_ids))
    assert pieces == ["b", *[""] * 299, "a" * 300] and stop is None


# Over an engine


class Scripted(HistoryModel):
    """Says the script after the prompt (7,)."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__(VOCAB_SIZE)
        self._next = {
            MODEL.last_logits((7, *script[:said])).tobytes(): token_id for said, token_id in enumerate(script)
        }

    def logits(self, seed: int) -> np.ndarray:
        logits = super().logits(seed)
        token_id = self._next.get(logits.tobytes())
        if token_id is not None:
            logits[token_id] = 30.0
        return logits


def test_stop_strings_leak_no_part_of_themselves() -> None:
    """`DEFGHIJ` after `ABC`: token by token, over an engine whose model says just that."""
    said = [*ids_of("xABCDEFGHIJy"), EOS]
    model = Scripted(said)
    engine = engine_of(model=model)
    outputs = run(engine, request(temperature=0.0, max_tokens=20, stop=("CDEFGHIJ",), ignore_eos=False))["r", 0]
    assert [output.text for output in outputs] == ["x", "A", "B", *[""] * 8]
    assert outputs[-1].stop_reason == "CDEFGHIJ"
