"""The tiny vocabulary of the specification's tests, as an engine sees it."""

from __future__ import annotations

from engine.detokenize import detokenizers
from tests.reference.serving.fakes import SPECIAL, TOKENS


class TinyTokenizer:
    special_token_ids = frozenset(SPECIAL)

    def id_to_bytes(self, token_id: int) -> bytes:
        return TOKENS[token_id] if token_id < len(TOKENS) else b""


detokenizer = detokenizers(TinyTokenizer())  # type: ignore[arg-type]
