"""Log-probabilities in OpenAI's two shapes, and in vLLM's for a prompt.

Every sampled token has an entry, the one that ended the sample included, so entries and `completion_tokens` agree.
A token that is not a whole number of characters is named by its bytes, as OpenAI does: `bytes:\\xf0\\x9f`.
JSON has no infinity, so what is below -9999 is given as -9999.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.detokenize import IncrementalDetokenizer
from engine.tokenizer import Tokenizer
from reference.serving.request import TokenLogprobs

LOWEST = -9999.0


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    """The token's text, or its bytes where they are no text by themselves."""
    piece = tokenizer.id_to_bytes(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def chat_logprobs(tokenizer: Tokenizer, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Chat's shape: a list of tokens, each with the likeliest in falling order."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": token_name(tokenizer, token_id),
            "logprob": max(logprob, LOWEST),
            "bytes": list(tokenizer.id_to_bytes(token_id)),
        }

    content = [entry(e.token_id, e.logprob) | {"top_logprobs": [entry(*top) for top in e.top]} for e in entries]
    return {"content": content, "refusal": None}


def with_top(entries: Sequence[TokenLogprobs | None], number: int) -> list[TokenLogprobs | None]:
    """The entries with that many of the likeliest tokens, where the engine was asked for more."""
    return [entry and replace(entry, top=entry.top[:number]) for entry in entries]


def prompt_logprobs(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs | None]
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's shape: for each token of a prompt the likeliest tokens and the token itself, by id. Nothing is known of
    the first token: null."""

    def told(token_id: int, logprob: float, rank: int) -> dict[str, Any]:
        return {"logprob": max(logprob, LOWEST), "rank": rank, "decoded_token": token_name(tokenizer, token_id)}

    def by_id(entry: TokenLogprobs) -> dict[str, dict[str, Any]]:
        likeliest = {str(id_): told(id_, logprob, rank) for rank, (id_, logprob) in enumerate(entry.top, start=1)}
        return {str(entry.token_id): told(entry.token_id, entry.logprob, entry.rank)} | likeliest

    return [None if entry is None else by_id(entry) for entry in entries]


class CompletionLogprobs:
    """The completions shape of one choice, which a stream gives in pieces: parallel lists.

    `text_offset` is where a token begins in the choice's text as it would be without stop strings: after the last
    character that is complete before it. `top_logprobs` holds the likeliest tokens and always the token itself, so
    there may be one more than was asked for.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._output = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._offset = 0

    def prompt(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None]) -> dict[str, list[Any]]:
        """Of the echoed prompt, special tokens shown. Nothing is known of its first token: nulls."""
        text = IncrementalDetokenizer(self._tokenizer, skip_special_tokens=False)
        lists = self._lists(token_ids, entries, text)
        self._offset += len(text.flush())
        return lists

    def sampled(self, entries: Sequence[TokenLogprobs]) -> dict[str, list[Any]]:
        """Of sampled tokens."""
        return self._lists([entry.token_id for entry in entries], entries, self._output)

    def _lists(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprobs | None], text: IncrementalDetokenizer
    ) -> dict[str, list[Any]]:
        offsets = []
        for token_id in token_ids:
            offsets.append(self._offset)
            self._offset += len(text.push(token_id))
        return {
            "tokens": [token_name(self._tokenizer, token_id) for token_id in token_ids],
            "token_logprobs": [None if entry is None else max(entry.logprob, LOWEST) for entry in entries],
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            # Two ids may have one text: the likelier one is kept.
            top.setdefault(token_name(self._tokenizer, token_id), max(logprob, LOWEST))
        return top
