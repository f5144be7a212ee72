"""The model that is served, and how a request's parameters meet its defaults."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar

from engine.api.errors import ApiError, shortened
from engine.api.protocol import GenerationRequest
from engine.chat_template import ChatTemplate
from engine.checkpoint import GenerationDefaults
from engine.grammar import GrammarCompiler
from engine.loop import AsyncEngine
from engine.tokenizer import Tokenizer
from reference.serving.request import Constraint, RequestError, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class ServedModel:
    """A running engine and the text side of its model, under the name that clients ask for."""

    name: str
    engine: AsyncEngine
    tokenizer: Tokenizer
    template: ChatTemplate | None  # None: the checkpoint has none, and chat is refused
    defaults: GenerationDefaults
    grammars: GrammarCompiler  # of answers that must be in a given language
    created: int = field(default_factory=lambda: int(time.time()))

    def check_name(self, name: str | None) -> None:
        """Errors: ApiError 404 for a model that is not served."""
        if name not in (None, self.name):
            message = f"the model {shortened(name)!r} does not exist here; served is {self.name!r}"
            raise ApiError(HTTPStatus.NOT_FOUND, message, param="model", code="model_not_found")

    def encode(self, text: str, param: str, *, add_special: bool = False) -> list[int]:
        """The ids of a prompt, which the client gave as `param`. Errors: RequestError."""
        try:
            return self.tokenizer.encode(text, add_special=add_special)
        except ValueError as error:
            raise RequestError(param, str(error)) from None

    def sampling_params(
        self,
        body: GenerationRequest,
        *,
        max_tokens: int | None,
        logprobs: int | None = None,
        echoed_logprobs: int | None = None,
        constraint: Constraint | None = None,
    ) -> SamplingParams:
        """How to sample: what the request says, else what the checkpoint's generation_config says, else neutral.

        echoed_logprobs: as `logprobs`, for the tokens of a prompt that is echoed.
        An unseeded request gets a random seed of 64 bits; a negative one is read as two's complement.
        Errors: RequestError.
        """
        if constraint is not None and body.allowed_token_ids is not None:
            # Together they may allow nothing, which nobody knows before it happens.
            message = "allowed_token_ids cannot be given where the answer has a given form: a format, or calls of tools"
            raise RequestError("allowed_token_ids", message)
        defaults = self.defaults
        of_prompt = [number for number in (body.prompt_logprobs, echoed_logprobs) if number is not None]
        return SamplingParams(
            n=body.n,
            temperature=_first(body.temperature, defaults.temperature, 1.0),
            top_k=max(0, _first(body.top_k, defaults.top_k, 0)),
            top_p=_first(body.top_p, defaults.top_p, 1.0),
            min_p=body.min_p,
            repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            logit_bias=body.logit_bias,
            allowed_token_ids=None if body.allowed_token_ids is None else tuple(body.allowed_token_ids),
            constraint=constraint,
            seed=secrets.randbits(64) if body.seed is None else body.seed % 2**64,
            max_tokens=max_tokens,
            min_tokens=body.min_tokens,
            stop=tuple(body.stop),
            stop_token_ids=tuple(body.stop_token_ids),
            ignore_eos=body.ignore_eos,
            include_stop_str_in_output=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
            logprobs=logprobs,
            prompt_logprobs=max(of_prompt) if of_prompt else None,
        )


def _first(*values: T | None) -> T:
    """The first that is given; the last always is."""
    return next(value for value in values if value is not None)
