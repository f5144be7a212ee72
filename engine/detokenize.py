"""Token ids to text, one id at a time, for streams.

The bytes of each token go through an incremental UTF-8 decoder, which keeps back a character until its last byte has
come, and gives U+FFFD only for bytes that can never become one. So the pieces joined are the text of the ids joined,
a character in several tokens comes once and whole, a U+FFFD that the model means is text like any other, and a token
costs the same wherever it stands.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable

from engine.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one sample as it grows. push and flush joined equal `Tokenizer.decode` of all the ids."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = False  # has a character begun whose other bytes are still to come?

    def push(self, token_id: int) -> str:
        """What this token adds to the text: whole characters, perhaps none."""
        if token_id in self._skipped:
            return ""
        piece = self._tokenizer.id_to_bytes(token_id)
        if not self.pending and piece.isascii():  # most tokens: they need no decoder
            return piece.decode("ascii")
        text = self._decoder.decode(piece)
        begun = self._decoder.getstate()[0]
        # Half a surrogate: Python waits for its last byte, for the sake of other error handlers. It is no character.
        if len(begun) == 2 and begun[0] == 0xED and begun[1] >= 0xA0:
            text += self._decoder.decode(b"", final=True)
            begun = b""
        self.pending = bool(begun)
        return text

    def flush(self) -> str:
        """At the sample's end: U+FFFD for a character that was begun and never ended, else nothing."""
        self.pending = False
        return self._decoder.decode(b"", final=True)


def detokenizers(tokenizer: Tokenizer) -> Callable[[bool], IncrementalDetokenizer]:
    """Whether to skip special tokens -> a detokenizer of one sample: what an engine makes them with."""
    return lambda skip_special_tokens: IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
