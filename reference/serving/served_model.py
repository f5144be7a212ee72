"""A language model, and what must be known beside it to serve it. Declarations only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from reference.formats import Array

# (token ids, skip special tokens) -> text. What is not UTF-8 becomes U+FFFD, an unfinished character at the end one
# of them. But for that last one, the text of more tokens starts with the text of fewer, as with any byte-level BPE.
Decode = Callable[[Sequence[int], bool], str]


class LanguageModel(Protocol):
    """What a model says of the tokens that follow, from the whole sequence. Row i is about the token at i + 1."""

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        """f32 [V], after the last token."""

    def all_logits(self, token_ids: Sequence[int]) -> Iterable[Array]:
        """f32 [V] for each token."""


@dataclass(frozen=True)
class ServedModel:
    """Errors: ValueError for an end-of-sequence id that could never be sampled."""

    model: LanguageModel
    decode: Decode
    eos_token_ids: frozenset[int]
    num_token_ids: int  # of the tokenizer. The model may have more logits; those ids are refused and never sampled
    max_model_len: int  # tokens of prompt and output together

    def __post_init__(self) -> None:
        for token_id in self.eos_token_ids:
            if not 0 <= token_id < self.num_token_ids:
                raise ValueError(f"end-of-sequence id {token_id} is not among the {self.num_token_ids} token ids")
