"""Text to token ids and back, for byte-level BPE tokenizers (every Qwen tokenizer is one).

A token is a sequence of bytes. `tokenizer.json` writes a byte as a printable character: those that print stand for
themselves, the others are shifted to U+0100 and up (GPT-2's table). The text of ids is the UTF-8 text of their bytes,
joined; bytes that are no UTF-8 become U+FFFD. Source: GPT-2's `bytes_to_unicode`; the tokenizers library.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer
from tokenizers import decoders, models

from engine.checkpoint.error import CheckpointError


def _byte_of_character() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    shifted = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(shifted)}


_BYTE_OF = _byte_of_character()


class Tokenizer:
    """A checkpoint's tokenizer. Ids from `num_token_ids` up are padding of the embedding and have no text.

    num_token_ids: the highest id that has a token, added tokens included, plus one.
    special_token_ids: those that `skip_special_tokens` skips.
    added_tokens: text -> id of all tokens that a text is searched for before it is split, special or not.
    """

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise CheckpointError(f"{file.parent} has no {file.name}")
        try:
            self._tokenizer = _Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises Exception itself
            raise CheckpointError(f"{file} is not a tokenizer: {error}") from None
        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel) or not isinstance(
            self._tokenizer.model, models.BPE
        ):
            raise CheckpointError(f"{file} is not a byte-level BPE tokenizer, the kind that is supported")
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._file = file
        self._literal: _Tokenizer | None = None
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {id_: token.content for id_, token in added.items()}
        self.added_tokens = {text: id_ for id_, text in self._added.items()}
        self._bytes: dict[int, bytes] = {}
        self.special_token_ids = frozenset(id_ for id_, token in added.items() if token.special)
        self.num_token_ids = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer:
        """The tokenizer of a checkpoint directory. Errors: CheckpointError that names the file."""
        return cls(Path(directory) / "tokenizer.json")

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """The ids of a text.

        add_special: put around it what the tokenizer puts around a text (Qwen3's puts nothing).
        parse_special: read `<|im_end|>` in the text as that special token; else as the characters it is written in.
        Errors: ValueError for a lone surrogate, which is no character and has no UTF-8.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"the text holds a lone surrogate at character {error.start}") from None
        tokenizer = self._tokenizer if parse_special else self._literal_tokenizer()
        # As a batch of one: the library lets other threads run during a batch, and not during `encode`.
        return tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids. Ids without a token give no text."""
        skipped = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.id_to_bytes(id_) for id_ in token_ids if id_ not in skipped).decode(errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        """The bytes of a token, which may end inside a character; empty for an id without a token."""
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._read_bytes(token_id)
        return found

    def token_text(self, token_id: int) -> str:
        """A token's text by itself, with U+FFFD for bytes that are no whole character; special tokens as written."""
        return self.id_to_bytes(token_id).decode(errors="replace")

    def _read_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:  # added tokens are written in characters, not in the table's
            return self._added[token_id].encode()
        token = self._tokenizer.id_to_token(token_id) if 0 <= token_id < self.num_token_ids else None
        if token is None:
            return b""
        if all(character in _BYTE_OF for character in token):
            return bytes(_BYTE_OF[character] for character in token)
        return token.encode()

    def _literal_tokenizer(self) -> _Tokenizer:
        # A second object, since the switch is a state of the tokenizer and threads share it.
        if self._literal is None:
            literal = _Tokenizer.from_file(str(self._file))
            literal.no_truncation()
            literal.no_padding()
            literal.encode_special_tokens = True
            self._literal = literal
        return self._literal
