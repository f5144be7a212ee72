"""From the source of a language to a Constraint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from threading import Lock

import numpy as np
from llguidance import LLMatcher

from engine.core.masks import bits_of
from engine.grammar.grammar import Grammar
from engine.grammar.schema import Schema, schema_source
from engine.grammar.trial import compiled, reason, try_to_compile
from engine.grammar.vocabulary import Vocabulary
from engine.tokenizer import Tokenizer

MAX_SOURCE_BYTES = 2**17
MAX_REMEMBERED = 128  # sources that compiled without harm


class GrammarCompiler:
    """Makes Constraints for one model, one for each request. Any thread may call it; llguidance reads the vocabulary
    at first use, which takes a second for a large one.

    All methods raise ValueError, with the library's reason, for a source that is wrong, too large or too costly, and
    for a model that has no end-of-sequence id, whose answers could not end.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Iterable[int], num_token_ids: int) -> None:
        self.tokenizer, self.num_token_ids = tokenizer, num_token_ids
        self.eos_token_ids = tuple(eos_token_ids)
        self._vocabulary: Vocabulary | None = None
        self._lock = Lock()
        self._try = lru_cache(MAX_REMEMBERED)(self._try_to_compile)
        self.not_completing = lru_cache(MAX_REMEMBERED)(self._not_completing)

    @cached_property
    def newlines(self) -> np.ndarray:
        """u32 mask, as ConstraintState has it: the tokens that are line ends and nothing else."""
        texts = map(self.tokenizer.id_to_bytes, range(self.num_token_ids))
        return bits_of([i for i, text in enumerate(texts) if text and not text.strip(b"\n")], self.num_token_ids)

    @cached_property
    def not_ending(self) -> np.ndarray:
        """u32 mask: all ids but those of end-of-sequence."""
        return bits_of(set(range(self.num_token_ids)).difference(self.eos_token_ids), self.num_token_ids)

    @cached_property
    def only_ending(self) -> np.ndarray:
        """u32 mask: the ids of end-of-sequence."""
        return bits_of(self.eos_token_ids, self.num_token_ids)

    def _not_completing(self, tag_id: int, length: int) -> np.ndarray | None:
        """u32 mask: the token of a tag, and all that do not complete the tag after its first `length` bytes. None: all
        ids."""
        tag, texts = self.tokenizer.id_to_bytes(tag_id), map(self.tokenizer.id_to_bytes, range(self.num_token_ids))
        completing = {i for i, text in enumerate(texts) if tag in tag[:length] + text} - {tag_id}
        if not completing:
            return None
        return bits_of(range(self.num_token_ids), self.num_token_ids) & ~bits_of(completing, self.num_token_ids)

    def json_object(self) -> Grammar:
        """Any JSON object."""
        return self._compile(schema_source({"type": "object"}))

    def json_schema(self, schema: Schema) -> Grammar:
        """JSON that a schema allows."""
        return self.compile(schema_source(schema))

    def regex(self, pattern: str) -> Grammar:
        """Text that a regular expression (of Rust's `regex`) matches from its beginning to its end."""
        return self.compile(LLMatcher.grammar_from_regex(pattern))

    def choice(self, options: Sequence[str]) -> Grammar:
        """One of these texts."""
        if not options:
            raise ValueError("the list is empty: there is nothing to choose from")
        source = "start: " + " | ".join(map(json.dumps, options))
        return self._compile(checked_size(source))

    def grammar(self, text: str) -> Grammar:
        """The language of a grammar, as Lark (llguidance's dialect) or GBNF (llama.cpp's) writes it."""
        return self.compile(text, is_gbnf=True)

    def compile(self, source: str, *, is_gbnf: bool = False) -> Grammar:
        """What llguidance makes of a source in one of its own forms, or perhaps in GBNF."""
        return self._compile(self._try(checked_size(source), is_gbnf))

    def _try_to_compile(self, source: str, is_gbnf: bool) -> str:
        added = self.tokenizer.added_tokens.items()
        special = {text: token_id for text, token_id in added if token_id < self.num_token_ids}
        return try_to_compile(source, special, is_gbnf=is_gbnf)

    def _compile(self, source: str) -> Grammar:
        # Not kept for the next request: all that begins from one matcher shares its lexer, and what one request makes
        # of that must not harm another.
        matcher = compiled(self._known_vocabulary().library, source)
        if error := reason(matcher):
            raise ValueError(error)
        grammar = Grammar(matcher, self.num_token_ids)
        if not np.any(grammar.begin().allowed()):
            raise ValueError("no answer is possible")
        return grammar

    def _known_vocabulary(self) -> Vocabulary:
        with self._lock:
            if self._vocabulary is None:
                if not self.eos_token_ids:
                    raise ValueError("this model has no end-of-sequence id, so an answer in a given format cannot end")
                self._vocabulary = Vocabulary(self.tokenizer, self.eos_token_ids, self.num_token_ids)
            return self._vocabulary


def checked_size(source: str) -> str:
    """The source. Errors: ValueError for one that is too large."""
    if (size := len(source.encode())) > MAX_SOURCE_BYTES:
        raise ValueError(f"it takes {size} bytes, and may take {MAX_SOURCE_BYTES}")
    return source
