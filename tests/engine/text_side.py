"""A checkpoint directory small enough for tests: a byte-level tokenizer, a chat template, a config, no weights."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from engine.tokenizer import Tokenizer

EMPTY_THOUGHT = "<think>\n\n</think>\n\n"  # where thinking is switched off
OPEN_THOUGHT = "<think>\n"  # where a template has its model always think
CHAT_TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- if messages[0].content == 'refuse me' %}{{- raise_exception('no such talk') }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
    {%- if always_think %}{{- '<think>\\n' }}{% endif %}
{%- endif %}"""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("th", "he", "in", "an", "ou")


def write_text_side(directory: Path) -> None:
    """A byte-level tokenizer of 256 bytes, a few merges and three special tokens, and a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: id_ for id_, token in enumerate((*alphabet, *MERGES))}
    tokenizer = LibraryTokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_model(directory: Path) -> None:
    """A checkpoint directory without weights (load it with `--load-format dummy`) for the text side above."""
    write_text_side(directory)
    config = {
        "model_type": "qwen3",
        "vocab_size": 272,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "eos_token_id": Tokenizer.from_directory(directory).encode("<|im_end|>")[0],
    }
    (directory / "config.json").write_text(json.dumps(config))
