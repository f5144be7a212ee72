"""What a serving engine must do, in the plainest way: each request alone, whole sequences recomputed, no cache.

An engine that batches, caches, overlaps or preempts must give what this gives. The stages, a page each:

    admit.py      which requests are taken
    generate.py   one sample: logits -> sample.py -> log_probs.py -> stop.py, until it ends
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reference.model.config import ModelConfig
from reference.model.runner import JaxRunner, keep_compiled_code
from reference.serving.admit import check_request
from reference.serving.generate import generate
from reference.serving.request import Core, Request, RequestError, RequestOutput
from reference.serving.served_model import Decode, LanguageModel, ServedModel


@dataclass(eq=False)
class _Sample:
    request: Request
    outputs: Iterator[RequestOutput]


class Specification:
    """Serves any number of requests, a token at a time; it is a `Core`."""

    def __init__(
        self,
        model: LanguageModel,
        decode: Decode,
        *,
        eos_token_ids: Iterable[int],
        num_token_ids: int,
        max_model_len: int,
    ) -> None:
        self.max_model_len = max_model_len
        self._served = ServedModel(model, decode, frozenset(eos_token_ids), num_token_ids, max_model_len)
        self._samples: list[_Sample] = []  # unfinished ones, the one that has waited longest first

    def add(self, request: Request) -> None:
        """Take a request. Errors: RequestError; others are unharmed."""
        if any(sample.request.request_id == request.request_id for sample in self._samples):
            raise RequestError("request_id", f"request {request.request_id!r} is still running; ids must differ")
        check_request(request, self._served)
        for index in range(request.params.n):
            self._samples.append(_Sample(request, generate(request, index, self._served)))

    def abort(self, request_id: str) -> None:
        """Drop a request: nothing more is heard of it. One that is unknown or has ended is no error."""
        self._samples = [sample for sample in self._samples if sample.request.request_id != request_id]

    def step(self) -> list[RequestOutput]:
        """One token of one sample: of the most urgent priority, samples take turns."""
        if not self._samples:
            return []
        sample = min(self._samples, key=lambda sample: sample.request.priority)
        self._samples.remove(sample)
        output = next(sample.outputs)
        if output.finish_reason is None:
            self._samples.append(sample)
        return [output]

    def has_work(self) -> bool:
        """Is any request unfinished?"""
        return bool(self._samples)


def build_core(
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],  # a checkpoint's, by Hugging Face name
    decode: Decode,
    *,
    eos_token_ids: Iterable[int],
    num_token_ids: int,
    max_model_len: int,
    cache: Path | None = None,
) -> Core:
    """The reference panel with the specification as its engine.

    cache: a folder where compiled code is kept for later processes; None keeps none.
    """
    if cache is not None:
        keep_compiled_code(cache / "jax")
    model = JaxRunner(config, tensors, max_model_len=max_model_len)
    return Specification(
        model, decode, eos_token_ids=eos_token_ids, num_token_ids=num_token_ids, max_model_len=max_model_len
    )
