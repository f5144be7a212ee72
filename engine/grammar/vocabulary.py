"""A model's tokens as llguidance wants to know them.

The bytes of each token come from `engine.tokenizer`, so that a grammar follows the text that clients read. Every added
token is special here, also one such as `<think>` that Qwen's tokenizer files call not special: else a string of an
answer could hold it, and end the thought or begin a call.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

from engine.tokenizer import Tokenizer


class Vocabulary:
    """What `TokenizerWrapper` asks for. `library` is the same for the library's own use."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int], num_token_ids: int) -> None:
        self._tokenizer = tokenizer
        self._added = frozenset(tokenizer.added_tokens.values())
        self.eos_token_id = eos_token_ids[0]
        self.tokens = [tokenizer.id_to_bytes(token_id) for token_id in range(num_token_ids)]
        self.special_token_ids = sorted(token_id for token_id in self._added if token_id < num_token_ids)
        self.library = LLTokenizer(TokenizerWrapper(self), eos_token=list(eos_token_ids))

    def __call__(self, text: str) -> list[int]:
        """The ids of a text that an answer must go on with: as the model knows it, if it can be written so."""
        token_ids = self._tokenizer.encode(text)
        written = b"".join(map(self._tokenizer.id_to_bytes, token_ids))
        # The tokenizer normalizes, and reads `<think>` in a text as that token, which is no text.
        if (
            written != text.encode()
            or not self._added.isdisjoint(token_ids)
            or max(token_ids, default=0) >= len(self.tokens)
        ):
            return self.library.greedy_tokenize(text)
        return token_ids
