"""Two vocabularies: the built-in models' (4,096 ids, all of Qwen3's special tokens) and the tests' own (264 ids)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.grammar import GrammarCompiler
from engine.tokenizer import Tokenizer
from reference.model import builtin
from tests.engine.artefacts import qwen3_tokenizer_directory
from tests.engine.text_side import write_text_side


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_directory(Path(builtin.__file__).parent / "dense")


@pytest.fixture(scope="session")
def small_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("small")
    write_text_side(directory)
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="session")
def qwen3_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Qwen3's own, for tests with the marker `network`."""
    return Tokenizer.from_directory(qwen3_tokenizer_directory(request.config.cache))


@pytest.fixture(scope="session")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler_of(tokenizer)


@pytest.fixture(scope="session")
def small_compiler(small_tokenizer: Tokenizer) -> GrammarCompiler:
    return compiler_of(small_tokenizer)


@pytest.fixture(scope="module")
def untried() -> Iterator[None]:
    """Sources are compiled without a trial, for tests of many harmless ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.grammar.compiler.try_to_compile", lambda source, special_tokens, is_gbnf: source)
        yield


def compiler_of(tokenizer: Tokenizer) -> GrammarCompiler:
    """With the two end-of-sequence ids that Qwen3's chat models have."""
    ends = [tokenizer.added_tokens[text] for text in ("<|im_end|>", "<|endoftext|>")]
    return GrammarCompiler(tokenizer, ends, tokenizer.num_token_ids)
