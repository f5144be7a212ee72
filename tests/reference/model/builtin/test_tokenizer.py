"""The tokenizer of the built-in models against Qwen's: same rules, same special tokens, same template."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from reference.model.builtin.checkpoint import BUILTIN, NAMES
from reference.model.config import ModelConfig

# Qwen3's added tokens in Qwen3's order; those from <tool_call> on are not "special": decoding keeps them.
SPECIAL = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>"
).split()
ADDED = (
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
).split()
QWEN_TEMPLATE_SHA256 = "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5"
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tokenizer(name: str = "dense") -> Tokenizer:
    return Tokenizer.from_file(str(BUILTIN / name / "tokenizer.json"))


def read(name: str, file: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((BUILTIN / name / file).read_text(encoding="utf-8"))
    return parsed


DENSE = tokenizer()


def test_both_models_have_one_tokenizer() -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (BUILTIN / "dense" / file).read_bytes() == (BUILTIN / "moe" / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_special_tokens_are_qwens_and_come_last(name: str) -> None:
    loaded, size = tokenizer(name), ModelConfig.from_file(BUILTIN / name / "config.json").vocab_size
    assert loaded.get_vocab_size() == size == 4096
    first = size - len(SPECIAL) - len(ADDED)
    for offset, token in enumerate([*SPECIAL, *ADDED]):
        assert loaded.token_to_id(token) == first + offset
        assert loaded.encode(token).ids == [first + offset]
    flags = {token["content"]: token["special"] for token in read(name, "tokenizer.json")["added_tokens"]}
    assert flags == dict.fromkeys(SPECIAL, True) | dict.fromkeys(ADDED, False)


@pytest.mark.parametrize("name", NAMES)
def test_configs_name_the_same_ids(name: str) -> None:
    loaded = tokenizer(name)
    end_of_turn, end_of_text = loaded.token_to_id("<|im_end|>"), loaded.token_to_id("<|endoftext|>")
    assert read(name, "generation_config.json")["eos_token_id"] == [end_of_turn, end_of_text]
    assert read(name, "config.json")["eos_token_id"] == end_of_turn
    assert read(name, "config.json")["bos_token_id"] == end_of_text
    config = read(name, "tokenizer_config.json")
    assert (config["eos_token"], config["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    decoder = {loaded.token_to_id(token["content"]): int(id_) for id_, token in config["added_tokens_decoder"].items()}
    assert len(decoder) == len(SPECIAL) + len(ADDED)
    assert all(key == value for key, value in decoder.items())


@pytest.mark.parametrize("name", NAMES)
def test_rules_and_template_are_qwens(name: str) -> None:
    parsed = read(name, "tokenizer.json")
    assert parsed["normalizer"] == {"type": "NFC"}
    assert parsed["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] == QWEN_SPLIT
    template = read(name, "tokenizer_config.json")["chat_template"]
    assert hashlib.sha256(template.encode()).hexdigest() == QWEN_TEMPLATE_SHA256


def test_every_byte_has_a_token() -> None:
    vocabulary = DENSE.get_vocab(with_added_tokens=False)
    assert set(ByteLevel.alphabet()) <= vocabulary.keys()
    assert sorted(vocabulary.values()) == list(range(4096 - len(SPECIAL) - len(ADDED)))


@given(st.text())
def test_text_in_normal_form_comes_back(text: str) -> None:
    normal = DENSE.normalizer.normalize_str(text)
    assert DENSE.decode(DENSE.encode(text).ids, skip_special_tokens=False) == normal


@given(st.binary(max_size=64))
def test_every_byte_string_can_be_spelled(data: bytes) -> None:
    character_of = {byte: character for character, byte in byte_of_character().items()}
    vocabulary = DENSE.get_vocab()
    ids = [vocabulary[character_of[byte]] for byte in data]
    assert DENSE.decode(ids, skip_special_tokens=False) == data.decode("utf-8", errors="replace")


def byte_of_character() -> dict[str, int]:
    """GPT-2's map of bytes to visible characters, which byte-level BPE writes its vocabulary in."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


def test_digits_stand_alone() -> None:
    assert DENSE.encode("1234").tokens == ["1", "2", "3", "4"]


def test_other_scripts_and_emoji_take_several_tokens() -> None:
    for text in ("\N{GRINNING FACE}", "你", "犬"):
        assert len(DENSE.encode(text).ids) > 1
