"""A language model that says what its prompt tells it to say, and all that serves it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from engine.api.served import ServedModel
from engine.cache import cache_directory
from engine.chat_template import ChatTemplate
from engine.checkpoint import GenerationDefaults
from engine.grammar import GrammarCompiler
from engine.loop import AsyncEngine
from engine.metrics import Metrics
from engine.tokenizer import Tokenizer
from reference.model.config import ModelConfig
from reference.serving.request import Core, RequestOutput
from reference.serving.specification import Specification
from tests.engine.text_side import EMPTY_THOUGHT, OPEN_THOUGHT


class ObedientModel:
    """Says what stands between `say:` and `#` in its prompt, and then the end-of-sequence id. Without an order it
    babbles: logits are a hash of the history. It fails at a prompt that holds `crash!` and once it has said `boom`,
    has no distribution for one that holds `nan!`, and is slow with one that holds `slow!`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._eos = tokenizer.encode("<|im_end|>")[0]
        self.vocab_size = tokenizer.num_token_ids + 5  # padded, as a real one

    def last_logits(self, token_ids: Sequence[int]) -> np.ndarray:
        history = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        if "crash!" in history:
            raise ZeroDivisionError("the model crashed")
        logits = np.random.default_rng(hash(tuple(token_ids)) % 2**32).normal(size=self.vocab_size).astype(np.float32)
        if "slow!" in history:
            time.sleep(0.01)
        if "nan!" in history:
            logits[:] = np.nan
        if "say:" in history:
            logits[self._told(list(token_ids))] += 50
        return logits

    def all_logits(self, token_ids: Sequence[int]) -> Iterable[np.ndarray]:
        return (self.last_logits(token_ids[: i + 1]) for i in range(len(token_ids)))

    def _told(self, token_ids: list[int]) -> int:
        raw = b"".join(map(self._tokenizer.id_to_bytes, token_ids))
        text, mark, rest = raw.partition(b"say:")[2].partition(b"#")
        if not mark:
            return self._eos
        said = rest.rpartition(b"assistant\n")[2]
        for begun in (EMPTY_THOUGHT.encode(), OPEN_THOUGHT.encode()):  # by the prompt
            if not text.startswith(begun):
                said = said.removeprefix(begun)
        if said.endswith(b"boom"):
            raise ZeroDivisionError("the model went boom")
        script = self._tokenizer.encode(text.decode())
        at = len(said)
        for token_id in script:  # the token that begins where the said bytes end
            if at == 0:
                return token_id
            at -= len(self._tokenizer.id_to_bytes(token_id))
        return self._eos


class RecordingCore(Specification):
    """The specification, and a list of what was aborted. Its steps can be held up."""

    def __init__(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        super().__init__(
            ObedientModel(tokenizer),
            tokenizer.decode,
            eos_token_ids=tokenizer.encode("<|im_end|>"),
            num_token_ids=tokenizer.num_token_ids,
            max_model_len=max_model_len,
        )
        self.aborted: list[str] = []
        self.open = threading.Event()
        self.open.set()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        super().abort(request_id)

    def step(self) -> list[RequestOutput]:
        self.open.wait(10)
        return super().step()


def build_core(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    decode: Callable[[Sequence[int], bool], str],
    *,
    eos_token_ids: Sequence[int],
    num_token_ids: int,
    max_model_len: int,
    cache: Path,
) -> RecordingCore:
    """A panel that takes every tensor and obeys its prompt."""
    assert cache == cache_directory()
    assert sum(tensor.size for tensor in tensors.values()) > 0
    tokenizer: Tokenizer = decode.__self__  # type: ignore[attr-defined]  # the model must read its prompt
    assert (list(eos_token_ids), num_token_ids) == (tokenizer.encode("<|im_end|>"), tokenizer.num_token_ids)
    return RecordingCore(tokenizer, max_model_len)


def served_model(
    directory: Path, *, max_model_len: int = 400, defaults: GenerationDefaults | None = None
) -> ServedModel:
    """An obedient model under the name `obedient`, its text side read from a directory."""
    return served_by(directory, lambda tokenizer, _: RecordingCore(tokenizer, max_model_len), defaults)


def served_by(
    directory: Path, make_core: Callable[[Tokenizer, list[int]], Core], defaults: GenerationDefaults | None = None
) -> ServedModel:
    """The same with another core: make_core(tokenizer, end-of-sequence ids)."""
    tokenizer = Tokenizer.from_directory(directory)
    ends = tokenizer.encode("<|im_end|>")
    engine = AsyncEngine(make_core(tokenizer, ends), Metrics("obedient"))
    template = ChatTemplate.from_directory(directory)
    grammars = GrammarCompiler(tokenizer, ends, tokenizer.num_token_ids)
    return ServedModel("obedient", engine, tokenizer, template, defaults or GenerationDefaults(), grammars)
