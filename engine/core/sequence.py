"""One sample of a request, as the engine keeps it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np

from engine.core.text import TextStream
from reference.serving.request import PRIORITY_STEP, ConstraintState, Request, SamplingParams, TokenLogprobs


@dataclass(eq=False, slots=True)
class Sequence:
    """Tokens, the KV blocks that hold them, and what was said of them.

    num_computed <= len(tokens) + num_pending: tokens whose keys and values are in memory once every submitted batch has
    run. Waiting sequences hold no blocks.
    """

    request: Request
    index: int  # which of the request's n samples
    arrival: int  # number of this sample among all that were added
    added_at: float  # seconds, on the engine's clock
    budget: int  # tokens of output, from max_tokens and the context
    text: TextStream
    constraint: ConstraintState | None
    tokens: array[int]  # i32: the prompt, and what was sampled and is known
    prompt_hashes: list[bytes]  # of the prompt's full blocks, once one of the request's samples has asked
    params: SamplingParams = field(init=False)  # of the request
    urgency: tuple[int, int] = field(init=False)
    num_prompt: int = field(init=False)
    num_computed: int = 0
    num_pending: int = 0  # tokens sampled by the batch in flight, 0 or 1
    num_in_flight: int = 0  # batches in flight with a row of this sequence
    row: int = -1  # of this sequence in the batch submitted last, if it sampled there
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)  # of the first full blocks
    num_stored: int = 0  # of `blocks`, those that were offered to the prefix cache
    slot: int = -1  # in the tables of running sequences
    ended: bool = False
    has_run: bool = False
    mask: np.ndarray | None = None  # of the next token, from the constraint
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=lambda: [None])
    num_scored: int = 1  # prompt tokens whose log-probability was asked for, the first included
    is_plain: bool = field(init=False)  # nothing about its sampling is other than temperature, top-k, top-p, min-p

    def __post_init__(self) -> None:
        self.urgency = self.arrival + PRIORITY_STEP * self.request.priority, self.arrival
        self.num_prompt = len(self.tokens)
        params = self.params = self.request.params
        self.is_plain = not (
            penalizes(params)
            or params.logit_bias
            or params.min_tokens
            or params.allowed_token_ids is not None
            or params.constraint is not None
            or params.prompt_logprobs is not None
        )

    @property
    def num_output(self) -> int:
        """Sampled tokens, the pending one included."""
        return len(self.tokens) + self.num_pending - self.num_prompt

    @property
    def num_lacking(self) -> int:
        """Tokens that must be computed before the next can be sampled."""
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def ready(self) -> bool:
        """Can a step run it now? Not if its budget is used up by what is in flight, nor, under a constraint, before
        the last token is known."""
        return self.num_output < self.budget and not (self.num_pending and self.constraint is not None)

    @property
    def uses_prefix_cache(self) -> bool:
        """Log-probabilities of a prompt need its logits, which no cache holds."""
        return self.params.prompt_logprobs is None


def penalizes(params: SamplingParams) -> bool:
    """Must the tokens so far be known to sample the next?"""
    return params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
