"""What is asked of a serving engine, and what it answers. Declarations only: no arithmetic, no JAX.

The specification (`reference/serving`), the engine and the HTTP API all speak in these types, and any object
with the methods of `Core` can stand behind the API.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

import numpy as np

MAX_TOP_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_PRIORITY = 100
PRIORITY_STEP = 64  # a step of priority is worth this many arrivals


# What `RequestOutput.error` says where no token could be sampled.
UNUSABLE_LOGITS_ERROR = "the model's logits for the token at position {position} hold NaN or +inf, or nothing but -inf"
NOTHING_ALLOWED_ERROR = "every token that may be sampled at position {position} has probability 0"


class RequestError(ValueError):
    """A request that cannot be served: `param` names the field, the message says why and what would be right."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class FinishReason(StrEnum):
    """Why a sample ended. `stop`: an end-of-sequence id, a stop id or a stop string. `length`: its token budget or
    the model's context is used up. `abort`: the client left. `error`: the model's logits were NaN."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class ConstraintState(Protocol):
    """Where one sample stands in its constraint."""

    def allowed(self) -> np.ndarray | None:
        """u32 [ceil(num_token_ids / 32)]: the token ids that may come next, 32 to a word, the lowest in the lowest
        bit; None if any may. Not to be written to. End-of-sequence ids are ids like others: where the answer may end,
        all of the model's are allowed, and where it must end, only those. No id at all: the constraint gave up, since
        its language takes too long to follow; the sample ends with an error."""

    def accept(self, token_id: int) -> None:
        """The next token is this one. Errors: ValueError if it was not allowed; the state is then unchanged."""


class Constraint(Protocol):
    """A language that an answer must be in (`response_format`, tools): which tokens may follow those so far."""

    def begin(self) -> ConstraintState:
        """The state before the first token of an answer. States are independent of each other."""


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen from the logits, and when to end. Checked where it is built (RequestError).

    The chain, in this order: repetition, then frequency and presence penalties, logit bias, allowed tokens,
    temperature, top-k, top-p, min-p, the draw. temperature 0 is greedy: the largest logit after the bias and
    the mask, the lower id on a tie. Log-probabilities are always those of the raw logits, before the chain.
    """

    n: int = 1  # samples of one prompt; sample i draws with counter word i
    temperature: float = 1.0  # >= 0
    top_k: int = 0  # keep this many; 0 keeps all
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1]: keep what has at least this share of the likeliest token's probability
    repetition_penalty: float = 1.0  # > 0; over prompt and output
    presence_penalty: float = 0.0  # [-2, 2]; over the output
    frequency_penalty: float = 0.0  # [-2, 2]; over the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # [-100, 100] a token id
    allowed_token_ids: tuple[int, ...] | None = None
    constraint: Constraint | None = None  # the answer's grammar; what it allows is allowed together with the above
    seed: int = 0  # 64 bits, the Philox key
    max_tokens: int | None = None  # None: as far as the context reaches
    min_tokens: int = 0  # no end-of-sequence or stop id before
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None  # None: none; m: the chosen token's and the m likeliest tokens'
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        _in_range("n", self.n, 1, 128)
        _in_range("temperature", self.temperature, 0.0, math.inf, high_open=True)
        _in_range("top_k", self.top_k, 0, math.inf)
        _in_range("top_p", self.top_p, 0.0, 1.0, low_open=True)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, math.inf, low_open=True, high_open=True)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        for bias in self.logit_bias.values():
            _in_range("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids", "allowed_token_ids is empty: no token could be sampled")
        _in_range("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, math.inf)
        _in_range("min_tokens", self.min_tokens, 0, math.inf)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens", f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        if self.constraint is not None and self.ignore_eos:
            raise RequestError("ignore_eos", "ignore_eos is set, and an answer in a given format ends where that does")
        if self.constraint is not None and self.min_tokens > 0:
            message = f"min_tokens is {self.min_tokens}, and an answer in a given format ends where that does; give 0"
            raise RequestError("min_tokens", message)
        if any(not text for text in self.stop):
            raise RequestError("stop", "a stop string is empty; every text contains the empty string")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _in_range(name, value, 0, MAX_TOP_LOGPROBS)


def _in_range(
    name: str, value: float, low: float, high: float, *, low_open: bool = False, high_open: bool = False
) -> None:
    # Written so that NaN fails.
    if (value > low if low_open else value >= low) and (value < high if high_open else value <= high):
        return
    interval = f"{'(' if low_open else '['}{low}, {high}{')' if high_open or high == math.inf else ']'}"
    raise RequestError(name, f"{name} is {value}; it must lie in {interval}")


@dataclass(frozen=True)
class Request:
    """A prompt and what to do with it. Token ids are those of the model's tokenizer."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0  # [-100, 100], lower is more urgent: it runs before the next PRIORITY_STEP less urgent arrivals

    def __post_init__(self) -> None:
        _in_range("priority", self.priority, -MAX_PRIORITY, MAX_PRIORITY)


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities (natural, float32) at one position, of the raw logits: the token that stands there,
    its rank (1 is the likeliest) and the likeliest tokens in falling order, the lower id first on a tie."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]  # (token id, log-probability)


@dataclass(frozen=True)
class RequestOutput:
    """What one step adds to one sample of one request.

    Joined over a sample's outputs, `text` is the whole answer and `token_ids` every sampled token, the ending one
    included. Text never ends inside a character, and never holds a part of a stop string.
    """

    request_id: str
    index: int  # which of the n samples
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...] | None = None  # one a token of token_ids
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None  # on a sample's first output; the first is None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None  # the stop id or stop string that ended it; None for an end-of-sequence id
    error: str | None = None  # says what went wrong, with finish_reason `error`


class Core(Protocol):
    """What stands behind the API: the specification, or an engine. One thread calls it."""

    max_model_len: int  # tokens of prompt and output together

    def add(self, request: Request) -> None:
        """Take a request. Errors: RequestError; others are unharmed."""

    def abort(self, request_id: str) -> None:
        """Drop a request and all it holds. One that is unknown or has ended is no error."""

    def step(self) -> list[RequestOutput]:
        """Do the next piece of work."""

    def has_work(self) -> bool:
        """Is any request unfinished?"""
