"""Tags that are tokens, kept from being spelled in other tokens.

Who reads an answer's text finds a tag however it is written. Where a tag decides what may follow, it must be written as
its token, which a Constraint sees: so no other token may complete it.
"""

from __future__ import annotations

import numpy as np

from engine.grammar.compiler import GrammarCompiler


class Spelled:
    """How much of a tag the last tokens of a text have spelled."""

    def __init__(self, compiler: GrammarCompiler, tag_id: int) -> None:
        self._compiler, self._tag_id = compiler, tag_id
        self._tag = compiler.tokenizer.id_to_bytes(tag_id)
        self._length = 0

    def allowed(self) -> np.ndarray | None:
        """u32 mask, as ConstraintState has it: the tokens that do not complete the tag, and its own. None: all."""
        return self._compiler.not_completing(self._tag_id, self._length)

    def accept(self, token_id: int) -> None:
        """The next token is this one. Special tokens add nothing to a text that leaves them out."""
        if token_id in self._compiler.tokenizer.special_token_ids:
            return
        text = self._tag[: self._length] + self._compiler.tokenizer.id_to_bytes(token_id)
        longest = min(len(self._tag) - 1, len(text))
        self._length = next((n for n in range(longest, 0, -1) if self._tag.startswith(text[-n:])), 0)
