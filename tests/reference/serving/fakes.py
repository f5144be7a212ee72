"""A tiny vocabulary of bytes, and models that are pure functions of the tokens so far."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reference.formats import Array
from reference.serving.request import Request, RequestOutput, SamplingParams
from reference.serving.served_model import LanguageModel, ServedModel
from reference.serving.specification import Specification

# Ids 0 to 255 are single bytes.
EOS, END_OF_TURN, ABC, DEF_TO_J, E_ACUTE_SPACE = 256, 257, 258, 259, 260
TOKENS = [bytes([byte]) for byte in range(256)] + [b"<eos>", b"<end>", b"ABC", b"DEFGHIJ", "é ".encode()]
SPECIAL = {EOS, END_OF_TURN}
NUM_TOKEN_IDS = len(TOKENS)
VOCAB_SIZE = NUM_TOKEN_IDS + 3  # the model's logits are padded


def decode(token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
    shown = [TOKENS[i] for i in token_ids if not (skip_special_tokens and i in SPECIAL)]
    return b"".join(shown).decode("utf-8", errors="replace")


def ids_of(text: str) -> list[int]:
    """One token a byte."""
    return list(text.encode())


class HistoryModel:
    """Logits that look random and depend on every token so far. Padding is likely: only a ban keeps it away."""

    def __init__(self, scale: float = 2.0) -> None:
        self.scale = scale
        self.calls = 0

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        self.calls += 1
        seed = zlib.crc32(np.array(token_ids, np.int32).tobytes())
        logits = np.random.default_rng(seed).standard_normal(VOCAB_SIZE) * self.scale
        logits[NUM_TOKEN_IDS:] += 3 * self.scale
        return logits.astype(np.float32)

    def all_logits(self, token_ids: Sequence[int]) -> Iterable[Array]:
        return (self.last_logits(token_ids[: end + 1]) for end in range(len(token_ids)))


class ScriptedModel(HistoryModel):
    """Says the script, whatever the prompt: the script's next token has a logit of 30, the others are near 0."""

    def __init__(self, script: Sequence[int], prompt_length: int = 1) -> None:
        super().__init__(scale=0.1)
        self.script, self.prompt_length = list(script), prompt_length

    def last_logits(self, token_ids: Sequence[int]) -> Array:
        logits = super().last_logits(token_ids)
        said = len(token_ids) - self.prompt_length
        if 0 <= said < len(self.script):
            logits[self.script[said]] = 30.0
        return logits


def served(model: LanguageModel, max_model_len: int = 64) -> ServedModel:
    return ServedModel(model, decode, frozenset({EOS}), NUM_TOKEN_IDS, max_model_len)


def specification(model: LanguageModel, max_model_len: int = 64) -> Specification:
    return Specification(model, decode, eos_token_ids=[EOS], num_token_ids=NUM_TOKEN_IDS, max_model_len=max_model_len)


def request(name: str = "r", prompt: Sequence[int] = (7,), priority: int = 0, **params: Any) -> Request:
    return Request(name, tuple(prompt), SamplingParams(**params), priority)


def run(core: Specification, *requests: Request) -> dict[tuple[str, int], list[RequestOutput]]:
    """Serve the requests together to their end: the outputs of each (request id, sample index), in order."""
    for each in requests:
        core.add(each)
    outputs: dict[tuple[str, int], list[RequestOutput]] = {}
    while core.has_work():
        for output in core.step():
            outputs.setdefault((output.request_id, output.index), []).append(output)
    return outputs


def text_of(outputs: Iterable[RequestOutput]) -> str:
    return "".join(output.text for output in outputs)


def tokens_of(outputs: Iterable[RequestOutput]) -> list[int]:
    return [token_id for output in outputs for token_id in output.token_ids]
