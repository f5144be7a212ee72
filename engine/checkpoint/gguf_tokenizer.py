"""The tokenizer in a GGUF file's metadata, written as the files a checkpoint directory has.

Byte-level BPE of the "smollm" kind: digits stand alone, then GPT-2's pattern splits the text, and bytes are mapped to
printable characters. Source: llama.cpp's `LLAMA_VOCAB_PRE_TYPE_SMOLLM`; the SmolLM2 tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.checkpoint.error import CheckpointError

_CONTROL = 3  # GGUF's token type of special tokens
_END_OF_TEXT = "<|endoftext|>"


def write_tokenizer(field: Callable[[str], Any], directory: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json.

    field: gives an entry of the GGUF file's metadata. Errors: CheckpointError for another kind of tokenizer.
    """
    kind = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        raise CheckpointError(f"the GGUF file's tokenizer is {kind}; known is ('gpt2', 'smollm')")
    tokens: list[str] = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    types = field("tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    tokenizer.save(str(directory / "tokenizer.json"))

    eos = field("tokenizer.ggml.eos_token_id")
    named = {name: tokens[field(f"tokenizer.ggml.{name}_token_id")] for name in ("bos", "eos", "unknown", "padding")}
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": named["bos"],
            "eos_token": named["eos"],
            "unk_token": named["unknown"],
            "pad_token": named["padding"],
            "model_max_length": field("llama.context_length"),
            "clean_up_tokenization_spaces": False,
        },
    )
    (directory / "chat_template.jinja").write_text(field("tokenizer.chat_template"), encoding="utf-8")
    # Greedy unless a request says otherwise: drawn at temperature 1, a model this small wanders off.
    generation = {"eos_token_id": [eos, tokens.index(_END_OF_TEXT)], "do_sample": False}
    _write_json(directory / "generation_config.json", generation)


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
