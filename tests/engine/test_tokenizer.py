"""Text and ids, for the built-in models' tokenizer and for Qwen3's real one; the tokenizers library is the oracle."""

from __future__ import annotations

import threading
import time
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from engine.checkpoint import CheckpointError
from engine.checkpoint.resolve import BUILTIN_DIRECTORY
from engine.tokenizer import Tokenizer
from tests.engine.artefacts import qwen3_tokenizer_directory

DENSE = BUILTIN_DIRECTORY / "dense"


def both(directory: Path) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    return Tokenizer.from_directory(directory), tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


@pytest.fixture(
    scope="module", params=["dense", pytest.param("qwen3", marks=pytest.mark.network)], name="pair", ids=str
)
def pair_fixture(request: pytest.FixtureRequest) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Ours, and the library's."""
    assert request.config.cache is not None
    return both(DENSE if request.param == "dense" else qwen3_tokenizer_directory(request.config.cache))


Pair = tuple[Tokenizer, tokenizers.Tokenizer]


@settings(deadline=None)
@given(data=st.data())
def test_any_ids_decode_as_in_the_library(pair: Pair, data: st.DataObject) -> None:
    ours, theirs = pair
    special = sorted(ours.special_token_ids)
    ids = data.draw(st.lists(st.integers(0, ours.num_token_ids - 1) | st.sampled_from(special), max_size=30))
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back_in_its_normal_form(pair: Pair, text: str) -> None:
    ours, theirs = pair
    ids = ours.encode(text)
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)
    assert b"".join(map(ours.id_to_bytes, ids)).decode() == unicodedata.normalize("NFC", text)


@settings(deadline=None)
@given(text=st.text(alphabet="<|>_imstarend\n x", max_size=40))
def test_written_special_tokens_stay_text_if_asked(pair: Pair, text: str) -> None:
    ours, _ = pair
    text += "<|im_end|>"
    ids = ours.encode(text, parse_special=False)
    assert not ours.special_token_ids & set(ids) and ours.decode(ids) == text
    assert ours.encode(text)[-1] in ours.special_token_ids


def test_every_id_has_bytes_and_ids_beyond_have_none(pair: Pair) -> None:
    ours, theirs = pair
    assert ours.num_token_ids == max(theirs.get_vocab(with_added_tokens=True).values()) + 1
    assert all(ours.id_to_bytes(id_) for id_ in range(ours.num_token_ids))
    for beyond in (-1, ours.num_token_ids, 2**40):
        assert (ours.id_to_bytes(beyond), ours.token_text(beyond), ours.decode([beyond], False)) == (b"", "", "")


def test_special_tokens_are_parsed_skipped_and_named(pair: Pair) -> None:
    ours, _ = pair
    ids = ours.encode("<|im_start|>user\nHi<|im_end|>")
    assert (ours.token_text(ids[0]), ours.token_text(ids[-1])) == ("<|im_start|>", "<|im_end|>")
    assert ours.decode(ids) == "user\nHi" and ours.decode(ids, False) == "<|im_start|>user\nHi<|im_end|>"
    (think,) = ours.encode("<think>")
    assert think not in ours.special_token_ids and ours.decode([think]) == "<think>"


@pytest.mark.network
def test_known_answers_of_qwen3(request: pytest.FixtureRequest) -> None:
    assert request.config.cache is not None
    tokenizer = Tokenizer.from_directory(qwen3_tokenizer_directory(request.config.cache))
    assert tokenizer.num_token_ids == 151669
    assert tokenizer.encode("Hello world") == [9707, 1879]
    assert tokenizer.encode("你好，世界") == [108386, 3837, 99489]  # noqa: RUF001
    assert tokenizer.encode("<|im_start|><|im_end|><think></think>") == [151644, 151645, 151667, 151668]
    assert tokenizer.special_token_ids == frozenset(range(151643, 151657))
    lotus = tokenizer.encode("🪷")
    assert [tokenizer.token_text(id_) for id_ in lotus[:2]] == ["�", "�"]
    assert b"".join(map(tokenizer.id_to_bytes, lotus)) == "🪷".encode()


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    tokenizer = Tokenizer.from_directory(BUILTIN_DIRECTORY / "dense")
    encoding = threading.Thread(target=tokenizer.encode, args=("hello world " * 40_000,))
    times = [time.monotonic()]
    encoding.start()
    while encoding.is_alive():
        times.append(time.monotonic())
        time.sleep(0.001)
    times.append(time.monotonic())
    longest_wait = max(after - before for before, after in pairwise(times))
    assert longest_wait < (times[-1] - times[0]) / 2


def test_a_lone_surrogate_is_refused_by_its_place() -> None:
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        Tokenizer.from_directory(DENSE).encode("ab\ud83d")


def byte_level(directory: Path, added: list[AddedToken]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({character: id_ for id_, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(added)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    tokenizer.save(str(directory / "tokenizer.json"))
    return Tokenizer.from_directory(directory)


def test_all_bytes_are_found_in_the_alphabet(tmp_path: Path) -> None:
    tokenizer = byte_level(tmp_path, [])
    assert {tokenizer.id_to_bytes(id_) for id_ in range(tokenizer.num_token_ids)} == {bytes([b]) for b in range(256)}


def test_added_tokens_are_written_in_characters_not_in_the_alphabet(tmp_path: Path) -> None:
    # Read through the alphabet, as the library does, "né" would end in the byte E9, which is no UTF-8.
    tokenizer = byte_level(tmp_path, [AddedToken("né"), AddedToken("two words", special=True)])
    ids = tokenizer.encode("nétwo words")
    assert ids == [256, 257] and tokenizer.special_token_ids == {257}
    assert tokenizer.id_to_bytes(256) == "né".encode() and tokenizer.id_to_bytes(257) == b"two words"


@pytest.mark.parametrize("parse_special", [True, False])
def test_truncation_and_padding_in_the_file_do_not_touch_prompts(tmp_path: Path, parse_special: bool) -> None:
    tokenizer = byte_level(tmp_path, [])
    assert tokenizer.decode(tokenizer.encode("abcdefgh", parse_special=parse_special)) == "abcdefgh"
    assert len(tokenizer.encode("a", parse_special=parse_special)) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no tokenizer.json"),
        ("{", "is not a tokenizer"),
        (tokenizers.Tokenizer(models.WordLevel({"a": 0}, "a")).to_str(), "not a byte-level BPE tokenizer"),
        (tokenizers.Tokenizer(models.BPE()).to_str(), "not a byte-level BPE tokenizer"),
    ],
)
def test_another_kind_of_tokenizer_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as raised:
        Tokenizer.from_directory(tmp_path)
    assert str(tmp_path) in str(raised.value)
